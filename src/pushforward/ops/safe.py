"""Decompositions above autograd, where an operator's own reverse formula is not to be trusted at the order asked."""

from __future__ import annotations

import contextlib
from typing import Any

from ..core.level import THREAD


class nested_differentiation(contextlib.AbstractContextManager):  # noqa: N801
    """One more differentiation is running, of either mode."""

    __slots__ = ()

    def __enter__(self) -> None:
        THREAD.order += 1

    def __exit__(self, *_: Any) -> None:
        THREAD.order -= 1
