"""Levels: one running `vmap` or `jvp` each, and the thread's stack of them.

A level is a dispatch mode, so the stack of modes is the stack of interpreters: while a level handles an operator
its mode is off, and what it calls goes to the next level down.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .errors import TransformError
from .source import place_of
from .torch_private import (
    CONJUGATE_KEY,
    NEGATIVE_KEY,
    ZERO_KEY,
    ForceKeys,
    NoDispatch,
    TorchDispatchMode,
    excluded_keys,
    graph_task_id,
    included_keys,
    mode_count,
    modes_above_autograd,
    pop_mode,
    push_mode,
    saved_hooks,
    set_key_excluded,
    top_mode,
)

is_grad_enabled = torch.is_grad_enabled


class _Thread(threading.local):
    def __init__(self) -> None:
        self.levels: list[Level] = []
        self.excluded: Any = None  # autograd's view of the world when the outermost transform began
        self.order = 0  # how many differentiations are running, of either mode
        self.attempts: list[Any] = []  # runs that may be given up, see `core.journal`
        self.most: int | None = None  # what `Level.most` is for levels that start now
        self.unrepeatable = 0  # counts what a plan could not repeat: questions of Python, warnings, loops over lanes
        self.recorders = 0  # modes below all levels that record a whole call and change nothing in it, see `plans.whole`
        self.answered: Any = None  # while a whole call is recorded: what answers questions about truth values, see `plans.ways`
        self.replay = True  # whether calls of transforms may be replayed
        self.reader: Any = None  # while a program is recorded: what gives the Python value of a plain tensor


THREAD = _Thread()


def no_plan() -> None:
    """The operator that runs leaves more behind than its plan would: a list of a whole call's operators has all of it."""
    if not THREAD.recorders:
        THREAD.unrepeatable += 1


_STACKS: dict[Any, Any] = {}


def stack_of(level: Level, below: Any) -> Any:
    """One object for all sequences of levels of these kinds and sizes: `level`, and those that `below` stands for."""
    if type(level.size) is not int:  # a symbol, of a program that is being recorded
        return object()
    key = (type(level), level.size, below)
    found = _STACKS.get(key)
    if found is None:
        if len(_STACKS) >= 1 << 12:
            _STACKS.clear()
        found = _STACKS[key] = object()
    return found


class Level(TorchDispatchMode):
    """A running transform that has traced values of its own.

    `clear` is True while no mode but our own levels is below: the fast paths then know who has a say in an operator. `held` is True
    while the level above computes on values of this one by the fast path, dispatch being off.
    """

    supports_higher_order_operators = True
    name: str  # "vmap" or "jvp"
    size = 0  # lanes, of a `vmap`
    most: int | None = None  # elements of a payload, above which `TooLarge` is raised
    func: Any = None  # the user's function, for messages
    successor: Any = None  # the level that goes on for this one, where lanes have left (see `batch.lanes`)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler costs a microsecond an operator

    def __init__(self) -> None:  # the base class's own bookkeeping is for `with` blocks, which a level does not use
        self.alive = False
        self.clear = False
        self.held = False
        self.complex = False  # a complex value was seen: payloads may be lazily conjugated
        self.depth = 0
        self.stack: Any = None  # kinds and sizes of the levels up to this one, see `stack_of`
        self.suspended = False
        self.quiet = False  # the mode is off while the engine runs, see `batch.rows`
        self.grad_enabled = True
        self.tracked = False  # a value of the level itself may require grad: the fast paths are closed
        self.hidden = False  # what the function captured requires grad, and is recorded on the payloads only
        self.settings: Any = None  # of the call that the level belongs to
        self.open_graph = False  # the function looks at its graph: record it on the values too
        self.payload_graphs = 0  # differentiations that record the payloads only, see `batch.gradient`
        self.saw_grad = False  # a payload required grad: derivatives taken inside must stay differentiable

    def start(self) -> None:
        """Put the level on top of the stack."""
        levels = THREAD.levels
        if not levels:
            THREAD.excluded = excluded_keys()
        self.depth = len(levels) + 1
        self.stack = stack_of(self, levels[-1].stack if levels else None)
        if not levels and modes_above_autograd():
            msg = (
                f"{self.where}: a program is being recorded above autograd (make_fx(pre_dispatch=True), torch.export), where what a "
                "level computes is not seen. Record below autograd, by make_fx without pre_dispatch or by pf.trace."
            )
            raise TransformError(msg)
        self.clear = mode_count() == len(levels) and (not levels or levels[-1].clear)
        self.alive = True
        self.most = THREAD.most
        self.grad_enabled = is_grad_enabled()
        levels.append(self)
        push_mode(self)

    def stop(self) -> None:
        """Take the level off; its values can be read, not computed with."""
        pop_mode(None)
        THREAD.levels.pop()
        self.alive = self.newest().alive = False

    @property
    def where(self) -> str:
        """Which transform of what this is."""
        return f"{self.name} of {place_of(self.func)}" if self.func is not None else f"a {self.name}"

    def newest(self) -> Any:
        """The level that goes on for this one: itself, or its last successor."""
        level = self
        while level.successor is not None:
            level = level.successor
        return level

    def captured_graph(self) -> None:
        """A captured tensor requires grad: closes the short ways only where the function looks at its graph."""
        if self.open_graph:
            self.tracked = True
        else:
            self.hidden = True

    def on_top(self, recorders: int = 0) -> bool:
        """Whether an operator called now reaches this level, and nothing below it has a say or records it (but `recorders`).

        Hooks on saved tensors have a say: they are the user's code, and dispatch must be on where they run.
        """
        return (
            self.alive
            and not self.tracked
            and (self.held or ((self.clear or recorders > 0) and mode_count() == self.depth + recorders))
            and saved_hooks(False) is None
        )


def unseen(level: Level) -> Any:
    """A block of operators that the only level does not see; a recording of the whole call does."""
    return popped(level) if THREAD.recorders else NoDispatch()


@contextlib.contextmanager
def popped(level: Level) -> Iterator[None]:
    """The top level's mode, off."""
    pop_mode(None)
    try:
        yield
    finally:
        push_mode(level.newest())


@contextlib.contextmanager
def taken_off(level: Level) -> Iterator[None]:
    """The modes from the top down to that of `level` taken off for a while: what runs is for the levels below."""
    taken: list[Any] = []
    try:
        while level.newest().alive and (
            not taken or getattr(taken[-1], "newest", lambda: None)() is not level.newest()
        ):
            taken.append(pop_mode(None))
        yield
    finally:
        for mode in reversed(taken):
            push_mode(mode)


@contextlib.contextmanager
def later_levels_off(depth: int) -> Iterator[None]:
    """Only the first `depth` levels left on: for a function that first ran when there were no others."""
    later = THREAD.levels[depth:]
    taken: list[Any] = []
    del THREAD.levels[depth:]
    try:
        while mode_count() and getattr(top_mode(), "newest", lambda: None)() in later:
            taken.append(pop_mode(None))
        yield
    finally:
        for mode in reversed(taken):
            push_mode(mode)
        THREAD.levels += later


class resumed:
    """A level of which the handler is running, or that has ended, put back on top for code that needs it."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def __enter__(self) -> None:
        self.was_alive = self.level.alive
        self.level.alive = True
        THREAD.levels.append(self.level.newest())
        push_mode(self.level)

    def __exit__(self, *_: object) -> None:
        pop_mode(None)
        THREAD.levels.pop()
        self.level.alive = self.level.newest().alive = self.was_alive


def recorded_below(level: Level, constant: torch.Tensor) -> bool:
    """Whether a captured tensor may take a short way: what it requires is then recorded on the payloads only."""
    if not constant.requires_grad or not is_grad_enabled():
        return True
    if level.open_graph:
        return False
    level.hidden = level.saw_grad = True
    return True


def any_complex(args: Any) -> bool:
    """Whether a complex tensor or number is among the arguments, so that lazy conjugation may be about."""
    for a in args:
        kind = type(a)
        if kind is complex or (isinstance(a, torch.Tensor) and a.dtype.is_complex):
            return True
        if (kind is list or kind is tuple) and a and any_complex(a):
            return True
        if kind is torch.dtype and a.is_complex:
            return True
    return False


def lazy_bits_on() -> None:
    """Let payload operators of a handler see lazy conjugation, negation and zeros; dispatch restores its keys afterwards."""
    set_key_excluded(CONJUGATE_KEY, False)
    set_key_excluded(NEGATIVE_KEY, False)
    set_key_excluded(ZERO_KEY, False)


def autograd_on() -> Any:
    """A guard under which operators called by a handler are recorded by autograd again."""
    return ForceKeys(included_keys(), THREAD.excluded)


def user_stopped_gradient() -> bool:
    """Whether the user's `no_grad` is on, and not the one of a running backward pass."""
    return not is_grad_enabled() and graph_task_id() == -1
