"""What calls of `vmap` did: into how many groups their lanes fell, where, and how many runs it took."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from .lanes import Split


@dataclass
class CallReport:
    """One call: the lanes each run began with, those it gave results for, and where lanes disagreed."""

    name: str
    size: int
    runs: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)


@dataclass
class Padding:
    """What filling lanes up to one size cost: elements that hold data, and all elements."""

    name: str
    used: int
    total: int

    @property
    def waste(self) -> float:
        """The share of elements that hold no data."""
        return 1 - self.used / self.total if self.total else 0.0


class Report:
    """What the calls of `vmap` in a block did; `print(report)` says it in words."""

    def __init__(self) -> None:
        self.calls: list[CallReport] = []
        self.paddings: list[Padding] = []

    def add(self, call: CallReport) -> None:
        """Keep one more call."""
        self.calls.append(call)

    @property
    def runs(self) -> int:
        """How often mapped functions ran, over all calls."""
        return sum(len(call.runs) for call in self.calls)

    @property
    def groups(self) -> int:
        """Into how many groups lanes fell, over all calls."""
        return sum(len(call.groups) for call in self.calls)

    @property
    def splits(self) -> list[Split]:
        """Where lanes disagreed, over all calls."""
        return [split for call in self.calls for split in call.splits]

    def __str__(self) -> str:
        lines = []
        for call in self.calls:
            runs = "run" if len(call.runs) == 1 else "runs"
            lines.append(
                f"vmap({call.name}): {call.size} lanes, {len(call.runs)} {runs}, groups of {short(call.groups)}"
            )
            lines += [f"  {split.where}: {short(split.sizes)}" for split in call.splits]
        lines += [f"vmap({p.name}): padded, {p.waste:.0%} of {p.total} elements hold no data" for p in self.paddings]
        return "\n".join(lines) or "no vmap was called"


def short(sizes: list[int] | tuple[int, ...]) -> str:
    """A list of group sizes, cut after eight."""
    return ", ".join(map(str, sizes[:8])) + (f", … ({len(sizes)} groups)" if len(sizes) > 8 else "")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[Report] = []


_THREAD = _Thread()


def reports() -> list[Report]:
    """The reports that are being written, the innermost last."""
    return _THREAD.stack


@contextlib.contextmanager
def report() -> Iterator[Report]:
    """A block whose calls of `vmap` are reported.

    Example:
        >>> import torch, pushforward as pf
        >>> f = lambda x: x.sin() if x.sum() > 0 else x.cos()
        >>> with pf.report() as r:
        ...     _ = pf.vmap(f)(torch.tensor([[1.0], [-1.0], [2.0]]))
        >>> r.runs, r.splits[0].sizes
        (2, (2, 1))
    """
    made = Report()
    _THREAD.stack.append(made)
    try:
        yield made
    finally:
        _THREAD.stack.remove(made)
