"""Embeddings: rows of a table picked by indices, singly or summed in bags; linear in the table and in the weights.

Lanes with tables of their own are one table of all of them, with the indices moved on by one table a lane. The row at
`padding_idx` is fixed: it has no tangent, as it has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.fresh import stopped
from .kinds import Linear, Special
from .lanes import in_front
from .table import row

Tensor = torch.Tensor
SUM, MEAN, MAX = 0, 1, 2


def in_own_table(indices: Tensor, mapped: bool, size: int, rows: int) -> Tensor:
    """Indices into the tables of all lanes, one after the other."""
    indices = in_front(indices, mapped, size)
    start = torch.arange(size, device=indices.device, dtype=indices.dtype) * rows
    return indices + start.reshape(-1, *[1] * (indices.dim() - 1))


def batch_embedding(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """Indices of all lanes at once; the table of all lanes if it is mapped."""
    table, indices, *rest = args
    if not mapped[0]:
        return op(table, indices, *rest, **kwargs)
    size, rows = table.shape[:2]
    padding = rest[0] if rest else kwargs.get("padding_idx", -1)
    by_frequency = rest[1] if len(rest) > 1 else kwargs.get("scale_grad_by_freq", False)
    own = in_own_table(indices, mapped[1], size, rows)
    out = op(table.flatten(0, 1), own, -1, by_frequency)
    if padding >= 0:
        out = torch.where((own % rows == padding).unsqueeze(-1), stopped(out), out)
    return out


def embedding_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """The same rows of the tangent, without the padding row."""
    del level
    out = op(*primals, **kwargs)
    table, indices = primals[:2]
    padding = primals[2] if len(primals) > 2 else kwargs.get("padding_idx", -1)
    moved = op(tangents[0], *primals[1:], **kwargs)
    if padding >= 0:
        moved = torch.where((indices == padding).unsqueeze(-1), 0, moved)
    del table
    return out, moved


def batch_embedding_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """One table for each lane, filled by one call."""
    del kwargs
    g, indices, rows, padding, by_frequency = args
    size = level.size
    g = in_front(g, mapped[0], size)
    out = op(g, in_own_table(indices, mapped[1], size, rows), size * rows, -1, by_frequency)
    out = out.reshape(size, rows, out.shape[-1])
    if padding >= 0:
        keep = torch.arange(rows, device=out.device) != padding
        out = out * keep.to(out.dtype).unsqueeze(-1)
    return out


def embedding_backward_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Linear in the gradient."""
    del level
    return op(*primals, **kwargs), op(tangents[0], *primals[1:], **kwargs)


row("embedding", Linear(), batch=batch_embedding, tangent=embedding_tangent)
row("embedding_dense_backward", Special(), batch=batch_embedding_backward, tangent=embedding_backward_tangent)


# -- rows made shorter -------------------------------------------------------------------------------------------------


def batch_renorm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """A table for each lane, of which its own rows are made shorter."""
    table = in_front(args[0], mapped[0], level.size)
    own = in_own_table(args[1], mapped[1], level.size, table.shape[1])
    return op(table.flatten(0, 1), own.flatten(), *args[2:], **kwargs).reshape(table.shape)


def renorm_together(values: Any, flags: Any) -> list[Any]:
    """One table for all lanes: a row that is short already stays as it is, so the rows of all lanes are shortened at once."""
    del flags
    return [values[0], values[1].flatten(), *values[2:]]


def renorm_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """As in reverse mode, the shorter row is the parameter from then on: its tangent stays."""
    del level
    return op(*primals, **kwargs), tangents[0]


row(
    "embedding_renorm",
    Special(),
    batch=batch_renorm,
    tangent=renorm_tangent,
    together=renorm_together,
    unrecorded=torch.no_grad,
)


# -- bags ------------------------------------------------------------------------------------------------------------


def bags_of(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index: bag b begins at offsets[b]."""
    order = torch.arange(indices.shape[0], device=offsets.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets.contiguous(), order, right=True) - 1


def embedding_bag(
    table: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum, mean or maximum of the rows in each bag; with the bag of each index, the sizes, and where the maxima are.

    Rows at `padding_idx` are left out.
    """
    del scale_grad_by_freq, sparse
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    bag = bags_of(indices, offsets[:bags])
    rows = table.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    kept = (indices != padding_idx) if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    place = bag.unsqueeze(-1).expand(rows.shape)
    empty = torch.zeros(bags, rows.shape[-1], dtype=rows.dtype, device=rows.device)
    sizes = torch.zeros(bags, dtype=bag.dtype, device=rows.device).scatter_add(0, bag, kept.to(bag.dtype))
    if mode == MAX:
        low = torch.where(kept.unsqueeze(-1), rows, -float("inf")).to(rows.dtype)
        out, chosen = largest(low, indices, place, empty)
        return out, bag, sizes, chosen
    total = empty.scatter_add(0, place, torch.where(kept.unsqueeze(-1), rows, 0).to(rows.dtype))
    if mode == MEAN:
        total = total / sizes.clamp_min(1).to(rows.dtype).unsqueeze(-1)
    return total, bag, sizes, sizes


def largest(low: Tensor, indices: Tensor, place: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of each bag that has the bag's maximum, which takes the derivative, and its place in the table."""
    count = low.shape[0]
    if count == 0:
        return empty, torch.full_like(empty, -1, dtype=torch.int64)
    top = torch.full_like(empty, -float("inf")).scatter_reduce(0, place, stopped(low), "amax")
    order = torch.arange(count, device=low.device).unsqueeze(-1).expand(low.shape)
    hit = (low == top.gather(0, place)) & (low > -float("inf"))
    first = torch.full_like(empty, count, dtype=torch.int64).scatter_reduce(
        0, place, torch.where(hit, order, count), "amin"
    )
    found = first < count
    safe = torch.where(found, first, 0)
    chosen = torch.where(found, indices.unsqueeze(-1).expand(low.shape).gather(0, safe), -1)
    return torch.where(found, low.gather(0, safe), 0).to(low.dtype), chosen


def bag_backward(
    g: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Each bag's cotangent, added to its rows of the table."""
    table = g.new_zeros(num_weights, g.shape[-1])
    if mode == MAX:
        found = (bag_size > 0).unsqueeze(-1) & (maximum_indices >= 0)
        return table.scatter_add(0, torch.where(found, maximum_indices, 0), torch.where(found, g, 0).to(g.dtype))
    rows = g.index_select(0, offset2bag)
    if mode == MEAN:
        rows = rows / bag_size.index_select(0, offset2bag).clamp_min(1).to(g.dtype).unsqueeze(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if scale_grad_by_freq:
        often = torch.zeros_like(table[:, 0], dtype=torch.int64).scatter_add(
            0, indices, torch.ones_like(indices, dtype=torch.int64)
        )
        rows = rows / often.index_select(0, indices).to(g.dtype).unsqueeze(-1)
    if padding_idx >= 0:
        rows = torch.where((indices == padding_idx).unsqueeze(-1), 0, rows)
    return table.index_add(0, indices, rows)


def bag_backward_any(
    g: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """As `bag_backward`; a dense gradient also where a sparse one was asked for."""
    del sparse
    bag = offset2bag if offset2bag.shape[0] == indices.shape[0] else bags_of(indices, offsets)
    return bag_backward(
        g,
        indices,
        bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


def bag_weights_backward(
    g: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    """⟨cotangent of the bag, row⟩ for each index."""
    del mode
    bag = offset2bag if offset2bag.shape[0] else bags_of(indices, offsets)
    each = (g.index_select(0, bag) * table.index_select(0, indices)).sum(-1)
    return torch.where(indices == padding_idx, 0, each) if padding_idx >= 0 else each


row("_embedding_bag _embedding_bag_forward_only", Special(), formula=embedding_bag)
row("_embedding_bag_backward", Special(), formula=bag_backward_any)
row("_embedding_bag_dense_backward", Special(), formula=bag_backward)
row("_embedding_bag_per_sample_weights_backward", Special(), formula=bag_weights_backward)
