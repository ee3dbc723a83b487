"""Lanes that disagree: when Python needs one answer and the lanes differ.

The run goes on with the largest group of lanes that agree; the others become inactive (they compute on, and are asked
nothing) and are queued for a run of their own. p distinct paths cost p runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from ..core.errors import DivergenceError
from ..core.level import THREAD
from ..core.source import source_line

Tensor = torch.Tensor
_NAN = object()


class Lanes:
    """What a batching level knows of its lanes: which are active, and the groups that wait for another run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.active: list[int] | None = None  # None: all
        self.queue: list[list[int]] = []
        self.splits: list[str] = []
        self.divergence = "split"

    def active_lanes(self) -> Sequence[int]:
        """Indices of the lanes that this run is for."""
        return range(self.size) if self.active is None else self.active

    def choose(self, keys: Sequence[Hashable]) -> int:
        """Go on with the largest group of active lanes with equal keys; the index of its first lane is returned."""
        groups: dict[Hashable, list[int]] = {}
        lanes = self.active_lanes()
        for lane in lanes:
            key = keys[lane]
            groups.setdefault(key if key == key else _NAN, []).append(lane)
        if len(groups) == 1:
            return lanes[0]
        where = source_line()
        if self.divergence == "error":
            msg = (
                f"vmap: at {where} the lanes disagree on a Python value ({len(groups)} groups) and divergence='error'. "
                "Use torch.where, or divergence='split'."
            )
            raise DivergenceError(msg)
        best = max(groups.values(), key=len)
        self.queue += [group for group in groups.values() if group is not best]
        self.active = best
        self.splits.append(where)
        return best[0]

    def agree(self, payload: Tensor, empty: Any = None) -> Any:
        """The Python value of a mapped payload in the group of lanes that goes on; `empty` where there are no lanes."""
        values = python_value(payload)
        if self.size == 0:
            if empty is not None:
                return empty
            msg = "vmap: a Python value was asked of a mapped tensor, but there are no lanes (in_dims of size 0)"
            raise DivergenceError(msg)
        return values[self.choose([_freeze(v) for v in values])]


def lane_values(payload: Tensor, size: int) -> list[Any]:
    """The Python value of each lane of a payload, nested tuples for more than one element."""
    values = python_value(payload)
    return [_freeze(v) for v in values] if size else []


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, float) and math.isnan(value):
        return _NAN
    return value


def python_value(tensor: Tensor) -> Any:
    """`tensor.tolist()` for tensors of any level: the levels that disagree on it split."""
    level = getattr(tensor, "_level", None)
    if level is not None:
        return level.inspect(tensor)
    return tensor.tolist() if THREAD.reader is None else THREAD.reader(tensor)


def inspect_value(level: Any, value: Any) -> Any:
    """The Python value of a value of a batching level, for the group of lanes that goes on."""
    return level.agree(value._payload) if value._mapped else python_value(value._payload)
