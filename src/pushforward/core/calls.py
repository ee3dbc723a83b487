"""Calls of transforms as a whole: where one begins, it may be replayed (`plans.whole`) instead of run.

A transform asks here first. What it returns is marked, so that a function made of transforms and of operators can be told from one
that does more than compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .level import THREAD

F = TypeVar("F", bound=Callable[..., Any])

REPLAY: Any = None  # `plans.whole.replay(asked, func, args)`: a result, or `traced.NO_PLAN`
OWN_CODE: set[int] = set()  # identities of the code of functions that transforms return
OWN_FUNCTIONS: set[Any] = set()  # transforms that are called with a function


class Asked:
    """Which transform is called, with which settings; `key` is what they are known by, once it has been asked for.

    It makes the call again without holding what the transform returned, which would hold itself then.
    """

    __slots__ = ("at_once", "key", "settings", "transform")

    def __init__(self, transform: Callable[..., Any], at_once: bool = False, **settings: Any) -> None:
        self.transform, self.at_once, self.settings = transform, at_once, settings
        self.key: Any = None

    def again(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The call as it is: of what the transform returns, or (`at_once`) of the transform itself."""
        before, THREAD.replay = THREAD.replay, False
        try:
            if self.at_once:
                return self.transform(func, *args, **self.settings)
            return self.transform(func, **self.settings)(*args)
        finally:
            THREAD.replay = before


def returned(function: F) -> F:
    """Mark a function that a transform returns: all it does besides calling what it closes over is to compute."""
    OWN_CODE.add(id(function.__code__))  # that of a `def` in this library, which stays
    return function


def transform(function: F) -> F:
    """Mark a transform."""
    OWN_FUNCTIONS.add(function)
    return function
