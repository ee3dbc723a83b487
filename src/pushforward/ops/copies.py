"""Movement beyond single views: the `*_copy` forms, joins of blocks, diagonals made, and paddings. All linear.

A `*_copy` operator is its view operator followed by a copy, so its batching rule is that of the view.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .kinds import Constant, Decomposed, Movement
from .movement import tangent_as_strided
from .table import entry, row

Tensor = torch.Tensor


def batch_copy_of_view(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The rule of the view, and a copy."""
    name, _, overload = op.name().removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, "narrow" if name == "narrow_copy" else name.removesuffix("_copy"))
    view = getattr(packet, overload or "default")
    out = level.rule_for(entry(view))(view, level, args, mapped, kwargs)
    copied = torch.contiguous_format
    if isinstance(out, Tensor):
        return out.clone(memory_format=copied)
    return [o.clone(memory_format=copied) for o in out]


def tangent_strided_copy(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """as_strided_copy: copies of the view and of its tangent."""
    del op
    out, moved = tangent_as_strided(torch.ops.aten.as_strided.default, level, primals, tangents, kwargs)
    return out.clone(memory_format=torch.contiguous_format), moved.clone(memory_format=torch.contiguous_format)


def batch_diag_embed(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """diag_embed: the two dimensions are counted in the result."""
    del level, mapped, kwargs
    x = args[0]
    offset, first, second = [*args[1:], *[0, -2, -1][len(args) - 1 :]]
    rank = x.dim()
    return op(x, offset, first % rank + 1, second % rank + 1)


def rot90(x: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """A quarter turn k times, as flips and a transposition."""
    first, second = dims
    k %= 4
    if k == 1:
        return x.flip([second]).transpose(first, second)
    if k == 2:
        return x.flip([first, second])
    if k == 3:
        return x.flip([first]).transpose(first, second)
    return x.clone()


def block_diag(tensors: Any) -> Tensor:
    """Each block padded to the full width, one below the other."""
    blocks = [torch.atleast_2d(t) for t in tensors]
    width = sum(b.shape[1] for b in blocks)
    rows, before = [], 0
    for b in blocks:
        rows.append(torch.nn.functional.pad(b, (before, width - before - b.shape[1])))
        before += b.shape[1]
    return torch.cat(rows)


def chunk_cat(tensors: Any, dim: int, num_chunks: int) -> Tensor:
    """Each tensor padded to whole chunks along `dim`, its chunks flattened; joined chunk by chunk."""
    parts = []
    for t in tensors:
        d = dim % t.dim()
        short = -t.shape[d] % num_chunks
        padded = torch.nn.functional.pad(t, [0, 0] * (t.dim() - d - 1) + [0, short])
        parts.append(padded.reshape(*t.shape[:d], num_chunks, math.prod(padded.shape[d:]) // num_chunks))
    return torch.cat(parts, parts[0].dim() - 1)


def padded_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """constant_pad_nd: the padding has no tangent."""
    del level, kwargs
    return op(*primals), op(tangents[0], primals[1], 0)


def batch_pad(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """constant_pad_nd counts from the last dimension."""
    del level, mapped, kwargs
    return op(*args)


def spaced(start: Any, end: Any, steps: int, dtype: Any = None, device: Any = None) -> Tensor:
    """linspace from tensors: counted from the nearer end, so that both ends are exact."""
    like = start if isinstance(start, Tensor) else end
    if dtype is None:  # as in torch: of the default precision, whatever the ends have
        dtype = torch.get_default_dtype()
        if any(v.is_complex() if isinstance(v, Tensor) else isinstance(v, complex) for v in (start, end)):
            dtype = dtype.to_complex()
    start, end = (v if isinstance(v, Tensor) else torch.full_like(like, v, dtype=dtype) for v in (start, end))
    k = torch.arange(steps, device=device or like.device)
    if steps < 2:
        return (start + 0 * k).to(dtype)
    step = (end.to(dtype) - start.to(dtype)) / (steps - 1)
    return torch.where(k < steps // 2, start + step * k, end - step * (steps - 1 - k)).to(dtype)


def linspace(start: Any, end: Any, steps: int, **kwargs: Any) -> Tensor:
    """linspace of which an end is a tensor."""
    return spaced(start, end, steps, kwargs.get("dtype"), kwargs.get("device"))


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **kwargs: Any) -> Tensor:
    """logspace of which an end is a tensor."""
    return torch.pow(base, spaced(start, end, steps, kwargs.get("dtype"), kwargs.get("device")))


def is_same_size(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the sizes of a lane are the same."""
    del op, level, kwargs
    first, second = (a.shape[1:] if m else a.shape for a, m in zip(args, mapped, strict=True))
    return first == second


row(
    "alias_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy _neg_view_copy select_copy slice_copy "
    "split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy "
    "view_copy _reshape_alias_copy",
    Movement(),
    batch=batch_copy_of_view,
)
row("as_strided_copy", Movement(), batch=batch_copy_of_view, tangent=tangent_strided_copy)
row("diag_embed", Movement(), batch=batch_diag_embed)
row("rot90", Decomposed(rot90))
row("block_diag", Decomposed(block_diag))
row("_chunk_cat", Decomposed(chunk_cat))
row("constant_pad_nd", Movement(), batch=batch_pad, tangent=padded_tangent)
row("linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor", Decomposed(linspace))
row("logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor", Decomposed(logspace))
row("is_same_size", Constant(), batch=is_same_size)
