"""Copies: to another dtype, device or memory format. Linear, so the tangent is copied the same way.

A memory format speaks of the four or five dimensions of a lane: the payload, which has one more, gets the strides that
a lane should have by a permutation.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import ElementwiseLinear
from .table import row

Tensor = torch.Tensor
LAST = {torch.channels_last: 4, torch.channels_last_3d: 5}


def batch_copied(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """clone, _to_copy, *_like: the format of a lane."""
    del level, mapped
    wanted = kwargs.get("memory_format")
    if wanted not in LAST:
        return op(*args, **kwargs)
    x, rank = args[0], LAST[wanted]
    if x.dim() - 1 != rank:
        msg = f"required rank {rank} tensor to use {wanted} format"
        raise RuntimeError(msg)
    kwargs = {**kwargs, "memory_format": torch.contiguous_format}
    return op(x.movedim(2, -1), *args[1:], **kwargs).movedim(-1, 2)


def tangent_cast(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """_to_copy: the same cast of the tangent; integers have none, which the level says."""
    out = op(*primals, **kwargs)
    if out.is_complex() or out.is_floating_point():
        return out, op(tangents[0], **kwargs)
    if out.dtype is not torch.bool:
        level.lose(f"a cast to {str(out.dtype).removeprefix('torch.')}", "makes integers of a differentiated value")
    return out, None


row("clone", ElementwiseLinear(), batch=batch_copied)
row("_to_copy", ElementwiseLinear(), batch=batch_copied, tangent=tangent_cast)
