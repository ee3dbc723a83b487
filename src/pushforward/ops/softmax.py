"""Softmax and its logarithm: ds = s (dx − Σ s dx) and d log s = dx − Σ s dx along one dimension."""

from __future__ import annotations

from typing import Any

import torch

from .kinds import AlongDim, Decomposed
from .table import row

Tensor = torch.Tensor


def softmax_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """s (dx − Σ s dx)."""
    del level
    out, dim = op(*primals, **kwargs), primals[1]
    t = tangents[0].to(out.dtype)
    return out, out * (t - (out * t).sum(dim, keepdim=True))


def log_softmax_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """dx − Σ s dx."""
    del level
    out, dim = op(*primals, **kwargs), primals[1]
    t = tangents[0].to(out.dtype)
    return out, t - (out.exp() * t).sum(dim, keepdim=True)


def softmax_backward(g: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """s (g − Σ s g)."""
    return (out * (g - (out * g).sum(dim, keepdim=True))).to(input_dtype)


def log_softmax_backward(g: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """g − s Σ g."""
    return (g - out.exp() * g.sum(dim, keepdim=True)).to(input_dtype)


def masked_softmax(x: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
    """Softmax over the places that are not masked; 0 at the others."""
    dim = x.dim() - 1 if dim is None else dim
    if mask_type == 0:
        mask = mask.view(1, 1, *mask.shape)
    elif mask_type == 1:
        mask = mask.view(x.shape[0], 1, 1, x.shape[-1])
    mask = mask.to(torch.bool).expand(x.shape)
    return torch._safe_softmax(x.masked_fill(mask, -float("inf")), dim)


def masked_softmax_backward(g: Tensor, out: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """s (g − Σ s g): s is 0 at the masked places."""
    del mask
    return softmax_backward(g, out, out.dim() - 1 if dim is None else dim, out.dtype)


row("_softmax _safe_softmax", AlongDim(dim=1), tangent=softmax_tangent)
row("_log_softmax", AlongDim(dim=1), tangent=log_softmax_tangent)
row("_softmax_backward_data", AlongDim(dim=2), formula=softmax_backward)
row("_log_softmax_backward_data", AlongDim(dim=2), formula=log_softmax_backward)
row("_masked_softmax", Decomposed(masked_softmax))
row("_masked_softmax_backward", Decomposed(masked_softmax_backward))
