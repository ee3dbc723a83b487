"""Forms of `torch.autograd.Function` that the interpreters cannot take as they are: each as a class that they can.

- `mark_dirty`: a function that writes into its inputs. The class is run on copies, and what it returns for them is
  written into the inputs afterwards, as values with all their derivatives.
- `once_differentiable`: its backward pass leaves no graph that leads back. Where the derivative may be differentiated
  again, one is laid that raises an error; torch's own ends nowhere, so that a derivative would silently be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import Function, once_differentiable

from .core.errors import NotDifferentiableError
from .core.transposing import STATE

Tensor = torch.Tensor
_ONCE = once_differentiable(lambda: None).__code__  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Context:
    """A stand-in for `ctx`: keeps what the class saves, for a `jvp` or a `backward` that is run by hand."""

    def __init__(self, needs_input_grad: tuple[bool, ...] = ()) -> None:
        self.needs_input_grad = needs_input_grad
        self.materialize_grads = True
        self._backward: tuple[Any, ...] = ()
        self._forward: tuple[Any, ...] | None = None
        self._non_differentiable: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """As in torch."""
        self._backward = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """As in torch."""
        self._forward = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved."""
        return self._backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """As in torch."""
        self._non_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """As in torch."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """As in torch."""
        self.materialize_grads = value


def code_of(function: Any) -> Any:
    """The code of a function, if it is written in Python."""
    return getattr(function, "__code__", None)


# -- functions that write into their inputs ---------------------------------------------------------------------------


def writes_inputs(cls: Any) -> bool:
    """Whether a class says that it writes into inputs."""
    codes = (code_of(cls.forward), code_of(cls.setup_context))
    return any(code is not None and "mark_dirty" in code.co_names for code in codes)


class Recorder:
    """A context that only remembers what was marked dirty, and is the real one otherwise."""

    def __init__(self, ctx: Any, dirty: list[Any]) -> None:
        self.__dict__.update(ctx_=ctx, dirty_=dirty)

    def mark_dirty(self, *tensors: Any) -> None:
        """As in torch, but what is written into are copies, which torch need not know."""
        self.dirty_.extend(tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx_, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx_, name, value)


def copied(args: Any) -> list[Any]:
    """The arguments of a function, tensors as copies."""
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


def on_copies(cls: Any, own: Callable[[Any, str], bool]) -> tuple[Any, list[tuple[int, int]]]:
    """A class that does what `cls` does on copies of its inputs, and (once it ran) which outputs are which inputs.

    `own(cls, name)` says whether a class defines a static method itself.
    """
    pairs: list[tuple[int, int]] = []

    class OnCopies(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            copies, dirty = copied(args), []
            recorder = Recorder(ctx, dirty)
            if own(cls, "setup_context"):
                out = cls.forward(*copies)
                cls.setup_context(recorder, tuple(copies), out)
            else:
                out = cls.forward(recorder, *copies)
            outs = out if isinstance(out, (tuple, list)) else (out,)
            written = [k for k, c in enumerate(copies) if any(c is d for d in dirty)]
            pairs[:] = [(k, j) for k in written for j, o in enumerate(outs) if o is copies[k]]
            return out

        backward = staticmethod(cls.backward)

    if own(cls, "jvp"):
        OnCopies.jvp = staticmethod(lambda ctx, *tangents: cls.jvp(ctx, *copied(tangents)))  # type: ignore[assignment]
    if own(cls, "vmap"):
        OnCopies.vmap = staticmethod(lambda info, dims, *args: cls.vmap(info, dims, *copied(args)))  # type: ignore[assignment]
    OnCopies.__name__ = cls.__name__
    return OnCopies, pairs


def written_back(args: Any, out: Any, pairs: list[tuple[int, int]]) -> Any:
    """What a function wrote into copies, written into its inputs; these are returned in the place of the copies."""
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    for k, j in pairs:
        args[k].copy_(outs[j])
        outs[j] = args[k]
    return tuple(outs) if isinstance(out, (tuple, list)) else outs[0]


# -- functions that are differentiable once ------------------------------------------------------------------------


def is_once(cls: Any) -> bool:
    """Whether the `backward` of a class is marked as once differentiable."""
    return code_of(cls.backward) is _ONCE


class NotTwice(Function):
    """The identity of derivatives, which depend on further tensors in a way that has no derivative of its own."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Any) -> Any:  # noqa: D102
        ctx.name, ctx.count = name, count
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: D102
        del grads
        raise NotDifferentiableError(
            f"`{ctx.name}` is marked once_differentiable, but its derivative is differentiated again: write its "
            "backward pass in differentiable operators, and take the mark away."
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: D102
        return tuple(tangents[2 : 2 + ctx.count])


class Reader:
    """A context that takes its saved tensors out once, however often it is asked."""

    def __init__(self, ctx: Any) -> None:
        self.__dict__.update(ctx_=ctx, saved_tensors=ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx_, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx_, name, value)


def once_of(cls: Any) -> Any:
    """A class like `cls`, the derivative of which says that it cannot be differentiated."""
    made = cls.__dict__.get("_pushforward_once")
    if made is None:
        made = cls._pushforward_once = _once_of(cls)
    return made


def _once_of(cls: Any) -> Any:
    plain = cls.backward.__wrapped__

    class Once(cls):
        once = True

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            ctx = Reader(ctx)
            STATE.cut += STATE.running > 0
            with torch.no_grad():
                out = plain(ctx, *grads)
            if not torch.is_grad_enabled():
                return out
            sources = [t for t in (*grads, *ctx.saved_tensors) if isinstance(t, Tensor) and t.requires_grad]
            outs = list(out) if isinstance(out, (tuple, list)) else [out]
            places = [k for k, o in enumerate(outs) if isinstance(o, Tensor)]
            if sources and places:
                made = NotTwice.apply(cls.__name__, len(places), *[outs[k] for k in places], *sources)
                for k, o in zip(places, made, strict=True):
                    outs[k] = o
            return tuple(outs) if isinstance(out, (tuple, list)) else outs[0]

    Once.__name__ = cls.__name__
    return Once
