"""Indexing: out[j] = x[i(j)], and writing there. Linear in the values, so the tangents move as the values do.

For the lanes, positions in a lane become pairs (lane, position): `x[i]` of all lanes is `x[arange(B), i]`. The indexed
dimensions are moved to the front before and back after, so that the lane's own rule of where the result goes is kept.

A mask that differs between lanes selects as many elements in each lane that goes on: their positions come first in a
stable sort.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .kinds import Decomposed, Linear, Movement
from .lanes import in_front
from .table import row

Tensor = torch.Tensor


def positions(level: Any, mask: Tensor) -> tuple[Tensor, ...]:
    """Where a mapped mask `[B, *sizes]` is true: for each of the sizes an index tensor `[B, count]`."""
    sizes = mask.shape[1:]
    flat = mask.reshape(level.size, math.prod(sizes))
    count = level.agree(flat.sum(1), empty=0)
    order = torch.argsort((~flat).to(torch.uint8), dim=1, stable=True)[:, :count]
    return unravelled(order, sizes)


def unravelled(flat: Tensor, sizes: Any) -> tuple[Tensor, ...]:
    """Linear positions as one index for each dimension."""
    out: list[Tensor] = []
    for n in reversed(sizes):
        out.append(flat % max(n, 1))
        flat = torch.div(flat, max(n, 1), rounding_mode="floor")
    return tuple(reversed(out))


def without_masks(level: Any, indices: Any, marks: Any) -> tuple[list[Tensor | None], list[bool]]:
    """Indices in which every mask has become positions, one entry for each dimension of the indexed value."""
    out: list[Tensor | None] = []
    mapped: list[bool] = []
    for index, mark in zip(indices, marks or [False] * len(indices), strict=True):
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            mask = index.to(torch.bool)
            parts = positions(level, mask) if mark else mask.nonzero().unbind(1)
            out += parts
            mapped += [mark] * len(parts)
        else:
            out.append(index)
            mapped.append(mark)
    return out, mapped


class Plan:
    """Advanced indexing of a value of `rank` logical dimensions, taken apart.

    `used`: the indexed dimensions; `found`: their indices, lined up; `rank_found`: the logical rank that these have
    together; `place`: where their dimensions go among the others (after the first `place` dimensions, or in front where
    they are apart).
    """

    def __init__(self, level: Any, indices: Any, marks: Any, rank: int) -> None:
        full, mapped = without_masks(level, indices, marks)
        self.used = [d for d, index in enumerate(full) if index is not None]
        self.rest = [d for d in range(rank) if d not in self.used]
        self.differs = any(mapped[d] for d in self.used)
        ranks = [full[d].dim() - mapped[d] for d in self.used]  # type: ignore[union-attr]
        self.rank_found = max(ranks, default=0)
        self.found = []
        for d, r in zip(self.used, ranks, strict=True):
            index: Any = full[d]
            if mapped[d] and r < self.rank_found:
                index = index.reshape(level.size, *[1] * (self.rank_found - r), *index.shape[1:])
            self.found.append(index)
        apart = bool(self.used) and self.used[-1] - self.used[0] + 1 != len(self.used)
        self.place = 0 if apart or not self.used else self.used[0]

    def lanes(self, level: Any) -> Tensor:
        """The number of each lane, lined up with the indices."""
        device = self.found[0].device
        return torch.arange(level.size, device=device).reshape(level.size, *[1] * self.rank_found)

    def sizes(self) -> list[int]:
        """The logical sizes of the indices together."""
        shape = torch.broadcast_shapes(*[index.shape for index in self.found])
        return list(shape[1:] if self.differs else shape)

    def to_front(self, x: Tensor, mapped: bool) -> Tensor:
        """The indexed dimensions before the others."""
        order = [d + mapped for d in (*self.used, *self.rest)]
        if order == list(range(int(mapped), len(order) + mapped)):
            return x
        return x.permute([0, *order] if mapped else order)

    def from_front(self, x: Tensor) -> Tensor:
        """The inverse of `to_front`, of a mapped value."""
        order = [*self.used, *self.rest]
        back = [order.index(d) + 1 for d in range(len(order))]
        return x if back == list(range(1, len(back) + 1)) else x.permute([0, *back])

    def placed(self, x: Tensor, *, back: bool = False) -> Tensor:
        """The dimensions of the indices, in front of a mapped value, at the place where the lane has them (or back)."""
        k, p = self.rank_found, self.place
        if k == 0 or p == 0:
            return x
        here, there = list(range(1, 1 + k)), list(range(1 + p, 1 + p + k))
        return x.movedim(there, here) if back else x.movedim(here, there)


def batch_index(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """x[i, …]: x or any of the indices may be mapped."""
    del kwargs
    x, own = args[0], mapped[0]
    plan = Plan(level, args[1], mapped[1], x.dim() - own)
    if not plan.used:
        return torch.ops.aten.clone(x)
    x = plan.to_front(x, own)
    if not own:
        out = op(x, plan.found)
    elif plan.differs:
        out = op(x, [plan.lanes(level), *plan.found])
    else:
        out = op(x, [None, *plan.found])
    return plan.placed(out)


def batch_index_put(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """x[i, …] = values, or += values: any of them may be mapped."""
    x, indices, values = args[:3]
    rank = x.dim() - mapped[0]
    accumulate = bool(args[3]) if len(args) > 3 else False
    filled = filled_by_mask(level, args, mapped, rank, accumulate)
    if filled is not None:
        return filled
    x = in_front(x, mapped[0], level.size)
    plan = Plan(level, indices, mapped[1], rank)
    x = plan.to_front(x, True)
    rest = list(x.shape[1 + len(plan.used) :])
    shape = [*rest[: plan.place], *plan.sizes(), *rest[plan.place :]]
    own = values.shape[1:] if mapped[2] else values.shape
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    if mapped[2]:
        values = values.reshape(level.size, *[1] * (len(shape) - len(own)), *own)
    values = plan.placed(values.expand(level.size, *shape), back=True)
    lead = plan.lanes(level) if plan.differs else None
    return plan.from_front(op(x, [lead, *plan.found], values, *args[3:], **kwargs))


def filled_by_mask(level: Any, args: list[Any], mapped: Any, rank: int, accumulate: bool) -> Tensor | None:
    """x[mask] = value with one value: no lane needs to know how many elements there are. None where it is not that."""
    x, indices, values = args[:3]
    places = [k for k, index in enumerate(indices) if index is not None]
    own = values.shape[1:] if mapped[2] else values.shape
    if len(places) != 1 or math.prod(own) != 1 or not mapped[1] or not mapped[1][places[0]]:
        return None
    mask = indices[places[0]]
    if mask.dtype is not torch.bool:
        return None
    before = places[0]
    mask = mask.reshape(level.size, *[1] * before, *mask.shape[1:], *[1] * (rank - before - mask.dim() + 1))
    value = values.reshape(level.size, *[1] * rank) if mapped[2] else values.reshape([1] * (rank + 1))
    x = in_front(x, mapped[0], level.size)
    return torch.where(mask, x + value if accumulate else value, x)


def batch_index_select(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """index_select: along one dimension; of a 0-dim value it gives that value."""
    del kwargs
    x, dim, index = args
    rank = x.dim() - mapped[0]
    if rank == 0:
        x = in_front(x, mapped[0], level.size).unsqueeze(-1)
        return batch_index_select(op, level, [x, 0, index], [True, False, mapped[2]], {}).squeeze(-1)
    dim %= rank
    if not mapped[2]:
        return op(x, dim + 1, index)
    index = index.reshape(level.size, -1) if index.dim() == 1 else index
    indices = [*[None] * dim, index]
    return batch_index(torch.ops.aten.index.Tensor, level, [x, indices], [mapped[0], [*[False] * dim, True]], {})


def batch_index_write(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """index_add, index_copy: with indices that differ, an index_put at (lane, index)."""
    x, dim, index, source = args
    rank = x.dim() - mapped[0]
    x, source = in_front(x, mapped[0], level.size), in_front(source, mapped[3], level.size)
    if rank == 0:
        x = x.unsqueeze(-1)
        source = source.reshape(level.size, -1)
        moved = batch_index_write(op, level, [x, 0, index, source], [True, False, mapped[2], True], kwargs)
        return moved.squeeze(-1)
    dim = dim % rank + 1
    if not mapped[2]:
        return op(x, dim, index, source, **kwargs)
    index = index.reshape(level.size, -1) if index.dim() == 1 else index
    adds = "index_add" in op.name()
    if kwargs.get("alpha", 1) != 1:
        source = source * kwargs["alpha"]
    lanes = torch.arange(level.size, device=index.device).unsqueeze(1)
    out = torch.index_put(x.movedim(dim, 1), (lanes, index), source.movedim(dim, 1), accumulate=adds)
    return out.movedim(1, dim)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """x with `value` where the position along `dim` is among `index`."""
    rank = x.dim()
    n = x.shape[dim] if rank else 1
    chosen = torch.zeros(n, dtype=torch.bool, device=x.device)
    chosen = chosen.index_put((index.reshape(-1).long(),), torch.ones((), dtype=torch.bool, device=x.device))
    shape = [n if d == dim % max(rank, 1) else 1 for d in range(rank)]
    value = value.to(x.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    return torch.where(chosen.reshape(shape), value, x)


def batch_gather(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """gather: value and index with the lanes in front; 0-dim ones count as vectors."""
    x, dim, index = args
    rank, index_rank = x.dim() - mapped[0], index.dim() - mapped[2]
    x, index = in_front(x, mapped[0], level.size), in_front(index, mapped[2], level.size)
    x = x if rank else x.unsqueeze(-1)
    if not index_rank:
        return op(x, 1, index.unsqueeze(-1), **kwargs).squeeze(-1)
    return op(x, dim % max(rank, 1) + 1, index, **kwargs)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """put: an index_put into the flattened value."""
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def take(x: Tensor, index: Tensor) -> Tensor:
    """take: an index of the flattened value."""
    return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)


def unsafe_masked_index(x: Tensor, mask: Tensor, indices: Any, fill: Any) -> Tensor:
    """x[indices] where the mask is true, else `fill`; indices under a false mask may be out of range."""
    clamped = [None if i is None else i.clamp(0, x.shape[d] - 1) for d, i in enumerate(indices)]
    if x.numel() == 0:
        clamped = [None if i is None else torch.zeros_like(i) for i in indices]
        shape = torch.ops.aten.index.Tensor(x.new_zeros([max(n, 1) for n in x.shape]), clamped).shape
        return x.new_full(shape, fill)
    return torch.ops.aten.index.Tensor(x, clamped).masked_fill(~mask, fill)


def unsafe_masked_index_put(x: Tensor, mask: Tensor, indices: Any, values: Tensor) -> Tensor:
    """x[indices] += values where the mask is true; indices under a false mask may be out of range."""
    if x.numel() == 0:
        return x.clone()
    clamped = [None if i is None else i.clamp(-x.shape[d], x.shape[d] - 1) for d, i in enumerate(indices)]
    return torch.ops.aten.index_put.default(x, clamped, values.masked_fill(~mask, 0), True)


row("index _unsafe_index", Movement(), batch=batch_index)
row("index_put _unsafe_index_put _index_put_impl", Linear((0, 2)), batch=batch_index_put)
row("index_select", Movement(), batch=batch_index_select)
row("index_add index_copy", Linear((0, 3)), batch=batch_index_write)
row("index_fill", Decomposed(index_fill))
row("gather", Movement(), batch=batch_gather)
row("put", Decomposed(put))
row("take", Decomposed(take))
row("_unsafe_masked_index", Decomposed(unsafe_masked_index))
row("_unsafe_masked_index_put_accumulate", Decomposed(unsafe_masked_index_put))
