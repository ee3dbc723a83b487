"""Transforms under `torch.compile`: a graph break, and eager execution inside.

The compiler would otherwise trace the interpreters operator by operator, for minutes, and differentiate compiled
pieces twice, which it refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .torch_private import SKIP_RECURSIVELY, set_code_exec_strategy

F = TypeVar("F", bound=Callable[..., Any])
_DONE: set[int] = set()  # identities: equal code is not the same code


def opaque(function: F) -> F:
    """Mark a function as one that `torch.compile` calls and does not look into; calls cost nothing more for it."""
    code = id(function.__code__)
    if code not in _DONE:
        _DONE.add(code)
        return made_opaque(function)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def made_opaque(function: F) -> F:
    """As `opaque`, for a function whose code does not live as long as the process."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    set_code_exec_strategy(function.__code__, SKIP_RECURSIVELY)
    return function
