"""Scans: out[i] depends on x[0..i] along one dimension.

cumsum        linear
cumprod       d out[i] = sum over k ≤ i of dx[k] · product of the others: running products of dual numbers
logcumsumexp  d out[i] = sum over k ≤ i of dx[k] exp(x[k] − out[i]): a running mean, kept as pairs (log weight, mean)
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import AlongDim, Decomposed
from .products import running_products
from .table import row

Tensor = torch.Tensor


def tangent_cumprod(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """cumprod: running products of dual numbers, in float32 for half precision."""
    del level
    out = op(*primals, **kwargs)
    x, dim, t = primals[0], primals[1], tangents[0]
    if x.dim() == 0:
        return out, t.to(out.dtype)
    x, t = widened(x, kwargs.get("dtype")), widened(t, kwargs.get("dtype"))
    return out, running_products(x.movedim(dim, -1), t.movedim(dim, -1)).movedim(-1, dim).to(out.dtype)


def widened(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`x` in the dtype that the operator was asked to work in; half precision in float32."""
    if dtype is not None and dtype is not x.dtype:
        x = x.to(dtype)
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def tangent_logcumsumexp(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """logcumsumexp: join neighbours (l, m) as (log(e^l + e^l'), the mean of m and m' with these weights).

    Only differences of logarithms are exponentiated, so a wide range gives neither overflow nor NaN.
    """
    del level, kwargs
    x, dim, t = primals[0], primals[1], tangents[0]
    out = op(*primals)
    if x.dim() == 0:
        return out, t
    logs, means = widened(x).movedim(dim, -1), widened(t).movedim(dim, -1)
    step, n = 1, logs.shape[-1]
    while step < n:
        early, late = logs[..., :-step], logs[..., step:]
        same = early == late  # also where both are infinite
        share = share_of(early, late, same)
        means = torch.cat([means[..., :step], share * means[..., :-step] + (1 - share) * means[..., step:]], -1)
        logs = torch.cat([logs[..., :step], log_sum(early, late)], -1)
        step *= 2
    return out, means.movedim(-1, dim).to(out.dtype)


def share_of(early: Tensor, late: Tensor, same: Tensor) -> Tensor:
    """e^early / (e^early + e^late); a half where both are the same infinity."""
    if early.is_complex():
        top = torch.maximum(early.real, late.real)
        top = torch.where(top.isfinite(), top, 0)
        a, b = (early - top).exp(), (late - top).exp()
        return a / torch.where(a + b == 0, 1, a + b)
    stuck = same & early.isinf()
    return torch.sigmoid(torch.where(stuck, 0, early) - torch.where(stuck, 0, late))


def log_sum(early: Tensor, late: Tensor) -> Tensor:
    """log(e^early + e^late), with derivatives that are finite where both are −inf."""
    if early.is_complex():
        top = torch.maximum(early.real, late.real)
        top = torch.where(top.isfinite(), top, 0)
        return ((early - top).exp() + (late - top).exp()).log() + top
    stuck = early.isinf() & (early == late)
    early_leads = early >= late
    lead, other = torch.where(early_leads, early, late), torch.where(early_leads, late, early)
    distance = torch.where(stuck, 0, lead) - torch.where(stuck, 0, other)
    return torch.where(stuck, lead, lead - torch.nn.functional.logsigmoid(distance))


def renorm(x: Tensor, p: Any, dim: int, maxnorm: Any) -> Tensor:
    """Slices along `dim` with a norm above `maxnorm` are scaled down to it."""
    others = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(widened(x), p, others, keepdim=True)
    large = norm > maxnorm
    factor = torch.where(large, maxnorm / (torch.where(large, norm, 1) + 1e-7), 1)
    return x * factor.to(x.dtype)


row("cumsum", AlongDim(linear=True))
row("cumprod", AlongDim(), tangent=tangent_cumprod)
row("logcumsumexp _logcumsumexp", AlongDim(), tangent=tangent_logcumsumexp)
row("renorm", Decomposed(renorm))
