"""A generator for each lane: the draws of lane i under `vmap(..., seed=s)` are those of `lane_generator(s, i)`."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from ..core.errors import ArgumentError

_MASK = (1 << 64) - 1


class LaneGenerator(torch.Generator):
    """A generator that stands for the default one in a `with` block: draws without a generator come from it."""

    def __enter__(self) -> LaneGenerator:
        from .repeat import default_generator

        self._default = default_generator(self.device)
        self._before = self._default.get_state()
        self._default.set_state(self.get_state())
        return self

    def __exit__(self, *_: Any) -> None:
        self.set_state(self._default.get_state())
        self._default.set_state(self._before)


def lane_generator(seed: int, lane: int, device: Any = "cpu") -> LaneGenerator:
    """The generator of one lane of `vmap(..., seed=seed)`.

    Args:
        seed: the seed of the call.
        lane: which lane.
        device: where it draws.

    Returns:
        A `torch.Generator`, to be passed as `generator=`, or used in a `with` block, where it stands for the default
        generator.

    Raises:
        ArgumentError: seed or lane is no int, or lane is negative.

    Example:
        >>> import torch, pushforward as pf
        >>> noisy = lambda x: x + torch.randn(())
        >>> y = pf.vmap(noisy, seed=3)(torch.zeros(4))
        >>> with pf.lane_generator(3, 2):
        ...     bool(noisy(torch.tensor(0.0)) == y[2])
        True
    """
    check_seed("lane_generator", seed)
    if not isinstance(lane, numbers.Integral) or lane < 0:
        msg = f"lane_generator: lane is {lane!r}; it must be an int, 0 or more: lanes are counted from 0"
        raise ArgumentError(msg)
    made = LaneGenerator(device)
    made.manual_seed(mixed(seed, lane) >> 1)
    return made


def check_seed(what: str, seed: Any) -> None:
    """`ArgumentError` unless a seed is an int."""
    if not isinstance(seed, numbers.Integral):
        msg = f"{what}: seed is {seed!r}; it must be an int"
        raise ArgumentError(msg)


def mixed(seed: int, lane: int) -> int:
    """64 bits from two numbers (the finaliser of splitmix64)."""
    z = (int(seed) * 0x9E3779B97F4A7C15 + (int(lane) + 1) * 0xD1B54A32D192ED03) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
