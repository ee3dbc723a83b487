"""`torch.utils.checkpoint` and hooks that pack saved tensors, under transforms.

A checkpointed function is run again in the backward pass. A differentiation inside of a transform has its backward
pass there too, so it works as ever. A graph that outlives the transform would run the function again when its level
has ended: it saves its tensors instead, be it the only graph or the one that the payloads have besides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch.autograd.graph import saved_tensors_hooks

from .core.level import THREAD, later_levels_off
from .core.torch_private import EnableFunction, NoFunction
from .core.traced import NeedsGraph, Traced
from .ops.safe import nesting, nesting_of

Tensor = torch.Tensor
_ORIGINAL = torch_checkpoint._checkpoint_without_reentrant_generator
_INIT = saved_tensors_hooks.__init__
_OF_CHECKPOINTS = (torch_checkpoint._checkpoint_hook, torch_checkpoint._recomputation_hook)


def nothing_to_do() -> Iterator[None]:
    """Run the function between the two steps, and remember nothing of it."""
    yield


def as_before(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as it will be run again: in the levels and with the replacements of now, its calls seen as the user's.

    The engine runs backward passes where none of this holds, and what is saved must be what was computed: how many
    tensors, of what shapes, and where the user's `.detach()` stops a derivative.
    """
    then, depth = nesting(), len(THREAD.levels)

    def again(*args: Any, **kwargs: Any) -> Any:
        with later_levels_off(depth), nesting_of(then), EnableFunction():
            return function(*args, **kwargs)

    return again


def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
    """As torch's where the innermost level has a differentiation inside; else nothing is left out."""
    levels = THREAD.levels
    if levels:
        if levels[-1].payload_graphs:
            raise NeedsGraph(levels[-1])
        if not levels[-1].tracked:
            return nothing_to_do()
    return _ORIGINAL(as_before(function) if levels or THREAD.order else function, *args, **kwargs)


class Kept:
    """A saved tensor that is not computed again: it belongs to the graph of payloads, which may outlive the level."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def packing(pack: Callable[[Any], Any], checkpoint: bool) -> Callable[[Any], Any]:
    """A pack hook under transforms: what it calls `.detach()` is the same value, and no derivative is stopped."""

    def packed(x: Tensor) -> Any:
        levels = THREAD.levels
        if not levels:
            return pack(x)
        if checkpoint and not (isinstance(x, Traced) and x._level.newest() is levels[-1]):
            return Kept(x)
        with NoFunction():
            return pack(x)

    return packed


def unpacking(unpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The hook that undoes `packing`."""

    def unpacked(made: Any) -> Any:
        return made.tensor if type(made) is Kept else unpack(made)

    return unpacked


@functools.wraps(_INIT)
def initialise(self: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
    """The constructor of `saved_tensors_hooks`."""
    checkpoint = isinstance(self, _OF_CHECKPOINTS)
    _INIT(self, packing(pack_hook, checkpoint), unpacking(unpack_hook) if checkpoint else unpack_hook)


def install() -> None:
    """Catch the first run of checkpointed functions, and hooks of saved tensors, from now on."""
    torch_checkpoint._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]
    saved_tensors_hooks.__init__ = initialise  # type: ignore[method-assign]


install()
