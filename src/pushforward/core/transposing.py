"""The user's own code in a backward pass: hooks, and the `backward` of a `torch.autograd.Function`.

Where the user calls the engine on traced values, that code runs as it does on plain tensors: `.detach()` means what it
says. Where a reverse pass is run only to be transposed into a directional derivative, J v = d/du ⟨vjp(u), v⟩, nobody
asked for a gradient: hooks on gradients are left alone, and a `backward` that cuts its cotangent off is noticed, for
the product would silently lack what was cut.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import methods
from .captured import described
from .carry import CARRIED, adopted, carrying
from .errors import CapturedWriteError
from .source import is_library_file, source_line
from .torch_private import EnableFunction, no_modes, run_user_backward
from .traced import SPECIAL, Traced

Tensor = torch.Tensor


class _State(threading.local):
    running = 0  # reverse passes that are to be transposed
    cut = 0  # pieces of user code that cut a cotangent off, counted


STATE = _State()
METHODS = (methods.__file__, "fast_arithmetic.py")  # where methods of traced values are written
CARRIED.append(STATE)
DATA: Any = Tensor.data
CUTS = frozenset(
    {Tensor.detach, torch.detach, Tensor.detach_, DATA.__get__, Tensor.item, Tensor.tolist, Tensor.numpy}
    | {getattr(Tensor, f"__{name}__") for name in ("float", "int", "bool", "array")}
)


class transposing(carrying):
    """A reverse pass that will be transposed."""

    __slots__ = ()

    def __enter__(self) -> None:
        STATE.running += 1
        super().__enter__()

    def __exit__(self, *_: Any) -> None:
        super().__exit__()
        STATE.running -= 1


class Noticing(TorchFunctionMode):
    """Counts calls by user code that cut a tensor off its graph: around a `backward`, for the engine leaves modes behind."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        stops = func in CUTS
        if (stops or not (torch.is_grad_enabled() or getattr(func, "__name__", "") == "__get__")) and by_user(sys._getframe(1)):
            STATE.cut += any(isinstance(a, Tensor) and a.requires_grad for a in args)
        return func(*args, **(kwargs or {}))


def by_user(frame: Any) -> bool:
    """Whether a call was written neither here nor in torch; a method of a traced value calls on behalf of its caller."""
    while frame is not None and frame.f_code.co_filename.endswith(METHODS):
        frame = frame.f_back
    return frame is not None and not is_library_file(frame.f_code.co_filename)


def noticed(cls: Any) -> Any:
    """A class like `cls`, in whose `backward` it is noticed where a cotangent is cut off."""
    made = cls.__dict__.get("_pushforward_noticed")
    if made is None:
        made = cls._pushforward_noticed = _noticed(cls)
    return made


def _noticed(cls: Any) -> Any:
    class Noticed(cls):
        _pushforward_noticed: Any = None

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            with adopted():
                if not STATE.running:
                    return cls.backward(ctx, *grads)
                with Noticing():
                    return cls.backward(ctx, *grads)

    Noticed._pushforward_noticed = Noticed
    Noticed.__name__, Noticed.__qualname__, Noticed.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Noticed


# -- hooks on gradients -------------------------------------------------------------------------------------------


def unheard(hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """A hook that is not called while a pass is run only to be transposed."""

    @functools.wraps(hook)
    def heard(gradient: Tensor) -> Any:
        with adopted():
            return None if STATE.running else hook(gradient)

    return heard


def register_hook(x: Tensor, hook: Callable[[Tensor], Any]) -> Any:
    """`x.register_hook(hook)`, in a function that may be transposed."""
    return Tensor.register_hook(x, unheard(hook))


# -- the user's own calls of the engine on traced values ----------------------------------------------------------


def _engine(*args: Any, **kwargs: Any) -> Any:
    with EnableFunction(), carrying():
        return run_user_backward(*args, **kwargs)


def _with_engine(function: Any) -> Any:
    """`function` of torch.autograd, in whose backward pass the user's code is seen call by call."""
    scope = {**function.__globals__, "_engine_run_backward": _engine}
    made = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


grad = _with_engine(torch.autograd.grad)  # to be called under NoFunction
_plain_backward = _with_engine(torch.autograd.backward)


def _backward(tensors: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> None:
    """`torch.autograd.backward` on values of a transform: what it leaves in tensors from outside must be a plain tensor."""
    before = [(v, v.grad) for v in captured_leaves(tensors, inputs)]
    for v, _ in before:
        v.grad = None
    try:
        _plain_backward(tensors, *args, inputs=inputs, **kwargs)
        for v, old in before:
            v.grad = accumulated(v, old)
    except BaseException:
        for v, old in before:
            v.grad = old
        raise


def accumulated(v: Tensor, old: Tensor | None) -> Tensor | None:
    """The gradient of a tensor from outside after a backward pass that found nothing in its place."""
    new = v.grad
    while isinstance(new, Traced):
        plain = new._level.outside(new)
        if plain is None:
            raise CapturedWriteError(
                f"{new._level.where}: `backward` at {source_line()} would add to the gradient of {described(v)}, which was made "
                "outside, what differs between lanes or has a tangent. Return `torch.autograd.grad(...)`, or pass the tensor as an "
                "argument (a module's parameters by pf.functional_call) and use pf.grad."
            )
        new = plain
    if old is None or new is None:
        return old if new is None else new
    with no_modes():
        if new.requires_grad or old.requires_grad:
            return old + new
        return old.add_(new)


def captured_leaves(tensors: Any, inputs: Any) -> list[Tensor]:
    """The tensors from outside that a backward pass accumulates into: those given, or all leaves of the graph."""
    if inputs is not None:
        given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        return [v for v in given if isinstance(v, Tensor) and not isinstance(v, Traced)]
    found: list[Tensor] = []
    waiting = [x.grad_fn for x in ([tensors] if isinstance(tensors, Tensor) else tensors)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and not isinstance(variable, Traced):
            found.append(variable)
        waiting += [below for below, _ in node.next_functions]
    return found


def _tensor_backward(
    self: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    _backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def _instead(own: Any) -> Any:
    def special(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        del func
        return own(*args, **(kwargs or {}))

    return special


def _register_hook(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    given = {**dict(zip(("self", "hook"), args, strict=False)), **(kwargs or {})}
    return func(given["self"], unheard(given["hook"]))


SPECIAL[torch.autograd.grad] = _instead(grad)
SPECIAL[torch.autograd.backward] = _instead(_backward)
SPECIAL[Tensor.backward] = _instead(_tensor_backward)
SPECIAL[Tensor.register_hook] = _register_hook
