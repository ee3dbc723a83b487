"""Scattering: values written or reduced at the places that an index names along one dimension, and slices written back.

Writing and summing are linear. For the others, with S(j) the sources that go to place j:

    mean    the sum of the tangents over the count
    amax    the mean of the tangents of those that attain the maximum (torch's even split); amin likewise
    prod    sum over i of dx_i · product of the others, by products of dual numbers: right at zeros and to any order
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Linear, Special
from .lanes import in_front
from .products import segment_products
from .table import row

Tensor = torch.Tensor


def batch_scatter(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """scatter and its kin: every tensor with the lanes in front; 0-dim ones count as vectors."""
    args = list(args)
    rank = args[0].dim() - mapped[0]
    for k, a in enumerate(args):
        if isinstance(a, Tensor):
            own = a.dim() - mapped[k]
            args[k] = in_front(a, mapped[k], level.size)
            if own == 0:
                args[k] = args[k].unsqueeze(-1)
    args[1] = args[1] % max(rank, 1) + 1
    out = op(*args, **kwargs)
    return out if rank else out.squeeze(-1)


def tangent_scatter_value(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """scatter of a number: the tangent is zero there."""
    del level
    x, dim, index, value = primals
    return op(x, dim, index, value, **kwargs), tangents[0].scatter(dim, index, 0)


def tangent_scatter_reduced(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """scatter with `reduce="add"` or `"multiply"`: scatter_reduce with sum or prod."""
    x, dim, index, source = primals
    dx, _, _, ds = tangents
    if not isinstance(source, Tensor):
        source = torch.full(index.shape, source, dtype=x.dtype, device=x.device)
    kind = "sum" if kwargs["reduce"] == "add" else "prod"
    _, tangent = tangent_scatter_reduce(
        torch.ops.aten.scatter_reduce.two, level, [x, dim, index, source, kind], [dx, None, None, ds, None], {}
    )
    return op(*primals, **kwargs), tangent


def tangent_scatter_reduce(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """scatter_reduce: sum, mean, amax, amin and prod, with or without the old values."""
    del level
    x, dim, index, source, kind = primals
    include = kwargs.get("include_self", True)
    out = op(*primals, **kwargs)
    if not (out.is_floating_point() or out.is_complex()):
        return out, None
    dx = torch.zeros_like(x) if tangents[0] is None else tangents[0]
    source = narrowed(source, index)
    ds = torch.zeros_like(source) if tangents[3] is None else narrowed(tangents[3], index)
    dx_kept = dx if include else dx.scatter(dim, index, 0)
    if kind == "sum":
        return out, dx_kept.scatter_add(dim, index, ds)
    if kind == "mean":
        ones = torch.ones_like(x) if include else torch.ones_like(x).scatter(dim, index, 0)
        count = ones.scatter_add(dim, index, torch.ones_like(source))
        return out, dx_kept.scatter_add(dim, index, ds) / count
    if kind in ("amax", "amin"):
        kept = x == out
        if not include:
            kept = kept & (torch.ones_like(x).scatter(dim, index, 0) != 0)
        attained = (source == out.gather(dim, index)).to(out.dtype)
        count = kept.to(out.dtype).scatter_add(dim, index, attained)
        moved = torch.where(kept, dx, 0).scatter_add(dim, index, attained * ds)
        return out, moved / torch.where(count == 0, 1, count)
    product, tangent, touched = segment_products(x, dim, index, source, ds)
    if include:
        return out, dx * product + x * tangent
    return out, torch.where(touched, tangent, dx)


def narrowed(source: Tensor, index: Tensor) -> Tensor:
    """The part of a source that an index of smaller sizes uses."""
    if source.shape == index.shape or source.dim() != index.dim():
        return source
    return source[tuple(slice(0, n) for n in index.shape)]


def tangent_index_reduce(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """index_reduce: scatter_reduce with the index spread over the source."""
    x, dim, index, source, kind = primals
    spread = spread_index(index, dim, source)
    _, tangent = tangent_scatter_reduce(
        torch.ops.aten.scatter_reduce.two,
        level,
        [x, dim, spread, source, kind],
        [tangents[0], None, None, tangents[3], None],
        kwargs,
    )
    return op(*primals, **kwargs), tangent


def spread_index(index: Tensor, dim: int, source: Tensor) -> Tensor:
    """A vector of positions along `dim` as an index of the sizes of `source`."""
    if source.dim() == 0:
        return index.reshape(())
    shape = [1] * source.dim()
    shape[dim] = -1
    return index.long().reshape(shape).expand(source.shape)


def batch_index_reduce(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """index_reduce; where the indices differ, scatter_reduce."""
    x, dim, index, source, kind = args
    rank = x.dim() - mapped[0]
    x, source = in_front(x, mapped[0], level.size), in_front(source, mapped[3], level.size)
    if rank == 0:
        x, source = x.unsqueeze(-1), source.reshape(level.size, -1)
    dim = dim % max(rank, 1) + 1
    if not mapped[2]:
        out = op(x, dim, index, source, kind, **kwargs)
    else:
        shape = [1] * source.dim()
        shape[0], shape[dim] = level.size, source.shape[dim]
        spread = index.long().reshape(shape).expand(source.shape)
        out = torch.scatter_reduce(x, dim, spread, source, kind, **kwargs)
    return out if rank else out.squeeze(-1)


# -- slices written back -------------------------------------------------------------------------------------------


def batch_write_slice(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """select_scatter, slice_scatter, diagonal_scatter: the dimensions shift by one."""
    schema = op._schema.arguments
    args = list(args)
    while len(args) < len(schema):
        args.append(schema[len(args)].default_value)
    rank = args[0].dim() - mapped[0]
    for k in (0, 1):
        args[k] = in_front(args[k], mapped[k], level.size)
    for k, arg in enumerate(schema):
        if arg.name in ("dim", "dim1", "dim2"):
            args[k] = args[k] % rank + 1
    return op(*args, **kwargs)


def as_strided_write(x: Tensor, source: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    """A copy of `x` that keeps its strides, with `source` written through `as_strided`."""
    extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    flat = x.new_zeros(max(extent, reach))
    flat.as_strided(x.shape, x.stride()).copy_(x)
    flat.as_strided(size, stride, offset).copy_(source)
    return flat.as_strided(x.shape, x.stride())


def batch_as_strided_scatter(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """as_strided_scatter: the lanes become blocks of one memory (an offset counts from the lane's start)."""
    del op, kwargs
    x, source, size, stride = args[:4]
    offset = (args[4] if len(args) > 4 else None) or 0
    sizes, strides = (x.shape[1:], x.stride()[1:]) if mapped[0] else (x.shape, x.stride())
    extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    block = max(extent, reach)
    flat = x.new_zeros(level.size * block)
    flat.as_strided([level.size, *sizes], [block, *strides]).copy_(x)
    source = (
        source
        if not mapped[1]
        else source.reshape(level.size, *[1] * (len(size) + 1 - source.dim()), *source.shape[1:])
    )
    flat.as_strided([level.size, *size], [block, *stride], offset).copy_(source)
    return flat.as_strided([level.size, *sizes], [block, *strides])


def tangent_as_strided_scatter(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """as_strided_scatter: the same on tangents that are laid out as their primals."""
    del level, kwargs
    x, source, size, stride = primals[:4]
    offset = (primals[4] if len(primals) > 4 else None) or 0
    dx, ds = tangents[:2]
    laid = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    laid = torch.zeros_like(laid) if dx is None else torch.ones_like(laid) * dx
    moved = torch.zeros_like(source) if ds is None else ds
    if laid.stride() != x.stride():
        laid = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(laid)
    out = as_strided_write(x, source, size, stride, offset)
    del op
    return out, as_strided_write(laid, moved, size, stride, offset)


row("scatter.src", Linear((0, 3)), batch=batch_scatter)
row("scatter.value", Special(), batch=batch_scatter, tangent=tangent_scatter_value)
row("scatter.reduce scatter.value_reduce", Special(), batch=batch_scatter, tangent=tangent_scatter_reduced)
row("scatter_add", Linear((0, 3)), batch=batch_scatter)
row("scatter_reduce", Special(), batch=batch_scatter, tangent=tangent_scatter_reduce)
row("index_reduce", Special(), batch=batch_index_reduce, tangent=tangent_index_reduce)
row("select_scatter slice_scatter diagonal_scatter", Linear((0, 1)), batch=batch_write_slice)
row("as_strided_scatter", Special(), batch=batch_as_strided_scatter, tangent=tangent_as_strided_scatter)
