"""What was in memory from outside before an attempt wrote into it: an attempt that is given up leaves no trace.

A short way is given up where the function turns out to look at its graph, and the function runs again. A counter or a
running mean that it keeps in a captured tensor, or an input that it changes in place, must then be as it was.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from .level import THREAD
from .torch_private import BelowAutograd, NoDispatch
from .traced import NeedsGraph, Traced

Tensor = torch.Tensor


class attempt(contextlib.AbstractContextManager):
    """A run that may be given up: plain tensors that it wrote into get their old values back if it is."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before: list[tuple[Tensor, Tensor]] = []
        THREAD.attempts.append(self.before)

    def __exit__(self, kind: Any, *_: Any) -> None:
        THREAD.attempts.pop()
        if kind is not None and self.before and issubclass(kind, NeedsGraph):
            with NoDispatch(), BelowAutograd():
                for target, copy in reversed(self.before):
                    target.copy_(copy)


def about_to_write(target: Any) -> None:
    """Keep what a plain tensor holds, for the attempts that are running."""
    if not isinstance(target, Tensor) or isinstance(target, Traced) or target.layout is not torch.strided:
        return
    for before in THREAD.attempts:
        if all(known is not target for known, _ in before):
            with NoDispatch(), BelowAutograd():
                before.append((target, target.clone()))
