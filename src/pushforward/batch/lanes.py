"""Lanes that disagree: when Python needs one answer and the lanes differ.

The run goes on with the largest group of lanes that agree; the others leave it and wait for a run of their own. p
distinct paths cost p runs. What goes on is a level of its own, the *successor*, with fewer lanes: a value made before
is cut down to the lanes that are left when it is next used (see `batch.settle`), so that a lane that has left costs
nothing and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.errors import DivergenceError, SlowFallback
from ..core.level import THREAD, stack_of
from ..core.source import source_line, warn
from ..core.torch_private import BelowAutograd, NoDispatch

Tensor = torch.Tensor
_NAN = object()
_SAID: set[str] = set()
FEW = 8  # so many lanes may each go a way of their own without a word


@dataclass
class Waiting:
    """Lanes that left a run, counted in the call; how many of its questions they shared, and its draws."""

    lanes: Tensor
    asked: int = 0
    draws: list[Any] = field(default_factory=list)
    repeats: Any = None  # what must be as in the run they left


@dataclass(frozen=True)
class Split:
    """Where lanes disagreed, and how many there were in each group; the first group went on."""

    where: str
    sizes: tuple[int, ...]


class Lanes:
    """What a batching level knows of its lanes."""

    call: Any = None  # the vmap call that this run belongs to
    lanes: Tensor | None = None  # which lanes of the call these are; None: all, in order
    first: Any = None  # the level that this run began with, for a successor
    kept: Tensor | None = None  # for a successor: which lanes of its predecessor are left
    newest: Any  # of `Level`
    successor: Any
    alive: bool
    divergence = "split"
    asked = 0  # questions so far, counted on the first level
    prefix = 0  # so many questions were answered by an earlier run already

    def __init__(self, size: int) -> None:
        self.size = size
        self.queue: list[Waiting] = []

    def active_lanes(self) -> Sequence[int]:
        """Indices of the lanes that this run is for."""
        return range(self.size)

    def root(self) -> Any:
        """The level that this run began with."""
        return self if self.first is None else self.first

    def place_of(self, newer: Any) -> Tensor:
        """Which lanes of this level are those of a successor."""
        level = self.successor
        places = level.kept
        while level is not newer:
            level = level.successor
            places = places[level.kept]
        return places

    def choose(self, keys: Sequence[Hashable]) -> int:
        """Go on with the largest group of lanes with equal keys; the index of its first lane is returned."""
        THREAD.unrepeatable += 1
        if self.successor is not None:
            newest = self.newest()
            places = self.place_of(newest).tolist()
            return places[newest.choose([keys[k] for k in places])]
        self.root().asked += 1
        groups: dict[Hashable, list[int]] = {}
        for lane, key in enumerate(keys):
            groups.setdefault(key if key == key else _NAN, []).append(lane)
        if len(groups) == 1:
            return 0
        with plainly():
            parts = [torch.tensor(lanes) for lanes in groups.values()]
        return self.split(parts)

    def split(self, groups: list[Tensor]) -> int:
        """Go on with the largest of several groups of lanes, whose first lane is returned; the others wait."""
        call, root = self.call, self.root()
        if self.divergence == "error" or 2 * len(groups) >= self.size > FEW:
            self.say_so(groups)
        sizes = [g.numel() for g in groups]
        best = sizes.index(max(sizes))
        repeats = None if call is None else call.repeating()
        draws = [] if repeats is None else list(repeats.recorded)
        with plainly():
            for k, lanes in enumerate(groups):
                if k != best:
                    self.queue.append(Waiting(self.numbers(lanes), root.asked, draws, repeats))
            first = int(groups[best][0])
            self.leave(groups[best])
        if call is not None:
            call.note_split([sizes[best], *sizes[:best], *sizes[best + 1 :]])
        return first

    def say_so(self, groups: list[Tensor]) -> None:
        """Refuse to split, or say that it is slow."""
        where = source_line()
        if self.divergence == "error":
            msg = (
                f"vmap: at {where} the lanes disagree on a Python value ({len(groups)} groups) and divergence='error'. "
                "Use torch.where, or divergence='split'."
            )
            raise DivergenceError(msg)
        if where not in _SAID:
            _SAID.add(where)
            warn(
                f"slow fallback: at {where} {self.size} lanes go {len(groups)} ways, each a run of its own, which is as slow "
                "as a loop over lanes, or slower",
                SlowFallback,
            )

    def numbers(self, lanes: Tensor) -> Tensor:
        """How lanes of this level are counted in the call."""
        return lanes if self.lanes is None else self.lanes[lanes]

    def leave(self, kept: Tensor) -> None:
        """Let all lanes but `kept` leave: a successor goes on in this level's place."""
        made: Any = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.size, made.kept, made.lanes, made.first = kept.numel(), kept, self.numbers(kept), self.root()
        self.successor, self.alive = made, False
        THREAD.levels[:] = [made if level is self else level for level in THREAD.levels]
        below = None
        for level in THREAD.levels:
            below = level.stack = stack_of(level, below)

    def agree(self, payload: Tensor, empty: Any = None) -> Any:
        """The Python value of a mapped payload in the group of lanes that goes on; `empty` where there are no lanes."""
        if THREAD.answered is not None and type(payload) is Tensor and payload.dtype is torch.bool and payload.dim() == 1:
            return THREAD.answered(self, payload)
        THREAD.unrepeatable += 1
        if self.size == 0:
            if empty is not None:
                return empty
            msg = "vmap: a Python value was asked of a mapped tensor, but there are no lanes (in_dims of size 0)"
            raise DivergenceError(msg)
        if type(payload) is Tensor and payload.dim() == 1 and THREAD.reader is None:
            return self.agree_on_numbers(payload)
        values = python_value(payload)
        return values[self.choose([_freeze(v) for v in values])]

    def agree_on_numbers(self, payload: Tensor) -> Any:
        """As `agree`, for a plain payload with one number for each lane."""
        if self.successor is not None:
            newest = self.newest()
            with plainly():
                payload = payload.index_select(0, self.place_of(newest).to(payload.device))
            return newest.agree_on_numbers(payload)
        if payload.dtype is torch.bool:
            return self.agree_on_truth(payload)
        with plainly():
            groups = equal_numbers(payload)
        if groups is None:
            values = python_value(payload)
            return values[self.choose([_freeze(v) for v in values])]
        self.root().asked += 1
        lane = self.split(groups) if len(groups) > 1 else 0
        with plainly():
            return payload[lane].item()

    def agree_on_truth(self, payload: Tensor) -> bool:
        """As `agree`, for a plain payload with yes or no for each lane."""
        self.root().asked += 1
        with plainly():
            yes = payload.nonzero().view(-1)
            count, size = yes.numel(), payload.numel()
            if count in (0, size):
                return count > 0
            groups = [yes.cpu(), payload.logical_not().nonzero().view(-1).cpu()]
        self.split(groups)
        return 2 * count >= size


INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
ALL_EQUAL = [torch.zeros(1, dtype=torch.long)]  # one group, of which nothing more is asked


def equal_numbers(payload: Tensor) -> list[Tensor] | None:
    """Which lanes have equal numbers; None where it takes more to compare them (complex numbers, NaN)."""
    codes = payload.detach()
    if codes.numel() == 1:
        return ALL_EQUAL
    if codes.is_complex() or not bool((codes == codes).all()):
        return None
    if codes.is_floating_point():
        codes = codes.contiguous().view(INTEGERS[codes.element_size()])  # 0.0 and -0.0 are equal, and not the same answer
    if bool((codes == codes[0]).all()):
        return ALL_EQUAL
    _, code, counts = torch.unique(codes, return_inverse=True, return_counts=True)
    return list(torch.argsort(code, stable=True).cpu().split(counts.tolist()))


class plainly:
    """Plain tensors only are worked on: no level, and no recording."""

    __slots__ = ("dispatch", "grad")

    def __enter__(self) -> None:
        self.dispatch, self.grad = NoDispatch(), BelowAutograd()
        self.dispatch.__enter__()
        self.grad.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.grad.__exit__(*error)
        self.dispatch.__exit__(*error)


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, float) and (value == 0 or math.isnan(value)):
        return _NAN if value else ("zero", math.copysign(1, value))
    if isinstance(value, complex) and value != value:
        return _NAN
    return value


def python_value(tensor: Tensor) -> Any:
    """`tensor.tolist()` for tensors of any level: the levels that disagree on it split."""
    if THREAD.answered is not None and type(tensor) is Tensor and tensor.dtype is torch.bool and not tensor.dim():
        return THREAD.answered(None, tensor)
    THREAD.unrepeatable += 1
    level = getattr(tensor, "_level", None)
    if level is not None:
        return level.inspect(tensor)
    return tensor.tolist() if THREAD.reader is None else THREAD.reader(tensor)


def inspect_value(level: Any, value: Any) -> Any:
    """The Python value of a value of a batching level, for the group of lanes that goes on."""
    return level.agree(value._payload) if value._mapped else python_value(value._payload)
