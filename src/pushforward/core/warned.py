"""Warnings of a thread, heard before they are shown: by whoever runs a function more than once, or records it.

Python shows every warning by `warnings.showwarning`, which anybody may replace and put back at any time. So what stands there is a
new object each time that somebody begins to listen, which keeps what stood there before it, and hands everything on once nobody
listens any more.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Listener = Callable[
    [Any, Any, str, int], bool
]  # told of message, category, file and line; whether nobody else shall hear


class _Listeners(threading.local):
    def __init__(self) -> None:
        self.stack: list[Listener] = []


_LISTENERS = _Listeners()
_LOCK = threading.Lock()


class Hook:
    """What stands in the place of `warnings.showwarning`."""

    users = 0  # in all threads
    current: Hook | None = None  # while there are any

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        """Show a warning, unless a listener of this thread wants it kept back."""
        if self is Hook.current and any([heard(message, category, filename, lineno) for heard in _LISTENERS.stack]):
            return
        self.before(message, category, filename, lineno, file, line)


def listen(listener: Listener) -> None:
    """Be told of every warning of this thread from now on."""
    with _LOCK:
        _LISTENERS.stack.append(listener)
        Hook.users += 1
        if Hook.users == 1:
            before: Any = warnings.showwarning
            while type(before) is Hook:  # somebody put back what stood there while we listened
                before = before.before
            Hook.current = Hook(before)
            warnings.showwarning = Hook.current


def unlisten(listener: Listener) -> None:
    """Be told no more."""
    with _LOCK:
        _LISTENERS.stack.remove(listener)
        Hook.users -= 1
        if not Hook.users:
            if warnings.showwarning is Hook.current and Hook.current is not None:
                warnings.showwarning = Hook.current.before
            Hook.current = None


@contextlib.contextmanager
def kept_back() -> Iterator[None]:
    """Meanwhile no warning of this thread is shown."""

    def keep(*_: object) -> bool:
        return True

    listen(keep)
    try:
        yield
    finally:
        unlisten(keep)
