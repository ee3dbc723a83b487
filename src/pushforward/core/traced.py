"""Traced values: tensors that carry a payload for a level.

A traced value is a real tensor without storage, so modules, hooks and the autograd engine see nothing unusual. Its operators
reach the level by dispatch; calls of the Python API pass `__torch_function__` first, where the fast paths live and where
the user's own `.detach()` is told from the engine's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .cell import Cell, Path
from .errors import REFUSALS, EscapedValueError, TransformError
from .level import THREAD
from .opaque import opaque
from .source import source_line
from .torch_private import NoFunction, make_wrapper, set_conj, set_neg, tree_leaves

# What the Python API calls mean for traced values: filled by the interpreters and by `ops.api`.
SPECIAL: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any] | None], Any]] = {}


class _Held(threading.local):
    levels = 0


HELD = _Held()  # how many levels of this thread are held by the fast path of the level above


class NeedsGraph(BaseException):
    """The graph of a value was looked at where only that of its payload is recorded: the transform starts again."""

    def __init__(self, level: Any = None) -> None:
        super().__init__()
        self.level = level
        REFUSALS.count += 1

    def began_in(self, settings: Any) -> bool:
        """Whether the level in question is one of the call with these settings, which can start again."""
        return self.level is not None and self.level.settings is settings and not self.level.open_graph


class TooLarge(BaseException):
    """A run that was tried is given up: a value has more elements than it should (see `Level.most`), or it does what it may not."""

    def __init__(self) -> None:
        super().__init__()
        REFUSALS.count += 1


def give_up_if_caught(before: int) -> None:
    """Give up a run in which the user's code caught an error of ours, since `REFUSALS.count` was `before`: it may have gone astray."""
    if REFUSALS.count != before:
        raise TooLarge


class NotFast(Exception):
    """A level above computes by its fast path, and this operator has none: the long way must be taken."""


NO_PLAN = object()  # of a call that has no plan
UNPLANNED: Any = object()  # the form of a value whose calls have none, see `plans.describe`
PLANNED: Any = None  # `plans.replay.planned`


def long_way(func: Any, args: Any, kwargs: Any) -> Any:
    """A call of the Python API by what it means for traced values, or by dispatch."""
    special = SPECIAL.get(func)
    with NoFunction():
        if special is not None:
            out = special(func, args, kwargs)
            if out is not NotImplemented:
                return out
        return func(*args, **kwargs) if kwargs else func(*args)


class Traced(torch.Tensor):
    """A value of a running transform; its subclasses say what the payload is."""

    _level: Any
    _cell: Cell | None = None
    _path: Path = None
    _fast: ClassVar[dict[Any, Callable[[Any, tuple[Any, ...]], Any]]] = {}  # short ways by function: a result, or None
    _named: ClassVar[dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]]] = {}  # those that take keywords

    @classmethod
    @opaque
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fast = cls._fast.get(func)
        if fast is not None and not kwargs:
            out = fast(func, args)
            if out is None and cls._renewed(args):
                out = fast(func, args)
            if out is not None:
                return out
        named = cls._named.get(func)
        if named is not None and args:
            out = named(func, args, kwargs or {})
            if out is not None:
                return out
        if HELD.levels:
            raise NotFast
        if kwargs and kwargs.get("requires_grad"):
            for v in args:
                if isinstance(v, Traced):
                    v._level.newest().tracked = True
        if PLANNED is not None:
            out = PLANNED(func, args, kwargs, long_way)
            if out is not NO_PLAN:
                return out
        return long_way(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Reached only where no level took the operator: the value has outlived its transform."""
        values = [v for v in tree_leaves((args, kwargs or {})) if isinstance(v, Traced)]  # pyright: ignore[reportAttributeAccessIssue]
        for v in values:
            in_this_thread(v, func.name())
        if all(v._level.alive for v in values) and any(v._level.payload_graphs for v in values):
            raise NeedsGraph
        return max(values, key=lambda v: v._level.alive is False)._escaped(func, args, kwargs or {})

    @classmethod
    def _renewed(cls, args: Any) -> bool:
        """Whether arguments were out of date, which keeps them from the short ways, and are not any more."""
        del args
        return False

    def _escaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        del args, kwargs
        raise EscapedValueError(
            f"`{func.name()}` was called on a value made in the {self._level.where}, which has ended. Return the value from the "
            "function instead of keeping it outside."
        )

    def __deepcopy__(self, memo: Any) -> Any:
        from .constructors import copied

        wanted = self.requires_grad and self.is_leaf
        memo[id(self)] = made = copied(self, requires_grad=wanted, how="copy.deepcopy(x)")
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        with NoFunction():
            return self._describe()

    def _below(self) -> torch.Tensor:
        """The value of the next level down."""
        raise TypeError(type(self).__name__)

    def _alias(self) -> Any:
        """Another value over the same payload, which autograd does not know yet."""
        raise TypeError(type(self).__name__)

    def _stopped(self) -> torch.Tensor:
        """The value without derivatives of any level."""
        raise TypeError(type(self).__name__)

    def _describe(self) -> str:
        raise TypeError(type(self).__name__)

    def __format__(self, spec: str) -> str:
        """The number in a format, which is read as by `.item()`; without one the text that shows all there is, and asks nothing."""
        if not spec and (self.dim() or not is_plain(self)):
            return repr(self)
        if self.dim():
            msg = "unsupported format string passed to Tensor.__format__"
            raise TypeError(msg)
        return format(self.item(), spec)


def is_plain(x: torch.Tensor | None) -> bool:
    """Whether a value is the same in all lanes and has no tangent."""
    while isinstance(x, Traced):
        x = x._level.outside(x)
    return x is not None


def in_this_thread(x: Traced, name: str) -> None:
    """`TransformError` if a running transform of another thread made a value."""
    level = x._level.newest()
    if level.alive and level not in THREAD.levels:
        raise TransformError(
            f"`{name}` was called at {source_line()} on a value of the {level.where}, which runs in another thread. "
            "A transform follows what its own thread does: give other threads plain tensors, or call the transform in each of them."
        )


def wrap_like(cls: Any, payload: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> Any:
    """A wrapper of class `cls` that reports `size` and `stride`, with the dtype, device and lazy bits of `payload`."""
    if payload.layout is not torch.strided:
        return make_wrapper(cls, size, dtype=payload.dtype, device=payload.device, layout=payload.layout)
    if offset:
        made = make_wrapper(cls, size, stride, offset, dtype=payload.dtype, device=payload.device)
    else:
        made = make_wrapper(cls, size, stride, dtype=payload.dtype, device=payload.device)
    return made


def copy_lazy_bits(made: torch.Tensor, payload: torch.Tensor) -> None:
    """Give a wrapper its payload's lazy conjugation and negation (only views can have them)."""
    if payload.is_conj():
        set_conj(made, True)
    if payload.is_neg():
        set_neg(made, True)
