"""Progress of long chunked work on standard error: one moving line at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

# Work that ends within these seconds shows nothing.
QUIET_SECONDS = 2.0
SECONDS_BETWEEN_LINES = 5.0


def display(total: int) -> Callable[[int, int], None]:
    """A function to be told `(passes done, passes of the last chunk)`."""
    begun = time.perf_counter()
    state = {"next": QUIET_SECONDS}

    def tell(done: int, _: int) -> None:
        seconds = time.perf_counter() - begun
        if seconds < state["next"] or done >= total:
            if seconds > QUIET_SECONDS and done >= total and sys.stderr.isatty():
                sys.stderr.write("\r\033[K")
            return
        left = seconds * (total - done) / max(done, 1)
        text = f"jacobian: {done} of {total} passes, about {left:.0f} s left"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
            state["next"] = seconds + 0.2
        else:
            print(text, file=sys.stderr, flush=True)
            state["next"] = seconds + SECONDS_BETWEEN_LINES

    return tell
