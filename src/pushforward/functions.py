"""`torch.autograd.Function` under every transform: the user's `backward`, `jvp` and `vmap` are what counts, not the body.

`apply` does not pass through dispatch, so it is caught here, and only where a traced value is among its arguments. Each level is
interpreted in turn: a batching level maps the class, a dual level uses its `jvp` or transposes its `backward`, and what is left runs
as torch runs it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.checkpoint import CheckpointFunction

from .batch import level as batching
from .batch.custom import VmapInfo
from .batch.fallback import run_lanes
from .batch.level import Batched, BatchLevel
from .batch.settle import refresh_all
from .core.carry import adopted
from .core.level import THREAD, Level, is_grad_enabled, user_stopped_gradient
from .core.torch_private import FunctionBase, NoFunction, pop_mode, push_mode
from .core.traced import NeedsGraph, Traced
from .core.transposing import STATE, noticed
from .forward import level as duals
from .forward.from_reverse import from_reverse
from .forward.level import Dual
from .function_forms import Context, is_once, on_copies, once_of, writes_inputs, written_back

Tensor = torch.Tensor
Function = torch.autograd.Function

WATCHERS: list[Any] = []  # of running checks: each takes a whole call `(cls, args, kwargs, run)`


def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`cls.apply`, by levels where a traced value is among the arguments; a running check sees it first."""
    if WATCHERS:
        return WATCHERS[-1](cls, args, kwargs, functools.partial(unwatched, cls))
    return unwatched(cls, *args, **kwargs)


def unwatched(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """As `apply`, past any check."""
    if THREAD.order and not is_once(cls):
        if cls is BackwardHookFunction:
            STATE.cut += not any(type(a) is Dual for a in args)  # hooks of a module change gradients, and no tangents
        elif cls is not CheckpointFunction and not cls.__module__.startswith("pushforward."):
            cls = noticed(cls)
    if THREAD.levels:
        for a in args:
            if isinstance(a, Traced):
                return by_level(cls, args, kwargs)
        for a in kwargs.values():
            if isinstance(a, Traced):
                return by_level(cls, args, kwargs)
    if THREAD.order and is_once(cls):
        cls = once_of(cls)
    return _ORIGINAL(cls, *args, **kwargs)


def _ORIGINAL(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own `apply`."""
    return super(FunctionBase, cls).apply(*args, **kwargs)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def install() -> None:
    """Catch `apply` from now on."""
    FunctionBase.apply = classmethod(apply)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def by_level(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Interpret a call for the innermost level among the arguments."""
    if kwargs:
        args = bound(cls, args, kwargs)
    if cls is CheckpointFunction:  # its backward works with .backward() only; the values are the same without it
        return args[0](*args[2:])
    if cls is BackwardHookFunction:
        return hooked(args)
    refresh_all(args)
    traced = [a for a in args if isinstance(a, Traced)]
    living = [level for level in THREAD.levels if any(a._level is level for a in traced)]
    if not living:
        return _ORIGINAL(cls, *args)
    level: Any = living[-1]
    if level.payload_graphs:  # a class is differentiated by its own rule: that needs the graph of the values themselves
        raise NeedsGraph
    if writes_inputs(cls):
        cls, pairs = on_copies(cls, has_own)
        return written_back(args, chosen(cls, level, args), pairs)
    return chosen(once_of(cls) if is_once(cls) else cls, level, args)


def chosen(cls: Any, level: Any, args: tuple[Any, ...]) -> Any:
    """A call as torch runs it, where values of `level` are as good as tensors; else interpreted, recorded on the values or not."""
    with NoFunction():
        recorded = is_grad_enabled() and any(own_graph(a, level) for a in args)
        alone = (
            isinstance(level, BatchLevel) and not has_own(cls, "vmap") and not any(entangled(a, level) for a in args)
        )
    if alone:
        return _ORIGINAL(cls, *args)
    if recorded:
        return _ORIGINAL(hybrid(cls, level), *args)
    return interpret(cls, level, args)


def own_graph(x: Any, level: Any) -> bool:
    """Whether the graph of a level's values leads to an argument: one of them, or one from outside that the function looks at."""
    return (
        isinstance(x, Tensor) and x.requires_grad and (x._level is level if isinstance(x, Traced) else level.open_graph)
    )


def hooked(args: tuple[Any, ...]) -> Any:
    """The identity in whose node torch puts the hooks of a module: recorded on the values themselves, their payloads as they were."""
    out = _ORIGINAL(BackwardHookFunction, *args)
    for made, a in zip(out, args, strict=True):
        if type(a) is Batched and type(made) is Batched:
            made._payload, made._meta, made._form = a._payload, None, None
        elif type(a) is Dual and type(made) is Dual:
            made._primal, made._tangent, made._meta, made._form = a._primal, a._tangent, None, None
    return out


def bound(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Keyword arguments put in their positions."""
    if has_own(cls, "setup_context"):
        call = inspect.signature(cls.forward).bind(*args, **kwargs)
    else:
        call = inspect.signature(cls.forward).bind(None, *args, **kwargs)
    call.apply_defaults()
    return call.args if has_own(cls, "setup_context") else call.args[1:]


def has_own(cls: Any, name: str) -> bool:
    """Whether the class itself defines a static method."""
    return getattr(cls, name) is not getattr(Function, name) and getattr(cls, name) is not getattr(FunctionBase, name, None)


def entangled(x: Any, level: Level) -> bool:
    """Whether the levels below, or autograd of the payloads, differentiate a value."""
    if type(x) is Batched:
        below = x._payload
        if x._level is not level and x.requires_grad:
            return True
        return below.requires_grad or entangled(below, level)
    if type(x) is Dual:
        return x._tangent is not None or x.requires_grad or x._primal.requires_grad or entangled(x._primal, level)
    return isinstance(x, Tensor) and x.requires_grad


@contextlib.contextmanager
def below(level: Any) -> Iterator[None]:
    """The modes from the top down to `level` taken off for a while."""
    taken = []
    while not taken or getattr(taken[-1], "newest", None) is None or taken[-1].newest() is not level.newest():
        taken.append(pop_mode(None))
    try:
        yield
    finally:
        for mode in reversed(taken):
            push_mode(mode)


def interpret(cls: Any, level: Any, args: tuple[Any, ...]) -> Any:
    """The result of a call as values of `level`, from calls on what is below."""
    if isinstance(level, BatchLevel):
        return interpret_batch(cls, level, args)
    return interpret_dual(cls, level, args)


# -- forward mode -------------------------------------------------------------------------------------------------


class _Apply:
    """A class as an operator, for the rule that transposes its reverse mode."""

    namespace = "aten"

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.once = getattr(cls, "once", False)

    def name(self) -> str:
        return self.cls.__name__

    def __call__(self, *args: Any) -> Any:
        return self.cls.apply(*args)


def interpret_dual(cls: Any, level: Any, args: tuple[Any, ...]) -> Any:
    """Value and tangent by the class's own `jvp`, or by transposing its `backward`."""
    primals = [a._primal if type(a) is Dual and a._level is level else a for a in args]
    tangents = [a._tangent if type(a) is Dual and a._level is level else None for a in args]
    moving = any(t is not None for t in tangents) and not (level.suspended or user_stopped_gradient())
    with below(level):
        primals = lifted(primals, tangents)
        if not moving:
            out, tangent = cls.apply(*primals), None
        elif has_own(cls, "jvp"):
            out = cls.apply(*primals)
            tangent = pushed(cls, primals, tangents, out)
        else:
            out, tangent = from_reverse(_Apply(cls), level, primals, tangents, {})
    if isinstance(out, (tuple, list)):
        moved = tangent if isinstance(tangent, (tuple, list)) else [tangent] * len(out)
        return tuple(
            duals.wrap(level, o, fit(t, o)) if isinstance(o, Tensor) else o for o, t in zip(out, moved, strict=True)
        )
    if isinstance(tangent, (tuple, list)):
        tangent = tangent[0]
    return duals.wrap(level, out, fit(tangent, out)) if isinstance(out, Tensor) else out


def lifted(primals: list[Any], tangents: list[Any]) -> list[Any]:
    """Primals as values of the innermost level that any belongs to, so that a graph to them is one of these values."""
    living = [p._level for p in primals if isinstance(p, Traced)]
    if not living:
        return primals
    top = max(living, key=lambda v: v.depth).newest()

    def own(p: Any) -> bool:
        return isinstance(p, Traced) and p._level.newest() is top

    return [p if t is None or own(p) else top.lift(p) for p, t in zip(primals, tangents, strict=True)]


def fit(tangent: Any, out: Tensor) -> Any:
    """A tangent only where there can be one."""
    return tangent if tangent is not None and (out.is_floating_point() or out.is_complex()) else None


def pushed(cls: Any, primals: list[Any], tangents: list[Any], out: Any) -> Any:
    """The tangent by the class's `jvp`, on a context made from the primals."""
    ctx = Context(tuple(t is not None for t in tangents))
    filled_by(cls, ctx, primals, out)
    if ctx._forward is not None:
        ctx._backward = ctx._forward
    if ctx.materialize_grads:
        tangents = [
            torch.zeros_like(p)
            if t is None and isinstance(p, Tensor) and (p.is_floating_point() or p.is_complex())
            else t
            for p, t in zip(primals, tangents, strict=True)
        ]
    return cls.jvp(ctx, *tangents)


def filled_by(cls: Any, ctx: Any, inputs: list[Any], out: Any) -> Any:
    """Let the class fill a context; what it saved of its own output stands for the output that is returned."""
    if has_own(cls, "setup_context"):
        cls.setup_context(ctx, tuple(inputs), out)
        return out
    again = cls.forward(ctx, *inputs)
    pairs = list(zip(again, out, strict=True)) if isinstance(again, (tuple, list)) else [(again, out)]

    def real(t: Any) -> Any:
        return next((o for a, o in pairs if a is t), t)

    ctx._backward = tuple(real(t) for t in ctx._backward)
    ctx._forward = None if ctx._forward is None else tuple(real(t) for t in ctx._forward)
    ctx._non_differentiable = tuple(real(t) for t in ctx._non_differentiable)
    return out


# -- batching -----------------------------------------------------------------------------------------------------


def interpret_batch(cls: Any, level: Any, args: tuple[Any, ...]) -> Any:
    """By the class's own `vmap`, or by a class that maps its `forward`, `backward` and `jvp`."""
    flags = [type(a) is Batched and a._level is level and a._mapped for a in args]
    payloads = [a._payload if type(a) is Batched and a._level is level else a for a in args]
    if not any(flags):
        with below(level):
            return wrapped_all(level, cls.apply(*payloads), False)
    if has_own(cls, "vmap"):
        info = VmapInfo(level.size, level.randomness)
        with below(level):
            out, out_dims = cls.vmap(info, tuple(0 if f else None for f in flags), *payloads)
            return placed(level, out, out_dims)
    with below(level):
        made = mapped_class(cls, level.size, level.randomness, flags)
        try:
            out = made.apply(*payloads)
        except _LanesDisagree:
            out = run_lanes(_Apply(cls), level, payloads, flags, {})
    return wrapped_all(level, out, True)


def wrapped_all(level: Any, out: Any, mapped: bool) -> Any:
    """Every tensor of a result as a value of the level."""
    if isinstance(out, (tuple, list)):
        return tuple(wrapped_all(level, o, mapped) for o in out)
    return batching.wrap(level, out, mapped) if isinstance(out, Tensor) else out


def placed(level: Any, out: Any, dims: Any) -> Any:
    """The result of a class's own `vmap`, by the out_dims it returned."""
    if isinstance(out, (tuple, list)):
        dims = dims if isinstance(dims, (tuple, list)) else [dims] * len(out)
        return tuple(placed(level, o, d) for o, d in zip(out, dims, strict=True))
    if not isinstance(out, Tensor):
        return out
    if isinstance(dims, (tuple, list)):
        dims = dims[0]
    return batching.wrap(level, out if dims in (None, 0) else out.movedim(dims, 0), dims is not None)


class _LanesDisagree(Exception):
    """Lanes took different paths inside a mapped class: it is run lane by lane instead."""


class _Running(contextlib.AbstractContextManager):
    """A level of its own for the body of a mapped class."""

    def __init__(self, level: BatchLevel) -> None:
        self.level = level

    def __enter__(self) -> BatchLevel:
        self.level.start()
        return self.level

    def __exit__(self, *_: Any) -> None:
        self.level.stop()

    def check(self) -> None:
        if self.level.successor is not None:
            raise _LanesDisagree


def mapped_class(cls: Any, size: int, randomness: str, flags: list[bool]) -> Any:
    """A class over payloads whose `forward` maps that of `cls`, and whose `backward` and `jvp` map its own."""

    class Mapped(Function):
        @staticmethod
        def forward(ctx: Any, *payloads: Any) -> Any:
            running = _Running(BatchLevel(size, randomness))
            inner = Context(tuple(ctx.needs_input_grad))
            with running as level:
                inputs = [batching.wrap(level, p, True) if f else p for p, f in zip(payloads, flags, strict=True)]
                if has_own(cls, "setup_context"):
                    out = cls.forward(*inputs)
                    cls.setup_context(inner, tuple(inputs), out)
                else:
                    out = cls.forward(inner, *inputs)
                running.check()
                outs = list(out) if isinstance(out, (tuple, list)) else [out]
                raw = [spread(level, o) for o in outs]
                known = {id(i): p for i, p in zip(inputs, payloads, strict=True)} | {
                    id(o): r for o, r in zip(outs, raw, strict=True)
                }
                ctx.kept = Kept(level, inner, known)
            ctx.save_for_backward(*ctx.kept.backward)
            if ctx.kept.forward is not None:
                ctx.save_for_forward(*ctx.kept.forward)
            plain = [r for o, r in zip(outs, raw, strict=True) if any(o is n for n in inner._non_differentiable)]
            if plain:
                ctx.mark_non_differentiable(*plain)
            ctx.set_materialize_grads(inner.materialize_grads)
            return tuple(raw) if isinstance(out, (tuple, list)) else raw[0]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            running = _Running(ctx.kept.level)
            with adopted(), running as level:
                inner = ctx.kept.context(level, ctx.saved_tensors)
                given = [batching.wrap(level, g, True) if isinstance(g, Tensor) else g for g in grads]
                out = cls.backward(inner, *given)
                running.check()
                full = [spread(level, g) for g in (out if isinstance(out, (tuple, list)) else (out,))]
            return tuple(g if f or not isinstance(g, Tensor) else g.sum(0) for g, f in zip(full, flags, strict=False))

    if has_own(cls, "jvp"):

        def jvp(ctx: Any, *tangents: Any) -> Any:
            running = _Running(ctx.kept.level)
            with running as level:
                inner = ctx.kept.context(level, ctx.saved_tensors)
                moved = [
                    batching.wrap(level, t, f) if isinstance(t, Tensor) else t
                    for t, f in zip(tangents, flags, strict=True)
                ]
                out = cls.jvp(inner, *moved)
                running.check()
                if isinstance(out, (tuple, list)):
                    return tuple(spread(level, o) for o in out)
                return spread(level, out)

        Mapped.jvp = staticmethod(jvp)  # type: ignore[assignment]
    Mapped.__name__ = f"Mapped{cls.__name__}"
    return Mapped


def spread(level: Any, o: Any) -> Any:
    """The payload of an output, one for each lane."""
    if not isinstance(o, Tensor):
        return o
    if type(o) is Batched and o._level is level:
        if o._mapped:
            return o._payload
        o = o._payload
    return o.unsqueeze(0).expand(level.size, *o.shape)


class Kept:
    """What a class saved while it was mapped: payloads, to be wrapped again for its `backward`."""

    def __init__(self, level: Any, ctx: Context, known: dict[int, Any]) -> None:
        def lowered(t: Any) -> tuple[Any, bool]:
            if type(t) is Batched and t._level is level:
                return known.get(id(t), t._payload), t._mapped
            return t, False

        backward = [lowered(t) for t in ctx._backward]
        forward = None if ctx._forward is None else [lowered(t) for t in ctx._forward]
        self.backward = [t for t, _ in backward]
        self.forward = None if forward is None else [t for t, _ in forward]
        self.flags = [f for _, f in backward]
        self.needs_input_grad = ctx.needs_input_grad
        self.level = level  # put on again for `backward` and `jvp`: whatever else the class remembers are values of it
        self.attributes = {k: v for k, v in vars(ctx).items() if k not in vars(Context())}

    def context(self, level: Any, saved: Any) -> Context:
        """A context whose saved tensors are values of `level`."""
        ctx = Context(self.needs_input_grad)

        def lifted(t: Any, f: bool) -> Any:
            return batching.wrap(level, t, True) if f else t

        ctx._backward = tuple(lifted(t, f) for t, f in zip(saved, self.flags, strict=True))
        vars(ctx).update(self.attributes)
        return ctx


# -- reverse mode recorded on traced values themselves -----------------------------------------------------------------


def hybrid(cls: Any, level: Any) -> Any:
    """A class for traced values that require grad: forward by levels, backward the user's own on the traced values."""

    class Hybrid(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            with torch.enable_grad():
                out = interpret(cls, level, args)
                inner = Context(tuple(ctx.needs_input_grad))
                filled_by(cls, inner, list(args), out)
            ctx.save_for_backward(*inner._backward)
            ctx.inner = inner
            inner._backward = ()
            if inner._non_differentiable:
                ctx.mark_non_differentiable(*inner._non_differentiable)
            ctx.set_materialize_grads(inner.materialize_grads)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            inner = ctx.inner
            inner._backward = ctx.saved_tensors
            try:
                with adopted():
                    return cls.backward(inner, *grads)
            finally:
                inner._backward = ()

    Hybrid.__name__ = f"Hybrid{cls.__name__}"
    return Hybrid


install()
