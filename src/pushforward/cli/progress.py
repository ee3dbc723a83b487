"""Progress of long work, on standard error: a bar with rich on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")

QUIET_SECONDS = 2.0
SECONDS_BETWEEN_LINES = 5.0


def track(items: Iterable[T], label: str, total: int, weight: int = 1) -> Iterator[T]:
    """Yield `items`, and show how far the work is once it has taken two seconds.

    Args:
        items: what is worked on, in steps.
        label: what the work is, for a person.
        total: units of work in all.
        weight: units in one item (the last may be smaller).
    """
    start = time.perf_counter()
    display: _Display | None = None
    done = 0
    try:
        for item in items:
            yield item
            done = min(done + weight, total)
            seconds = time.perf_counter() - start
            if display is None and seconds >= QUIET_SECONDS and done < total:
                display = _display(label, total)
            if display is not None:
                display.update(done, seconds)
    finally:
        if display is not None:
            display.close()


class _Display(Protocol):
    def update(self, done: int, seconds: float) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """A line of plain text every few seconds, for logs and pipes."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._next = 0.0

    def update(self, done: int, seconds: float) -> None:
        if seconds < self._next or done == self._total:
            return
        self._next = seconds + SECONDS_BETWEEN_LINES
        left = seconds * (self._total - done) / done
        print(f"{self._label}: {done} of {self._total}, about {left:.0f} s left", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to put away: the lines stay."""


def _display(label: str, total: int) -> _Display:
    if not sys.stderr.isatty():
        return _Lines(label, total)
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return _Lines(label, total)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(label, total=total)
    progress.start()

    class Bar:
        """A bar that goes away when the work is done."""

        def update(self, done: int, seconds: float) -> None:  # noqa: ARG002
            progress.update(task, completed=done)

        def close(self) -> None:
            progress.stop()

    return Bar()
