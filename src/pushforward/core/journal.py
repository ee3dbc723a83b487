"""What was in memory from before an attempt when it wrote there: an attempt that is given up leaves no trace.

A short way is given up where the function turns out to look at its graph, and the function runs again. A counter or a
running mean that it keeps in a captured tensor, an input that it changes in place, or a buffer of the function around it
must then be as it was, and so must the generators of random numbers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from .level import THREAD
from .torch_private import BelowAutograd, NoDispatch, no_modes
from .traced import NeedsGraph, Traced

Tensor = torch.Tensor


class attempt(contextlib.AbstractContextManager):
    """A run that may be given up: what it wrote into gets its old values back if it is, by an exception of such a class."""

    __slots__ = ("before", "by")

    def __init__(self, by: type[BaseException] = NeedsGraph) -> None:
        self.by = by

    def __enter__(self) -> None:
        self.before: list[tuple[Any, Any]] = []  # (plain tensor, its old values) or (what undoes a write, the value written to)
        THREAD.attempts.append(self.before)

    def __exit__(self, kind: Any, *_: Any) -> None:
        THREAD.attempts.pop()
        if kind is not None and self.before and issubclass(kind, self.by):
            for target, copy in reversed(self.before):
                if isinstance(target, Tensor):
                    with NoDispatch(), BelowAutograd():
                        target.copy_(copy)
                else:
                    target()


def about_to_write(target: Any) -> None:
    """Keep what a plain tensor holds, for the attempts that are running."""
    if not isinstance(target, Tensor) or isinstance(target, Traced) or target.layout is not torch.strided:
        return
    for before in THREAD.attempts:
        if all(known is not target for known, _ in before):
            with NoDispatch(), BelowAutograd():
                before.append((target, target.clone()))


def about_to_draw(generator: Any) -> None:
    """Keep the state of a generator, for the attempts that are running."""
    for before in THREAD.attempts:
        if all(known is not generator for _, known in before):
            with no_modes():
                before.append((functools.partial(put_back, generator, generator.get_state()), generator))


def put_back(generator: Any, state: Tensor) -> None:
    """Let a generator draw again what it drew."""
    with no_modes():
        generator.set_state(state)


def about_to_write_value(value: Any, state: Any, back: Callable[[Any], None]) -> None:
    """Keep the state of a value of the level in which an attempt runs: `back(state)` is called if it is given up.

    `state` is made only for values that the attempt has not met; a value of its own is given back to nobody.
    """
    shared = value if value._cell is None else value._cell
    fresh = [before for before in THREAD.attempts if all(known is not shared for _, known in before)]
    if fresh:
        kept = state()
        for before in fresh:
            before.append((functools.partial(back, kept), shared))
