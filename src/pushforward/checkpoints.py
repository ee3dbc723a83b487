"""`torch.utils.checkpoint` under transforms.

A checkpointed function is run again in the backward pass. A differentiation inside of a transform has its backward
pass there too, so it works as ever. A graph that outlives the transform would run the function again when its level
has ended: such a call saves its tensors instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

from .core.level import THREAD
from .core.torch_private import EnableFunction
from .ops.safe import nesting, nesting_of

_ORIGINAL = torch_checkpoint._checkpoint_without_reentrant_generator


def nothing_to_do() -> Iterator[None]:
    """Run the function between the two steps, and remember nothing of it."""
    yield


def as_before(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as it will be run again: with the replacements of now, and calls of the user's seen as such.

    The engine runs backward passes where neither holds, and what is saved must be what was computed: the number and
    the shapes of the saved tensors follow from the replacements, derivatives of their values from the user's `.detach()`.
    """
    then = nesting()

    def again(*args: Any, **kwargs: Any) -> Any:
        with nesting_of(then), EnableFunction():
            return function(*args, **kwargs)

    return again


def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
    """As torch's where the innermost level has a differentiation inside; else nothing is left out."""
    levels = THREAD.levels
    if levels and not (levels[-1].tracked or levels[-1].payload_graphs):
        return nothing_to_do()
    if levels or THREAD.order:
        function = as_before(function)
    return _ORIGINAL(function, *args, **kwargs)


def install() -> None:
    """Catch the first run of checkpointed functions from now on."""
    torch_checkpoint._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]


install()
