"""Progress of long work, on standard error: a bar with rich on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

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
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import track as rich_track
        except ImportError:
            pass
        else:
            steps = -(-total // weight)
            yield from rich_track(items, label, total=steps, console=Console(stderr=True), transient=True)
            return
    yield from _plain(items, label, total, weight)


def _plain(items: Iterable[T], label: str, total: int, weight: int) -> Iterator[T]:
    start = time.perf_counter()
    said = start + QUIET_SECONDS - SECONDS_BETWEEN_LINES
    done = 0
    for item in items:
        yield item
        done = min(done + weight, total)
        now = time.perf_counter()
        if now - said >= SECONDS_BETWEEN_LINES and done < total:
            said = now
            left = (now - start) * (total - done) / done
            print(f"{label}: {done} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True)
