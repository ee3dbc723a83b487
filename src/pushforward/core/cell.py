"""Cells: what a value and its views share, so that a write through one is seen by all.

Views of payloads are real views, so most writes need nothing. A write that *promotes* (a mapped value into an unmapped
buffer, a tangent into a value without one, a value that requires grad into one that does not) gives the cell a new root, and
every living view is made again from it by its path of view operators.
"""

from __future__ import annotations

import weakref
from typing import Any

Step = tuple[Any, tuple[Any, ...], dict[str, Any], int | None]
Path = tuple["Path", Step] | None  # linked: the parent's path and the last view operator


STOP = "stop"  # a step of a path: the user's own detach


class Cell:
    """The root state of one piece of memory, and the traced values that look at it."""

    __slots__ = ("borrowed", "loose", "members", "root")

    def __init__(self, base: Any, root: Any, *, borrowed: bool = True, loose: bool = False) -> None:
        self.root = root
        self.loose = loose  # a primal that the levels below do not know as theirs, see `forward.fast`
        self.borrowed = borrowed  # the tangent may belong to others too: a write must not reach it
        self.members: list[weakref.ref[Any]] = [weakref.ref(base)]

    def add(self, view: Any) -> None:
        """Let `view` be refreshed with the others."""
        members = self.members
        n = len(members)
        if n >= 64 and not n & (n - 1):
            members[:] = [ref for ref in members if ref() is not None]
        members.append(weakref.ref(view))

    def living(self) -> list[Any]:
        """The members that still exist."""
        return [value for ref in self.members if (value := ref()) is not None]


def steps(path: Path) -> list[Step]:
    """The view operators of a path, from the root on."""
    found = []
    while path is not None:
        path, step = path
        found.append(step)
    return found[::-1]
