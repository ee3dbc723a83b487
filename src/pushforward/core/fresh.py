"""Values to differentiate by, and the user's own `.detach()`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from . import tree
from .errors import TransformError
from .level import THREAD, Level
from .source import source_line
from .torch_private import NoFunction, mode_count, no_modes, own_duals, top_mode
from .traced import SPECIAL, Traced, in_this_thread

Tensor = torch.Tensor


def fresh(x: Tensor) -> Tensor:
    """`x` as a new variable: connected to what `x` depends on, and distinct from it.

    `detach` of a traced value called here reaches dispatch, where it is an alias that keeps tangents and the payload's graph.
    """
    if isinstance(x, Traced):
        mark_tracked(x)
        with NoFunction():
            if not (x.requires_grad and torch.is_grad_enabled()):  # under no_grad a view would be a constant
                return x._alias().requires_grad_()  # pyright: ignore[reportAttributeAccessIssue]
            return x.view_as(x)
    with NoFunction():
        return x.view_as(x) if x.requires_grad and torch.is_grad_enabled() else x.detach().requires_grad_()


def variable(x: Tensor) -> Tensor:
    """As `fresh`, for code of the user's: inside a transform the variable is a value of the innermost level.

    What the level computes with it is then recorded once, on the level's values, and not on the payloads besides.
    """
    levels = THREAD.levels
    if not levels:
        return fresh(x)
    top = levels[-1] if mode_count() == levels[-1].depth and levels[-1].clear else top_mode()
    top = top.newest() if isinstance(top, Level) else None
    if top is None or (isinstance(x, Traced) and x._level.newest() is top):
        return fresh(x)
    with NoFunction():
        if x.layout is not torch.strided or x.is_conj() or x.is_neg():
            return fresh(x)
        top.tracked = True
        return top.lift(x).requires_grad_()


def mark_tracked(x: Any) -> None:
    """Close the fast paths of a value's level: from now on a value of it may require grad."""
    if isinstance(x, Traced):
        x._level.newest().tracked = True


def released(x: Tensor) -> Tensor:
    """`x` without its own graph; tangents and the graphs of the payload stay."""
    with NoFunction():
        return x.detach()


def stopped(x: Tensor) -> Tensor:
    """What the user means by `x.detach()`: no derivative of any level passes."""
    if isinstance(x, Traced):
        return x._stopped()  # pyright: ignore[reportAttributeAccessIssue]
    return x.detach() if x.requires_grad or own_duals._current_level >= 0 else x


class recording_possible(contextlib.ExitStack):
    """Inference mode off, where it is on: nothing is recorded in it, so that every gradient would be zero."""

    def __enter__(self) -> Any:
        enabled = torch.is_grad_enabled()
        self.enter_context(torch.inference_mode(False))
        self.enter_context(torch.set_grad_enabled(enabled))
        return self

    def __call__(self, values: Any) -> Any:
        """Arguments with copies of the tensors that can be saved for no backward pass."""
        return tree.map_leaves(lambda x: x.clone() if isinstance(x, Tensor) and x.is_inference() else x, values)


def give_back(given: Tensor, root: Tensor, keep: bool) -> None:
    """What a function wrote into its argument, where a differentiation had put a value of its own in the argument's place."""
    with torch.set_grad_enabled(keep and torch.is_grad_enabled()):
        given.copy_(root if keep else root.detach())


def _detach(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    del func, kwargs
    return stopped(args[0])


def _detach_in_place(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """`x.detach_()`: the value itself becomes what `x.detach()` is."""
    x = args[0]
    THREAD.unrepeatable += 1
    made = x._stopped()
    for name in ("_payload", "_mapped", "_primal", "_tangent", "_cell", "_path"):
        if hasattr(made, name):
            setattr(x, name, getattr(made, name))
    x._meta = x._form = None
    if x._cell is not None:
        x._cell.add(x)
    return func(x, **(kwargs or {})) if x.requires_grad else x


def _set_data(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """`x.data = y`: the memory of a value would be another's, and what is computed with it would not know."""
    del func, args, kwargs
    msg = "`x.data = y` on a value of a transform: write the numbers into it, `x.data.copy_(y)`, or make a new value of them"
    raise TransformError(msg)


class Reading:
    """A method that reads a tensor's numbers, named like an operator."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def name(self) -> str:
        """As operators say it."""
        return f"Tensor.{self.method.__name__}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Read them."""
        return self.method(*args, **kwargs)


def _tolist(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    x = args[0]
    in_this_thread(x, "Tensor.tolist")
    return x._level.inspect(x) if x._level.newest().alive else x._escaped(Reading(func), args, kwargs or {})


def _numpy(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    import numpy

    x = args[0]
    in_this_thread(x, "Tensor.numpy")
    if not x._level.newest().alive:
        return x._escaped(Reading(func), args, kwargs or {})
    dtype = (kwargs or {}).get("dtype") if len(args) < 2 else args[1]
    with no_modes():
        kind = torch.empty(0, dtype=x.dtype).numpy().dtype if x.dtype is not torch.bfloat16 else numpy.float32
    made = numpy.array(x._level.inspect(x), dtype=kind).reshape(tuple(x.shape))
    return made if dtype is None else made.astype(dtype)


def _shared(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """`__dlpack__`: others would write into, or keep, memory that a value of a transform has not."""
    del args, kwargs
    msg = f"`{func.__name__}` at {source_line()} would share the memory of a value of a transform, which has none of its own"
    raise TransformError(f"{msg}: convert what the transform returns")


def _pinned(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    x, *rest = args
    while isinstance(x, Traced):
        x = x._below()
    with no_modes():
        return func(x, *rest, **(kwargs or {}))


def _requires_grad(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    mark_tracked(args[0])
    return func(*args, **(kwargs or {}))


SPECIAL[Tensor.requires_grad_] = _requires_grad
SPECIAL[Tensor.requires_grad.__set__] = _requires_grad  # type: ignore[attr-defined]
SPECIAL[Tensor.detach] = _detach
SPECIAL[torch.detach] = _detach
SPECIAL[Tensor.detach_] = _detach_in_place
SPECIAL[Tensor.data.__get__] = _detach  # type: ignore[attr-defined]
SPECIAL[Tensor.data.__set__] = _set_data  # type: ignore[attr-defined]
SPECIAL[Tensor.tolist] = _tolist
SPECIAL[Tensor.numpy] = _numpy
SPECIAL[Tensor.__array__] = _numpy
SPECIAL[Tensor.__dlpack__] = _shared
SPECIAL[Tensor.__dlpack_device__] = _shared
SPECIAL[Tensor.is_pinned] = _pinned
