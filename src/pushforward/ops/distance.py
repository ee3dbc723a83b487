"""Distances: d_ij = ‖x_i − y_j‖_p, with the derivative 0 where the points meet, as in torch's reverse mode.

d‖z‖_p = Σ_m sign(z_m) |z_m|^(p−1) dz_m / ‖z‖_p^(p−1);  p = 0 has none;  p = ∞ takes the largest |z_m|.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .derived import pulled_back
from .kinds import Special
from .lanes import in_front, some_lanes
from .table import row

Tensor = torch.Tensor


def length(z: Tensor, p: float) -> Tensor:
    """‖z‖_p over the last dimension, safe to differentiate any number of times where z is 0."""
    if p == 0:
        return (z != 0).to(z.dtype).sum(-1)
    if p == 1:
        return z.abs().sum(-1)
    if math.isinf(p):
        return z.abs().amax(-1) if z.shape[-1] else z.sum(-1)
    if p == 2:
        square = (z * z).sum(-1)
        still = square == 0
        return torch.where(still, 0, torch.where(still, 1, square).sqrt()).to(z.dtype)
    size = z.abs()
    flat = size == 0
    power = torch.where(flat, 0, torch.where(flat, 1, size) ** p).to(z.dtype).sum(-1)
    still = power == 0
    return torch.where(still, 0, torch.where(still, 1, power) ** (1 / p)).to(z.dtype)


def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    """`[…, P, R]` distances of `[…, P, M]` and `[…, R, M]`."""
    del compute_mode
    return length(x.unsqueeze(-2) - y.unsqueeze(-3), p)


def cdist_backward(g: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """The cotangent of x."""
    del distances
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x = x.expand(*batch, *x.shape[-2:])
    return pulled_back(lambda v: cdist(v, y, p), [x], [g])[0]


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The distances of all pairs i < j of rows."""
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return length(x[i] - x[j], p)


def pdist_backward(g: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """The cotangent of x."""
    del distances
    return pulled_back(lambda v: pdist(v, p), [x], [g])[0]


@some_lanes
def batch_cdist(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The lanes are one more batch dimension, in front."""
    rank = max(a.dim() - bool(m) for a, m in zip(args[:2], mapped, strict=False))
    moved = []
    for a, m in zip(args[:2], mapped, strict=False):
        a = in_front(a, m, level.size)
        moved.append(a.reshape(a.shape[0], *[1] * (rank - a.dim() + 1), *a.shape[1:]))
    return op(*moved, *args[2:], **kwargs)


@some_lanes
def batch_cdist_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """Everything with all batch dimensions, which the kernel wants equal and contiguous."""
    del kwargs
    g, x, y, p, distances = args
    g, x, y, distances = (in_front(a, mapped[k], level.size) for a, k in ((g, 0), (x, 1), (y, 2), (distances, 4)))
    batch = g.shape[:-2]
    rank = len(batch) - 1

    def whole(a: Tensor) -> Tensor:
        a = a.reshape(a.shape[0], *[1] * (rank - a.dim() + 3), *a.shape[1:])
        return a.expand(*batch, *a.shape[-2:]).contiguous()

    return op(whole(g), whole(x), whole(y), p, whole(distances))


row("_cdist_forward", Special(), batch=batch_cdist, formula=cdist)
row("_euclidean_dist", Special(), batch=batch_cdist, formula=cdist)
row("_cdist_backward", Special(), batch=batch_cdist_backward, formula=cdist_backward)
row("_pdist_forward", Special(), formula=pdist)
row("_pdist_backward", Special(), formula=pdist_backward)
