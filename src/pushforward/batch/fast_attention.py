"""The short way of `nn.MultiheadAttention` under `vmap`: samples do not mix, so the lanes are more of them.

A value of `[L, N, E]` per lane is `[lanes, L, N, E]`; the function is called once on `[L, lanes · N, E]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..core.level import THREAD
from .fast import direct
from .fast_layers import called, constants_only, plain_mapped
from .level import Batched, wrap

Tensor = torch.Tensor
POSITIONAL = 13  # so many arguments the function hands over by place, dropout_p the tenth


def as_samples(payload: Tensor) -> Tensor:
    """`[lanes, L, E]` or `[lanes, L, N, E]` with lanes among the samples."""
    moved = payload.transpose(0, 1)
    return moved if moved.dim() == 3 else moved.flatten(1, 2)


def as_lanes(out: Tensor, lanes: int, rank: int) -> Tensor:
    """The output back with lanes in front."""
    return out.transpose(0, 1) if rank == 3 else out.unflatten(1, (lanes, -1)).transpose(0, 1)


def self_attention(p: Tensor, heads: int, w: Tensor, b: Tensor | None, w_out: Tensor, b_out: Tensor | None) -> Tensor:
    """The attention of `[lanes, L, E]` or `[lanes, L, N, E]` to itself, with the samples in front throughout: nothing is copied."""
    samples = p if p.dim() == 3 else p.transpose(1, 2).flatten(0, 1)
    q, k, v = F.linear(samples, w, b).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    made = F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), w_out, b_out)
    return made if p.dim() == 3 else made.unflatten(0, (p.shape[0], -1)).transpose(1, 2)


def to_itself(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is self-attention by one matrix, without masks, extra keys or weights to be returned."""
    x, size, heads, w, b, w_out = args[0], args[3], args[4], args[5], args[6], args[11]
    return (
        x is args[1]
        and x is args[2]
        and kwargs.get("need_weights") is False
        and not any(kwargs.get(name) for name in ("is_causal", "use_separate_proj_weight"))
        and all(kwargs.get(name) is None for name in ("attn_mask", "key_padding_mask"))
        and args[7] is None
        and args[8] is None
        and not args[9]
        and w is not None
        and size == x.size(-1)
        and size % heads == 0
        and w.shape == (3 * size, size)
        and (b is None or b.shape == (3 * size,))
        and w_out.shape == (size, size)
        and w.dtype is x.dtype
    )


def multi_head(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Self- or cross-attention of mapped values with weights and masks from outside, and no draws."""
    if len(args) != POSITIONAL or THREAD.order >= 2 or (args[10] and kwargs.get("training", True)):
        return None
    payloads = [plain_mapped(x) for x in args[:3]]
    first = payloads[0]
    if any(p is None or p.dim() not in (3, 4) or p.dim() != first.dim() or 0 in p.shape for p in payloads):
        return None
    level = args[0]._level
    mask = kwargs.get("attn_mask")
    if any(x._level is not level for x in args[1:3]) or (mask is not None and mask.dim() != 2):
        return None
    if any(kwargs.get(name) is not None for name in ("static_k", "static_v", "key_padding_mask")):
        return None
    if first.dim() == 4 and len({p.shape[2] for p in payloads}) > 1:
        return None  # the long way raises the error
    if not constants_only(level, args[3:], kwargs):
        return None
    if to_itself(args, kwargs):
        return wrap(level, direct(self_attention, first, *args[4:7], *args[11:], held=level.held), True), None
    known = {id(x): direct(as_samples, x._payload, held=level.held) for x in {id(x): x for x in args[:3]}.values()}
    moved = [known[id(x)] for x in args[:3]]  # the function looks for the same value given twice
    out, weights = called(level, func, moved[0], (*moved[1:], *args[3:]), kwargs)
    made = wrap(level, direct(as_lanes, out, level.size, first.dim(), held=level.held), True)
    if weights is None:
        return made, None
    if first.dim() == 4:
        weights = direct(Tensor.unflatten, weights, 0, (level.size, -1), held=level.held)
    return made, wrap(level, weights, True)


Batched._named[F.multi_head_attention_forward] = multi_head
