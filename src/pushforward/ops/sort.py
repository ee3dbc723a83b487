"""Sorting and selecting by rank: out = x[i(x)] with i constant almost everywhere, so the tangent is picked likewise."""

from __future__ import annotations

import math
from typing import Any

import torch

from .index import positions, unravelled
from .kinds import AlongDim, Constant, Decomposed, Movement, Reduction
from .lanes import in_front
from .table import row

Tensor = torch.Tensor


def picked(t: Tensor, index: Tensor, dim: int, *, keepdim: bool = True) -> Tensor:
    """The elements of `t` along `dim` that `index` names; without `keepdim` the index lacks that dimension."""
    if t.dim() == 0:
        return t.reshape(index.shape) if index.numel() else t.new_zeros(index.shape)
    return t.gather(dim, index) if keepdim else t.gather(dim, index.unsqueeze(dim)).squeeze(dim)


def argument(op: Any, primals: list[Any], kwargs: dict[str, Any], name: str) -> Any:
    """The value of the argument called `name`, given or by default."""
    for k, arg in enumerate(op._schema.arguments):
        if arg.name == name:
            if arg.kwarg_only:
                return kwargs.get(name, arg.default_value)
            return primals[k] if k < len(primals) else arg.default_value
    return None


def tangent_picked(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """(values, indices) along a dimension: sort, topk, kthvalue, median, mode, max, min, cummax, cummin."""
    del level
    values, index = op(*primals, **kwargs)
    if not values.is_floating_point() or tangents[0] is None:
        return (values, index), (None, None)
    dim = argument(op, primals, kwargs, "dim")
    keepdim = argument(op, primals, kwargs, "keepdim")
    moved = picked(tangents[0], index, dim, keepdim=keepdim is None or keepdim)
    return (values, index), (moved, None)


# -- searching -----------------------------------------------------------------------------------------------------


def batch_searchsorted(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """searchsorted: sequences of all lanes as one stack; several values in one sequence become a row."""
    size = level.size
    sequence, values = args[0], args[1]
    kwargs = dict(kwargs)
    sorter = kwargs.get("sorter")
    sorter_mapped = "sorter" in getattr(mapped, "keywords", ())
    number = not isinstance(values, Tensor)
    if number:
        values = torch.full((), values, dtype=sequence.dtype, device=sequence.device)
    vector = sequence.dim() - mapped[0] == 1
    if vector and not mapped[0] and not sorter_mapped:
        return torch.searchsorted(sequence, values, **kwargs)
    own = values.shape[1:] if mapped[1] and not number else values.shape
    sequence = in_front(sequence, mapped[0], size).contiguous()
    values = in_front(values, mapped[1] and not number, size)
    if vector:
        values = values.reshape(size, math.prod(own))
    if sorter is not None:
        kwargs["sorter"] = in_front(sorter, sorter_mapped, size).contiguous()
    return torch.searchsorted(sequence, values.contiguous(), **kwargs).reshape(size, *own)


def batch_bucketize(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """bucketize: searchsorted with the arguments the other way round."""
    flags = [mapped[1], mapped[0]]
    return batch_searchsorted(op, level, [args[1], args[0]], flags, kwargs)


def isin(elements: Any, test: Any, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among the tested ones: look it up in the sorted ones."""
    del assume_unique
    if not isinstance(elements, Tensor):
        elements = torch.full((), elements, dtype=test.dtype, device=test.device)
    if not isinstance(test, Tensor):
        found = elements == test
        return ~found if invert else found
    dtype = torch.promote_types(elements.dtype, test.dtype)
    dtype = torch.uint8 if dtype is torch.bool else dtype
    elements, test = elements.to(dtype), test.to(dtype).reshape(-1)
    if test.numel() == 0:
        found = torch.zeros_like(elements, dtype=torch.bool)
    else:
        test = test.sort()[0]
        place = torch.searchsorted(test, elements.reshape(-1)).clamp(max=test.numel() - 1)
        found = (test[place] == elements.reshape(-1)).reshape(elements.shape)
    return ~found if invert else found


# -- results whose sizes depend on the data ------------------------------------------------------------------------


def batch_nonzero(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """nonzero: the lanes with as many elements as the largest group go on."""
    del op, mapped, kwargs
    mask = args[0] != 0
    if mask.dim() == 1:
        return torch.zeros((level.size, int(level.agree(mask, empty=0)), 0), dtype=torch.long, device=mask.device)
    return torch.stack(positions(level, mask), -1)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """nonzero cut or filled to `size` rows: a stable sort brings the positions first."""
    mask = (x != 0).reshape(-1)
    order = torch.argsort((~mask).to(torch.uint8), stable=True)
    order = order[:size] if order.shape[0] >= size else torch.nn.functional.pad(order, (0, size - order.shape[0]))
    rows = unravelled(order, x.shape)
    if not rows:
        return torch.zeros((size, 0), dtype=torch.long, device=x.device)
    real = torch.arange(size, device=x.device) < mask.sum()
    return torch.where(real.unsqueeze(-1), torch.stack(rows, -1), fill_value)


def batch_masked_select(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """masked_select: the elements under the mask, as many in each lane that goes on."""
    del op, kwargs
    x, mask = args
    rank = max(x.dim() - mapped[0], mask.dim() - mapped[1])
    x = in_front(x, mapped[0], level.size)
    x = x.reshape(level.size, *[1] * (rank + 1 - x.dim()), *x.shape[1:])
    mask = mask.reshape(level.size, *[1] * (rank + 1 - mask.dim()), *mask.shape[1:]) if mapped[1] else mask
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    flat = x.expand(shape).reshape(level.size, math.prod(shape[1:]))
    if not mapped[1]:
        return flat[:, mask.expand(shape[1:]).reshape(-1)]
    (place,) = positions(level, mask.expand(shape).reshape(flat.shape))
    return flat.gather(1, place)


def tangent_masked_select(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """masked_select of the tangent."""
    del level
    moved = tangents[0]
    return op(*primals, **kwargs), None if moved is None else op(moved, primals[1])


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The k-th element under the mask becomes the k-th of the source: k counts the mask."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    x, mask = x.expand(shape), mask.expand(shape)
    if x.numel() == 0:
        return x.clone()
    place = torch.where(mask, (mask.reshape(-1).cumsum(0) - 1).reshape(shape), 0)
    if source.numel() == 0:
        source = x.new_zeros(1)
    return torch.where(mask, source.reshape(-1)[place.reshape(-1)].reshape(shape), x)


def masked_scatter_backward(g: Tensor, mask: Tensor, sizes: Any) -> Tensor:
    """What went from the k-th of the source under the mask comes back; the sources that were not used get 0."""
    n = math.prod(sizes)
    mask = mask.expand(g.shape)
    place = torch.where(mask, (mask.reshape(-1).cumsum(0) - 1).reshape(g.shape), n)
    return g.new_zeros(n + 1).scatter_add(0, place.reshape(-1), torch.where(mask, g, 0).reshape(-1))[:n].reshape(sizes)


def batch_repeats(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """repeat_interleave of counts: place j belongs to the first element whose running count passes j."""
    del op, mapped
    counts = args[0]
    ends = counts.cumsum(1)
    total = kwargs.get("output_size")
    if total is None:
        total = level.agree(counts.sum(1), empty=0)
    where = torch.arange(total, device=counts.device).expand(level.size, total).contiguous()
    return torch.searchsorted(ends, where, right=True).to(counts.dtype)


row("sort topk", AlongDim(), tangent=tangent_picked)
row("cummax cummin", AlongDim(), tangent=tangent_picked)
row("kthvalue", Reduction(dim=2), tangent=tangent_picked)
row("max.dim min.dim median.dim nanmedian.dim mode", Reduction(), tangent=tangent_picked)
row("searchsorted", Constant(), batch=batch_searchsorted)
row("bucketize", Constant(), batch=batch_bucketize)
row("isin", Decomposed(isin))
row("nonzero", Constant(), batch=batch_nonzero)
row("nonzero_static", Decomposed(nonzero_static))
row("masked_select", Movement(), batch=batch_masked_select, tangent=tangent_masked_select)
row("masked_scatter", Decomposed(masked_scatter))
row("masked_scatter_backward", Decomposed(masked_scatter_backward))
row("repeat_interleave.Tensor", Constant(), batch=batch_repeats)
