"""Reductions: over some dimensions, or all of them.

    sum, mean      linear
    prod           sum over i of dx[i] · product of the others, by products of dual numbers
    var            2 / (n − c) · sum of Re (x − mean)* dx;  std: d var / (2 std), 0 where std is 0
    logsumexp      sum of dx · exp(x − out)
    p-norm         sum of Re (sgn x)* dx · (|x| / out)^(p − 1), 0 where the norm is 0; for p = ±inf as amax of |x|
    amax, amin     the mean of dx over those that attain it; `max.dim` and the like: the one that the index names

These are torch's reverse conventions, so both modes agree at ties and at 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .kinds import Decomposed, Reduction, Special
from .products import product_tangent
from .scan import widened
from .sort import argument
from .table import row

Tensor = torch.Tensor


def no_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Integer and boolean results."""
    del level, tangents
    return op(*primals, **kwargs), None


class Over:
    """The dimensions that a call reduces: `dims` (all where none are given) and `keepdim`."""

    def __init__(self, op: Any, primals: list[Any], kwargs: dict[str, Any]) -> None:
        rank = primals[0].dim()
        dim = argument(op, primals, kwargs, "dim")
        given = list(dim) if isinstance(dim, (list, tuple)) else [] if dim is None else [dim]
        self.dims = [d % max(rank, 1) for d in given] if given else list(range(rank))
        self.dims = [] if rank == 0 else self.dims
        self.keepdim = bool(argument(op, primals, kwargs, "keepdim"))
        self.count = math.prod(primals[0].shape[d] for d in self.dims)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the reduced dimensions, in the sizes of the result."""
        return x.sum(self.dims, keepdim=self.keepdim) if self.dims else x

    def back(self, out: Tensor) -> Tensor:
        """A result with the reduced dimensions kept, to go with the argument."""
        if self.keepdim:
            return out
        for d in sorted(self.dims):
            out = out.unsqueeze(d)
        return out


def real_part(x: Tensor) -> Tensor:
    """The real part; of real values, themselves."""
    return x.real if x.is_complex() else x


def tangent_nansum(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """nansum: the sum of the tangents of those that are numbers."""
    del level
    moved = torch.where(primals[0].isnan(), 0, tangents[0])
    return op(*primals, **kwargs), op(moved, *primals[1:], **kwargs)


def tangent_prod(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """prod: products of dual numbers, in float32 for half precision."""
    del level
    out = op(*primals, **kwargs)
    over = Over(op, primals, kwargs)
    x, t = (widened(v, kwargs.get("dtype")) for v in (primals[0], tangents[0]))
    if x.dim() == 0:
        return out, t.to(out.dtype)
    if len(over.dims) == x.dim():
        x, t = x.reshape(-1), t.reshape(-1)
    else:
        x, t = x.movedim(over.dims[0], -1), t.movedim(over.dims[0], -1)
    return out, product_tangent(x, t).reshape(out.shape).to(out.dtype)


def spread_of(op: Any, primals: list[Any], kwargs: dict[str, Any], over: Over, t: Tensor) -> Tensor:
    """The tangent of the variance."""
    x = primals[0]
    correction = kwargs.get("correction")
    freedom = over.count - (1 if correction is None else correction)
    deviation = x - (x.mean(over.dims, keepdim=True) if over.dims else x)
    return over.sum(real_part(deviation.conj() * t)) * (
        2 / freedom if freedom > 0 else math.nan if freedom < 0 or over.count else 0
    )


def tangent_var(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """var and var_mean; std and std_mean are their square roots."""
    del level
    out = op(*primals, **kwargs)
    over, t, name = Over(op, primals, kwargs), tangents[0], op._schema.name
    moved = spread_of(op, primals, kwargs, over, t)
    first = out[0] if isinstance(out, tuple) else out
    if "std" in name:
        zero = first == 0
        moved = torch.where(zero, 0, moved / torch.where(zero, 1, 2 * first))
    if not isinstance(out, tuple):
        return out, moved
    mean = t.mean(over.dims, keepdim=over.keepdim) if over.dims else t
    return out, (moved, mean)


def tangent_logsumexp(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """logsumexp: the mean of the tangents with the softmax as weights; 0 where all are −inf."""
    del level
    x, t = primals[0], tangents[0]
    out, over = op(*primals, **kwargs), Over(op, primals, kwargs)
    base = over.back(out)
    low = base == -math.inf if not base.is_complex() else torch.zeros_like(base, dtype=torch.bool)
    weights = torch.where(low, 0, (x - torch.where(low, 0, base)).exp())
    return out, over.sum(weights * t)


def attained(x: Tensor, out: Tensor) -> Tensor:
    """Which elements attain an extreme value (NaN attains NaN)."""
    return (x == out) | (x.isnan() & out.isnan())


def mean_of(mask: Tensor, t: Tensor, over: Over) -> Tensor:
    """The mean of tangents over a mask."""
    mask = mask.to(t.dtype)
    return over.sum(mask * t) / over.sum(mask)


def tangent_extreme(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """amax, amin, max and min of all, aminmax, median of all: an even split over ties."""
    del level
    x, t = primals[0], tangents[0]
    out, over = op(*primals, **kwargs), Over(op, primals, kwargs)
    if isinstance(out, tuple):
        return out, tuple(mean_of(attained(x, over.back(o)), t, over) for o in out)
    return out, mean_of(attained(x, over.back(out)), t, over)


def tangent_vector_norm(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """The p-norm: 0 at 0, like torch's reverse mode."""
    del level
    out = op(*primals, **kwargs)
    over = Over(op, primals, kwargs)
    p = primals[1] if len(primals) > 1 else 2
    x, t = primals[0], tangents[0]
    if kwargs.get("dtype") is not None:
        x, t = x.to(kwargs["dtype"]), t.to(kwargs["dtype"])
    if p == 0:
        return out, None
    base = over.back(out)
    if p == 2:
        zero = base == 0
        return out, over.sum(torch.where(zero, 0, real_part(x.conj() * t) / torch.where(zero, 1, base)))
    along = real_part(x.sgn().conj() * t)
    if p == 1:
        return out, over.sum(along)
    size = x.abs()
    if math.isinf(p):
        return out, mean_of(attained(size, base), along, over)
    still = (size == 0) | (base == 0) if p >= 1 else size == 0
    ratio = torch.where(still, 1, size) / torch.where(still, 1, base)
    return out, over.sum(torch.where(still, 0, along * ratio ** (p - 1)))


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """norm: the vector norm."""
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


def dist(x: Tensor, y: Tensor, p: Any = 2) -> Tensor:
    """dist: the norm of a difference."""
    return torch.linalg.vector_norm(x - y, p)


def trace(x: Tensor) -> Tensor:
    """trace: the sum of the diagonal."""
    if x.dim() != 2:
        msg = f"trace: expected a matrix, but got tensor with dim {x.dim()}"
        raise RuntimeError(msg)
    return x.diagonal().sum()


row("sum mean", Reduction(linear=True))
row("nansum", Reduction(), tangent=tangent_nansum)
row("prod", Reduction(), tangent=tangent_prod)
row("amax amin aminmax max.default min.default median nanmedian", Reduction(), tangent=tangent_extreme)
row("logsumexp", Reduction(), tangent=tangent_logsumexp)
row("var std var_mean std_mean", Reduction(), tangent=tangent_var)
row("linalg_vector_norm", Reduction(), tangent=tangent_vector_norm)
row("norm", Decomposed(norm))
row("dist", Decomposed(dist))
row("trace", Decomposed(trace))
row("all any argmax argmin count_nonzero hash_tensor", Reduction(), tangent=no_tangent)
row("_is_all_true", Decomposed(lambda x: x.all()))
row("_is_any_true", Decomposed(lambda x: x.any()))


def power_sum(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Σ |x|^p; at p = 0 the number of elements that are not 0."""
    size = (x if dtype is None else x.to(dtype)).abs()
    powers = (size != 0).to(size.dtype) if p == 0 else size if p == 1 else size**p
    return powers.sum(dim or None, keepdim)


row("linalg__powsum", Special(), formula=power_sum)

def smallest_and_largest(x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """aminmax, as it was called before."""
    return tuple(torch.aminmax(x, dim=dim, keepdim=keepdim))  # type: ignore[return-value]


row("_aminmax", Decomposed(smallest_and_largest))
