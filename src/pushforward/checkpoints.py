"""`torch.utils.checkpoint` under transforms: what is computed again may be asked for when the transform has ended.

The graph that an outer differentiation walks outlives the level whose values a checkpointed function had. The function is then run again with
the level put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

from .core.level import THREAD, Level, resumed

_ORIGINAL = torch_checkpoint._checkpoint_without_reentrant_generator


def in_levels(function: Callable[..., Any], levels: list[Level]) -> Callable[..., Any]:
    """A function that runs with the levels of its first call, those that have ended among them."""

    def again(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for level in levels:
                if not level.newest().alive:
                    stack.enter_context(resumed(level))
            return function(*args, **kwargs)

    return again


def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
    """As torch's, for a function that may have to be run again outside of its transforms."""
    return _ORIGINAL(in_levels(function, list(THREAD.levels)) if THREAD.levels else function, *args, **kwargs)


def install() -> None:
    """Catch the first run of checkpointed functions from now on."""
    torch_checkpoint._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]


install()
