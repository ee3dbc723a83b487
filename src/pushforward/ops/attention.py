"""Attention: out_i = Σ_j p_ij v_j with p_ij = exp(s_ij − lse_i), s = scale · q kᵀ + mask.

Along directions of q, k, v and the mask,
    d out_i = Σ_j p_ij (ds_ij − d lse_i) v_j + Σ_j p_ij dv_j,    d lse_i = Σ_j p_ij ds_ij.
All sums run over blocks of keys with an online softmax, so that memory grows with the length and not with its square.
Every row sum is computed here, from the inputs, and never taken from the kernel, which hands out `lse` as a constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..core.fresh import stopped
from .kinds import Special
from .lanes import in_front, merged, parted, some_lanes
from .table import row

Tensor = torch.Tensor
BLOCK, NARROWEST = 256, 32  # keys at a time
SCORES = 1 << 17  # scores at a time, where that is no fewer keys
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@some_lanes
def batch_attention(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the samples, also in a mask that is mapped."""
    size = level.size
    moved = [in_front(a, m, size) if isinstance(a, Tensor) else a for a, m in zip(args, mapped, strict=True)]
    n, heads = moved[0].shape[1:3]
    mask = kwargs.get("attn_mask")
    if mask is not None:
        kwargs = {
            **kwargs,
            "attn_mask": merged_mask(mask, "attn_mask" in getattr(mapped, "keywords", ()), size, n, heads),
        }
        if kwargs["attn_mask"].requires_grad and torch.is_grad_enabled() and op is FORWARD:
            # Torch chose the kernel by the value; the kernel does not differentiate by a mask, its formula does.
            q, k, v = (merged(x) for x in moved[:3])
            scale = kwargs.get("scale")
            k, v = for_heads(k, q), for_heads(v, q)
            out, lse, _, _ = online(q, k, v, option(moved, 4, False), kwargs["attn_mask"], scale, (None,) * 4)  # pyright: ignore[reportArgumentType]
            return parted(as_kernel(out), size, n), parted(lse, size, n)
    out = op(*(merged(a) if isinstance(a, Tensor) else a for a in moved), **kwargs)
    return tuple(parted(o, size, n) for o in out)


def merged_mask(mask: Tensor, mapped: bool, size: int, n: int, heads: int) -> Tensor:
    """A mask as one that broadcasts against `[lanes · N, heads, L, S]`."""
    if not mapped and (mask.dim() == 2 or mask.shape[0] == 1):
        return mask
    mask = in_front(mask, mapped, size)
    if mask.dim() == 3:
        mask = mask[:, None, None]
    elif mask.dim() == 4:
        mask = mask[:, None]
    return merged(mask.expand(size, n, *mask.shape[2:]))


class Scores:
    """The scores s of one block of keys, and their tangent."""

    def __init__(self, q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> None:
        self.q, self.k, self.mask = q, k, mask
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        self.causal = causal
        self.rows = torch.arange(q.shape[-2], device=q.device)[:, None] if causal else None

    def blocks(self) -> list[slice]:
        """The keys, block by block: as many as keep a block of scores small beside the kernel's own results."""
        total, queries = self.k.shape[-2], math.prod(self.q.shape[:-1])
        width = min(max(SCORES // max(queries, 1), NARROWEST), BLOCK)
        return [slice(start, min(start + width, total)) for start in range(0, total, width)]

    def mask_of(self, block: slice) -> Tensor | None:
        """The mask's columns of a block."""
        if self.mask is None:
            return None
        return self.mask if self.mask.shape[-1] == 1 else self.mask[..., block]

    def values(self, block: slice) -> Tensor:
        """s for a block of keys; −∞ where masked out."""
        s = (self.q * self.scale) @ self.k[..., block, :].transpose(-2, -1)
        mask = self.mask_of(block)
        if mask is not None:
            s = s.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else s + mask
        if self.rows is not None:
            columns = torch.arange(block.start, block.stop, device=s.device)
            s = s.masked_fill(columns > self.rows, -math.inf)
        return s


def online(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float | None, moves: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Any, Any]:
    """out, lse and their tangents along `moves` = (dq, dk, dv, dmask), in one pass over blocks of keys.

    With m the running maximum: l = Σ e^(s−m), o = Σ e^(s−m) v, r = Σ e^(s−m) ds, a = Σ e^(s−m) (ds v + dv), all
    rescaled when m grows.
    """
    dq, dk, dv, dmask = moves
    scores = Scores(q, k, causal, mask, scale)
    peak: Any = None
    total: Any = None
    out: Any = None
    slope: Any = None
    moved: Any = None
    for block in scores.blocks():
        s = scores.values(block)
        top = stopped(s).amax(-1, keepdim=True)
        new = top if peak is None else torch.maximum(peak, top)
        level = torch.where(new == -math.inf, 0, new).to(s.dtype)  # a row without keys so far
        p = (s - level).exp()  # pyright: ignore[reportArgumentType]
        del s
        vb = v[..., block, :]
        ds = score_tangent(scores, block, dq, dk, dmask)
        ds = None if ds is None else p * ds
        terms: list[Any] = [p.sum(-1, keepdim=True), p @ vb, None if ds is None else ds.sum(-1, keepdim=True)]
        part = None if ds is None else ds @ vb
        del ds
        if dv is not None:
            push = p @ dv[..., block, :]
            part = push if part is None else part + push
        terms.append(part)
        if peak is None:
            total, out, slope, moved = terms  # pyright: ignore[reportOptionalOperand]
        else:
            shrink = (peak - level).exp()
            total, out, slope, moved = (
                None if t is None else old * shrink + t
                for old, t in zip((total, out, slope, moved), terms, strict=True)
            )
        peak = new  # pyright: ignore[reportOptionalMemberAccess]
    if total is None:  # pyright: ignore[reportOptionalOperand]
        zero = q.new_zeros(*q.shape[:-1], v.shape[-1])  # pyright: ignore[reportArgumentType, reportCallIssue]
        return zero, q.new_zeros(q.shape[:-1]), None, None
    safe = torch.where(total == 0, 1, total).to(out.dtype)
    out = out / safe
    lse = torch.where(peak == -math.inf, 0, peak).to(out.dtype) + safe.log()  # 0 for a row without keys, as the kernel  # pyright: ignore[reportOptionalOperand]
    d_lse = None if slope is None else slope / safe
    d_out = None if moved is None else moved / safe
    if d_lse is not None:
        d_out = d_out - d_lse * out
    return out, lse.squeeze(-1), d_out, None if d_lse is None else d_lse.squeeze(-1)


def score_tangent(scores: Scores, block: slice, dq: Any, dk: Any, dmask: Any) -> Tensor | None:
    """scale (dq kᵀ + q dkᵀ) + dmask for a block of keys."""
    ds = None
    if dq is not None:
        ds = (dq * scores.scale) @ scores.k[..., block, :].transpose(-2, -1)
    if dk is not None:
        part = (scores.q * scores.scale) @ dk[..., block, :].transpose(-2, -1)
        ds = part if ds is None else ds + part
    if dmask is not None:
        part = dmask if dmask.shape[-1] == 1 else dmask[..., block]
        ds = part if ds is None else ds + part
    return ds


def option(primals: list[Any], k: int, default: Any) -> Any:
    """The k-th argument, or its default."""
    return primals[k] if len(primals) > k else default


def attention_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """(out, lse) of the fused kernel, computed in blocks with their tangents."""
    del op, level
    q = primals[0]  # pyright: ignore[reportArgumentType]
    (k, dk), (v, dv) = ((for_heads(p, q), for_heads(t, q)) for p, t in zip(primals[1:3], tangents[1:3], strict=True))
    mask = kwargs.get("attn_mask")
    moves = (tangents[0], dk, dv, getattr(tangents, "keywords", {}).get("attn_mask"))
    out, lse, d_out, d_lse = online(q, k, v, option(primals, 4, False), mask, kwargs.get("scale"), moves)
    return (as_kernel(out), lse), (None if d_out is None else as_kernel(d_out), d_lse)


def for_heads(x: Any, q: Tensor) -> Any:
    """Keys or values for each head of the queries, where several heads share one."""
    return x if x is None or x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def as_kernel(out: Tensor) -> Tensor:
    """`[N, heads, L, E]` with heads inside of positions, as the kernel has it: it is viewed as `[N, L, heads · E]`."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def attention_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportAssignmentType]
    """ds = p (g vᵀ − Σ g out); dq = scale ds k, dk = scale dsᵀ q, dv = pᵀ g, block by block."""
    del dropout_p
    shared = k.shape[:2]
    k, v = for_heads(k, q), for_heads(v, q)
    scores = Scores(q, k, is_causal, attn_mask, scale)
    delta = (g * out).sum(-1, keepdim=True)
    shift = lse.unsqueeze(-1)
    shift = torch.where(shift == -math.inf, 0, shift).to(q.dtype)
    by_q, by_k, by_v = None, [], []
    for block in scores.blocks():
        p = (scores.values(block) - shift).exp()
        ds = p * (g @ v[..., block, :].transpose(-2, -1) - delta)
        part = (ds @ k[..., block, :]) * scores.scale
        by_q = part if by_q is None else by_q + part
        by_k.append((ds.transpose(-2, -1) @ q) * scores.scale)
        by_v.append(p.transpose(-2, -1) @ g)
    if by_q is None:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)  # pyright: ignore[reportReturnType]
    whole = [torch.cat(parts, -2) for parts in (by_k, by_v)]
    if shared[1] != q.shape[1]:
        whole = [w.unflatten(1, (shared[1], -1)).sum(2) for w in whole]
    return by_q, whole[0], whole[1]


def draws_nothing(op: Any, values: list[Any], kwargs: dict[str, Any]) -> bool:
    """The fused kernel is tagged as random for a dropout that it does not have on CPU."""
    del op, kwargs
    return option(values, 3, 0.0) > 0


row(
    "_scaled_dot_product_flash_attention_for_cpu",
    Special(),
    batch=batch_attention,
    tangent=attention_tangent,
    draws=draws_nothing,
)
row(
    "_scaled_dot_product_flash_attention_for_cpu_backward", Special(), batch=batch_attention, formula=attention_backward
)
