"""Slow fallbacks are said once per operator."""

from __future__ import annotations

from .errors import SlowFallback
from .level import THREAD
from .source import warn

_SAID: set[tuple[str, str]] = set()


def say_slow(name: str, what: str) -> None:
    """Warn of a slow fallback, once per operator."""
    THREAD.unrepeatable += 1
    if (name, what) not in _SAID:
        warn(f"slow fallback: `{name}` {what}", SlowFallback)
        _SAID.add((name, what))  # after the warning, so that as an error it is raised every time
