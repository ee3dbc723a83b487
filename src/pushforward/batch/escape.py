"""Mapped values that outlive their `vmap`: the stack of their lanes stands for them."""

from __future__ import annotations

from typing import Any

from ..core.errors import EscapedValue
from ..core.source import warn
from ..core.torch_private import no_modes
from ..core.tree import tree_map


def call_on_payloads(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator on the payloads of values whose `vmap` has ended, with a warning."""
    from .level import Batched

    warn(
        f"`{func.name()}` was called on a mapped value after its vmap had ended: the stack of its lanes stands for it. "
        "Return the value from the mapped function instead.",
        EscapedValue,
    )

    def payload(value: Any) -> Any:
        while isinstance(value, Batched) and not value._level.alive:
            value = value._payload
        return value

    args, kwargs = tree_map(payload, (args, kwargs))
    with no_modes():
        return func(*args, **kwargs)
