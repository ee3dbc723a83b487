"""Rows of a Jacobian by reverse mode: one backward pass of mapped cotangents.

The engine runs with the level's mode off: what does not depend on the cotangents (the slopes of functions, most of what
a backward pass computes) is computed on plain tensors, and never passes through Python. Operators on the cotangents
still reach the level, because their type sends them there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..core.errors import REFUSALS
from ..core.journal import attempt
from ..core.level import THREAD
from ..core.torch_private import mode_count, pop_mode, push_mode
from ..core.traced import NeedsGraph, TooLarge, give_up_if_caught
from .level import BatchLevel, wrap
from .work import placed, taken_out

Tensor = torch.Tensor


class quietly:
    """A level that runs, and whose mode is off."""

    __slots__ = ("level",)

    def __init__(self, level: BatchLevel) -> None:
        self.level = level

    def __enter__(self) -> BatchLevel:
        self.level.start()
        pop_mode(None)
        self.level.quiet = True
        return self.level

    def __exit__(self, *_: object) -> None:
        self.level.quiet = False
        push_mode(self.level.newest())
        self.level.stop()


def alone() -> bool:
    """Whether no level and no mode is on, so that nobody else has a say in a backward pass."""
    return not THREAD.levels and mode_count() == THREAD.recorders


def pulled_rows(pull: Callable[..., Sequence[Tensor]], seeds: list[Tensor]) -> list[Tensor] | None:
    """`vmap(pull)(*seeds)`, or None where code of the user's in the backward pass needs the level's mode, or lanes disagree in it."""
    size = seeds[0].shape[0]
    level = BatchLevel(size)
    level.divergence = "error"
    refused = REFUSALS.count
    try:
        with attempt(BaseException), quietly(level):
            made = [taken_out(level, g) for g in pull(*[wrap(level, s, True) for s in seeds])]
            give_up_if_caught(refused)
    except (Exception, TooLarge, NeedsGraph):  # it says again what is wrong, if anything is
        return None
    return [placed(size, o, m) for o, m in made]
