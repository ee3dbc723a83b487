"""Counting: bins of a histogram, bins of integers, distinct values.

All lanes at once, by a bin number for each element and one scatter.

Sizes that depend on the data (bincount, unique) are those of the largest group of lanes that agrees.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .kinds import Constant, Decomposed, Special
from .lanes import in_front
from .table import row

Tensor = torch.Tensor


def batch_bincount(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """bincount: as many bins as the largest value of a lane needs."""
    del op, kwargs
    x = in_front(args[0], mapped[0], level.size)
    weights = args[1] if len(args) > 1 else None
    least = args[2] if len(args) > 2 else 0
    if x.shape[1] == 0:
        return torch.zeros((level.size, least), dtype=torch.long, device=x.device)
    if level.size:
        low, high = x.amin(1), x.amax(1)
        bins = level.agree(torch.where(low < 0, -1, (high.long() + 1).clamp(min=least)))
        if bins < 0:
            msg = "bincount only supports 1-d non-negative integral inputs."
            raise RuntimeError(msg)
    else:
        bins = least
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.long)
    else:
        weights = in_front(weights, mapped[1], level.size)
        weights = weights if weights.dtype is torch.float32 else weights.double()
    zeros = torch.zeros((level.size, bins), dtype=weights.dtype, device=x.device)
    return zeros.scatter_add(1, x.long().clamp(0, max(bins - 1, 0)), weights)


def batch_histc(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """histc: equal bins between two limits, or between the extremes of each lane."""
    del op, mapped, kwargs
    bins, low, high = [*args[1:], *[100, 0, 0][len(args) - 1 :]]
    x = args[0].reshape(level.size, math.prod(args[0].shape[1:]))
    if low == high and x.shape[1] and level.size:
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        flat = low == high
        low, high = torch.where(flat, low - 1, low), torch.where(flat, high + 1, high)
    elif low == high:
        low, high = low - 1, high + 1
    inside = (x >= low) & (x <= high)
    place = torch.where(inside, (x - low) * bins / (high - low), 0).long().clamp(0, bins - 1)
    return torch.zeros((level.size, bins), dtype=x.dtype, device=x.device).scatter_add(1, place, inside.to(x.dtype))


# -- histograms over any number of dimensions ----------------------------------------------------------------------


def edges_between(x: Tensor, bins: int, limits: Any) -> Tensor:
    """`bins + 1` edges from one limit to the other; without limits, between the extremes of x."""
    if limits is not None:
        low, high = (torch.full((), float(v), dtype=x.dtype, device=x.device) for v in limits)
    elif x.numel():
        low, high = x.amin(), x.amax()
    else:
        low, high = (torch.full((), v, dtype=x.dtype, device=x.device) for v in (0.0, 1.0))
    flat = low == high
    low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
    return torch.ops.aten.linspace.Tensor_Tensor(low, high, bins + 1, dtype=x.dtype)


def counted(x: Tensor, edges: list[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """How much weight of the points `[N, D]` falls into each cell; cells are closed below, the last one also above."""
    sizes = [e.shape[0] - 1 for e in edges]
    inside = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    place = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    for d, (e, n) in enumerate(zip(edges, sizes, strict=True)):
        column = x[:, d].contiguous()
        k = torch.searchsorted(e.contiguous(), column, right=True) - 1
        k = torch.where(column == e[-1], n - 1, k)
        inside = inside & (column >= e[0]) & (column <= e[-1])
        place = place * n + k.clamp(0, max(n - 1, 0))
    amount = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1)
    amount = torch.where(inside, amount, 0)
    place = torch.where(inside, place, 0)
    out = torch.zeros(math.prod(sizes), dtype=x.dtype, device=x.device).scatter_add(0, place, amount).reshape(sizes)
    if density:
        out = out / out.sum()
        for d, e in enumerate(edges):
            out = out / e.diff().reshape([-1 if k == d else 1 for k in range(len(sizes))])
    return out


def histogram_of_bins(x: Tensor, bins: int = 100, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """histogram with a number of bins."""
    flat = x.reshape(-1)
    edges = edges_between(flat, bins, kwargs.get("range"))
    return counted(flat.unsqueeze(1), [edges], kwargs.get("weight"), kwargs.get("density", False)), edges


def histogram_of_edges(x: Tensor, bins: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """histogram with given edges."""
    flat = x.reshape(-1, 1)
    return counted(flat, [bins], kwargs.get("weight"), kwargs.get("density", False)), bins.clone()


def all_edges(x: Tensor, bins: Any, **kwargs: Any) -> list[Tensor]:
    """The edges for each of the last dimension's coordinates."""
    points, limits = x.reshape(-1, x.shape[-1]), kwargs.get("range")
    pairs = [None] * len(bins) if limits is None else [limits[2 * d : 2 * d + 2] for d in range(len(bins))]
    return [edges_between(points[:, d], n, pair) for d, (n, pair) in enumerate(zip(bins, pairs, strict=True))]


def histogramdd_of_bins(x: Tensor, bins: Any, **kwargs: Any) -> Tensor:
    """histogramdd with numbers of bins."""
    edges = all_edges(x, bins, **kwargs)
    return counted(x.reshape(-1, x.shape[-1]), edges, kwargs.get("weight"), kwargs.get("density", False))


def histogramdd_of_edges(x: Tensor, bins: Any, **kwargs: Any) -> Tensor:
    """histogramdd with given edges."""
    return counted(x.reshape(-1, x.shape[-1]), list(bins), kwargs.get("weight"), kwargs.get("density", False))


# -- distinct values -----------------------------------------------------------------------------------------------


def tangent_distinct(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """unique, unique_consecutive: the tangent of the first element that has the value."""
    del level
    out = op(*primals, **kwargs)
    x, t = primals[0], tangents[0]
    places, dim = element_groups(op, primals, kwargs)
    n = x.numel() if dim is None else x.shape[dim]
    count = out[0].shape[0 if dim is None else dim]
    first = torch.full((count,), n, dtype=torch.long, device=x.device)
    first = first.scatter_reduce(0, places, torch.arange(n, device=x.device), "amin")
    moved = t.reshape(-1)[first] if dim is None else t.index_select(dim, first)
    return out, (moved, *[None] * (len(out) - 1))


def element_groups(op: Any, primals: list[Any], kwargs: dict[str, Any]) -> tuple[Tensor, int | None]:
    """Which distinct value each element (or slice along `dim`) has."""
    del kwargs
    name = op._schema.name.split("::")[1]
    x = primals[0]
    if name == "unique_dim":
        return torch.ops.aten.unique_dim(x, primals[1], primals[2] if len(primals) > 2 else True, True)[1], primals[
            1
        ] % x.dim()
    if name == "unique_dim_consecutive":
        return torch.ops.aten.unique_dim_consecutive(x, primals[1], True)[1], primals[1] % x.dim()
    if name == "unique_consecutive":
        dim = primals[3] if len(primals) > 3 else None
        found = torch.ops.aten.unique_consecutive(x, True, False, dim)[1]
        return (found.reshape(-1), None) if dim is None else (found, dim % x.dim())
    return torch.ops.aten._unique2(x, True, True)[1].reshape(-1), None


row("bincount", Constant(), batch=batch_bincount)
row("histc", Constant(), batch=batch_histc)
row("histogram.bin_ct", Decomposed(histogram_of_bins))
row("histogram.bins_tensor", Decomposed(histogram_of_edges))
row("_histogramdd_bin_edges", Decomposed(all_edges))
row("_histogramdd_from_bin_cts", Decomposed(histogramdd_of_bins))
row("_histogramdd_from_bin_tensors", Decomposed(histogramdd_of_edges))
row("_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive", Special(), tangent=tangent_distinct)
