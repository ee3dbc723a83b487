"""Movement: the elements of a tensor at other places, usually as a view. Linear, so the tangent moves the same way."""

from __future__ import annotations

from typing import Any

import torch

from ..core.level import autograd_on, is_grad_enabled
from .kinds import Linear, Movement, Special
from .table import row

Tensor = torch.Tensor


def sizes_in_front(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """view, reshape: the batch size comes before the sizes."""
    del mapped
    return op(args[0], [level.size, *_resolve(args[0], args[1], level.size)], **kwargs)


def _resolve(x: Tensor, sizes: Any, lanes: int) -> list[int]:
    if lanes != 0 or -1 not in sizes:
        return list(sizes)
    known = 1
    for n in sizes:
        known *= n if n != -1 else 1
    own = 1
    for n in x.shape[1:]:
        own *= n
    return [own // known if n == -1 and known else n for n in sizes]


def batch_view_dtype(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """view as another dtype: the last dimension may change, so a 0-dim value gets one for the moment."""
    del mapped, kwargs, level
    x = args[0]
    return op(x.unsqueeze(-1), args[1]).squeeze(-1) if x.dim() == 1 else op(x, args[1])


def batch_expand(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """expand: new dimensions go between the mapped one and the old ones."""
    del mapped
    x, sizes = args[0], list(args[1])
    extra = len(sizes) - (x.dim() - 1)
    if extra > 0:
        x = x[(slice(None), *[None] * extra)]
    return op(x, [level.size, *sizes], **kwargs)


def batch_permute(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """permute: the mapped dimension stays in front."""
    del level, mapped, kwargs
    rank = args[0].dim() - 1
    return op(args[0], [0, *[d % max(rank, 1) + 1 for d in args[1]]])


def batch_t(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """t: swaps the last two of at most two logical dimensions."""
    del op, level, mapped, kwargs
    x = args[0]
    if x.dim() > 3:
        msg = f"t() expects a tensor with <= 2 dimensions, but self is {x.dim() - 1}D"
        raise RuntimeError(msg)
    return x.transpose(1, 2) if x.dim() == 3 else torch.ops.aten.alias(x)


def batch_transpose(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """transpose; of a 0-dim value it does nothing."""
    del level, mapped, kwargs
    x, rank = args[0], args[0].dim() - 1
    if rank == 0:
        return torch.ops.aten.alias(x)
    return op(x, args[1] % rank + 1, args[2] % rank + 1)


def batch_squeeze(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """squeeze: never the mapped dimension, also when there is one lane."""
    del op, level, mapped, kwargs
    x, rank = args[0], args[0].dim() - 1
    if len(args) == 1:
        dims = [d for d in range(1, rank + 1) if x.shape[d] == 1]
    else:
        asked = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        dims = [d % rank + 1 for d in asked] if rank else []
    return torch.ops.aten.squeeze.dims(x, dims)


def batch_unsqueeze(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """unsqueeze: counts one dimension more than there are."""
    del level, mapped, kwargs
    return op(args[0], args[1] % args[0].dim() + 1)


def batch_as_strided(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """as_strided: the lanes keep their distance; the level has made an offset relative to the value's own start."""
    del op
    if any(mapped[1:]):
        msg = "as_strided with mapped sizes"
        raise RuntimeError(msg)
    x, size, stride = args[0], args[1], args[2]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    start = x.storage_offset() if offset is None else x.storage_offset() + offset
    return x.as_strided([level.size, *size], [x.stride(0), *stride], start)


def tangent_as_strided(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """as_strided of a tangent that lies in memory as its primal does; of another, the elements that the primal's are.

    The level has made an offset relative to the value's own start.
    """
    del level
    x, t = primals[0], tangents[0]
    size, stride = primals[1], primals[2]
    offset = primals[3] if len(primals) > 3 else kwargs.get("storage_offset")
    own = None if offset is None else offset + x.storage_offset()
    out = op(x, size, stride, own)
    if t.stride() == x.stride():
        return out, op(t, size, stride, None if offset is None else offset + t.storage_offset())
    start = offset or 0
    ends = [1 + sum((n - 1) * s for n, s in zip(a, b, strict=True)) for a, b in ((x.shape, x.stride()), (size, stride))]
    places = torch.full((max(ends[0], start + ends[1]),), -1, dtype=torch.long, device=x.device)
    places.as_strided(x.shape, x.stride()).copy_(torch.arange(x.numel(), device=x.device).reshape(x.shape))
    chosen = places.as_strided(size, stride, start)
    return out, torch.where(chosen >= 0, t.reshape(-1)[chosen.clamp(min=0)], 0)


def batch_reshape_alias(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """_reshape_alias: the lanes keep their distance."""
    del mapped, kwargs
    return op(args[0], [level.size, *args[1]], [args[0].stride(0), *args[2]])


def tangent_reshape_alias(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """_reshape_alias: the tangent may have other strides."""
    del level, kwargs
    return op(*primals), tangents[0].reshape(primals[1])


def batch_slice_inverse(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """slice_inverse (source, like, dim, …): the dimension shifts by one."""
    del kwargs
    args = [*args, *[0, None, None, 1][len(args) - 2 :]]
    source, like = (
        a if m else a.unsqueeze(0).expand(level.size, *a.shape) for a, m in zip(args[:2], mapped, strict=False)
    )
    return op(source, like, args[2] % (source.dim() - 1) + 1, *args[3:])


def batch_unfold(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """unfold: of a 0-dim value it makes a vector."""
    del level, mapped, kwargs
    x, dim, size, step = args
    rank = x.dim() - 1
    if rank == 0:
        return op(x.unsqueeze(-1), 1, size, step).squeeze(1)
    return op(x, dim % rank + 1, size, step)


def batch_view_as_complex(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """view_as_complex: lanes that lie across the last dimension are moved apart first."""
    del level, mapped, kwargs
    x = args[0]
    return op(x if x.stride(-1) == 1 or x.shape[-1] != 2 else x.contiguous())


def batch_diagonal(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """diagonal of two logical dimensions."""
    del level, mapped
    x, rank = args[0], args[0].dim() - 1
    offset, d1, d2 = [*args[1:], *[0, 0, 1][len(args) - 1 :]]
    offset, d1, d2 = kwargs.get("offset", offset), kwargs.get("dim1", d1), kwargs.get("dim2", d2)
    return op(x, offset, d1 % rank + 1, d2 % rank + 1)


def batch_repeat(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """repeat: new dimensions in front of the logical ones."""
    del level, mapped, kwargs
    x, times = args[0], list(args[1])
    extra = len(times) - (x.dim() - 1)
    if extra > 0:
        x = x[(slice(None), *[None] * extra)]
    return op(x, [1, *times])


def batch_roll(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """roll: without dims over the flattened value of each lane."""
    del mapped, kwargs
    x, rank = args[0], args[0].dim() - 1
    dims = list(args[2]) if len(args) > 2 else []
    if not dims:
        flat = x.flatten(1) if rank else x.unsqueeze(1)
        return op(flat, args[1], [1]).reshape(x.shape)
    if rank == 0:
        return x.clone()
    return op(x, args[1], [d % rank + 1 for d in dims])


def batch_flip(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """flip of logical dimensions."""
    del level, mapped, kwargs
    rank = args[0].dim() - 1
    return op(args[0], [d % max(rank, 1) + 1 for d in args[1]]) if rank else args[0].clone()


def in_front(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """Operators that count dimensions from the end or not at all."""
    del level, mapped
    return op(*args, **kwargs)


def batch_scatter_back(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The transposes of select, slice, diagonal and unfold: (grad, input sizes, dims …)."""
    del mapped
    sizes, rest = args[1], list(args[2:])
    if not sizes:  # unfold made a vector of a 0-dim value
        return op(args[0].unsqueeze(1), [level.size, 1], 1, *rest[1:], **kwargs).squeeze(-1)
    names = [a.name for a in op._schema.arguments][2:]
    for k, name in enumerate(names[: len(rest)]):
        if name in ("dim", "dim1", "dim2"):
            rest[k] = rest[k] % max(len(sizes), 1) + 1
    return op(args[0], [level.size, *sizes], *rest, **kwargs)


def kept_alias(x: Tensor) -> Tensor:
    """An alias that keeps the graph of `x`, also where the engine records nothing: in hooks that pack saved tensors."""
    if is_grad_enabled():
        return torch.ops.aten.alias(x)
    with torch.enable_grad(), autograd_on():
        return torch.ops.aten.alias(x)


def batch_alias(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """detach: the engine's own, an alias that keeps what the levels below know (the user's is told apart before)."""
    del op, level, mapped, kwargs
    return kept_alias(args[0])


def tangent_alias(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """detach: likewise."""
    del op, level, kwargs
    return kept_alias(primals[0]), None if tangents[0] is None else kept_alias(tangents[0])


def batch_stay_dense(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """To and from sparse layouts: a dense value stands for lanes of any layout."""
    del op, level, mapped, kwargs
    x = args[0]
    return x.clone() if x.layout is torch.strided else x.to_dense()


def tangent_sparse_mask(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """sparse_mask is linear in what is masked; a mask is a pattern, and has no derivative."""
    del level
    out = op(*primals, **kwargs)
    return out, None if tangents[0] is None else op(tangents[0], primals[1], **kwargs)


def batch_sparse_mask(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """sparse_mask: 0 wherever the mask has no element."""
    del op, kwargs
    x, mask = args[:2]
    if mask.layout is not torch.strided:
        ones = torch.ones_like(mask._values(), dtype=torch.bool)
        pattern = torch.sparse_coo_tensor(mask._indices(), ones, mask.shape).to_dense()
    else:
        pattern = mask != 0
    return (
        torch.where(pattern, x, 0)
        if mapped[0]
        else torch.where(pattern, x.unsqueeze(0), 0).expand(level.size, *x.shape)
    )


def batch_join(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """cat, stack: unmapped parts are spread over the lanes."""
    flags = mapped[0]
    parts = [a if m else a.unsqueeze(0).expand(level.size, *a.shape) for a, m in zip(args[0], flags, strict=True)]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    kwargs = {k: v for k, v in kwargs.items() if k != "dim"}
    new = 1 if "stack" in op.name() else 0
    rank = max(p.dim() for p in parts) - 1 + new
    if not new:
        parts = [p for p in parts if p.dim() - 1 == rank] or parts  # legacy: cat skips empty 1-d parts
    return op(parts, dim % max(rank, 1) + 1, **kwargs)


row("view _unsafe_view reshape _reshape_alias_sizes", Movement(), batch=sizes_in_front)
row("view.dtype", Movement(), batch=batch_view_dtype)
row("expand", Movement(), batch=batch_expand)
row("permute", Movement(), batch=batch_permute)
row("t", Movement(), batch=batch_t)
row("transpose", Movement(), batch=batch_transpose)
row("squeeze", Movement(), batch=batch_squeeze)
row("unsqueeze", Movement(), batch=batch_unsqueeze)
row("as_strided", Movement(), batch=batch_as_strided, tangent=tangent_as_strided)
row("diagonal", Movement(), batch=batch_diagonal)
row("repeat", Movement(), batch=batch_repeat)
row("roll", Movement(), batch=batch_roll)
row("flip", Movement(), batch=batch_flip)
row("tril triu view_as_real", Movement(), batch=in_front)
row("view_as_complex", Movement(), batch=batch_view_as_complex)
row("detach", Movement(), batch=batch_alias, tangent=tangent_alias)
row("alias lift_fresh lift _conj _neg_view resolve_conj resolve_neg", Movement(), batch=in_front)
row("real imag", Movement(), batch=in_front)
row("select", Movement(dims=(1,)))
row("slice unbind", Movement(dims=(1,)))
row("split split_with_sizes unsafe_split unsafe_split_with_sizes", Movement(dims=(2,)))
row("unfold", Movement(), batch=batch_unfold)
row("_reshape_alias", Movement(), batch=batch_reshape_alias, tangent=tangent_reshape_alias)
row("slice_inverse", Linear((0, 1)), batch=batch_slice_inverse)
row("select_backward slice_backward diagonal_backward unfold_backward", Movement(), batch=batch_scatter_back)
row("_to_sparse _to_dense", Movement(), batch=batch_stay_dense)
row("sparse_mask", Special(), batch=batch_sparse_mask, tangent=tangent_sparse_mask)
row("cat stack", Linear(), batch=batch_join)
