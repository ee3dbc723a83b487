"""Custom operators of `torch.library`: batched by the vmap their author registered, else lane by lane."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..core.torch_private import custom_operators
from .fallback import lane_loop

Tensor = torch.Tensor


class VmapInfo(NamedTuple):
    """What a vmap of the user's own is told of the call, as torch tells it."""

    batch_size: int
    randomness: str


def batch_custom(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """By `register_vmap(info, in_dims, *args)`, which returns `(output, out_dims)`."""
    definition = custom_operators.get(op._schema.name)
    own = getattr(definition, "_vmap_fn", None)
    if own is None or getattr(mapped, "keywords", None):
        return lane_loop(op, level, args, mapped, kwargs)
    in_dims = tuple(dims_of(m) for m in mapped)
    out, out_dims = own(VmapInfo(level.size, level.randomness), in_dims, *args, **kwargs)
    return in_front(level.size, out, out_dims)


def dims_of(flag: Any) -> Any:
    """The in_dim of an argument; for a list argument, one for each element."""
    if isinstance(flag, tuple):
        return tuple(dims_of(f) for f in flag)
    return 0 if flag else None


def in_front(size: int, out: Any, dims: Any) -> Any:
    """Results with the mapped dimension in front."""
    if isinstance(out, (tuple, list)):
        dims = dims if isinstance(dims, (tuple, list)) else [dims] * len(out)
        return tuple(in_front(size, o, d) for o, d in zip(out, dims, strict=True))
    if not isinstance(out, Tensor):
        return out
    dim = dims[0] if isinstance(dims, (tuple, list)) else dims
    if dim is None:
        return out.unsqueeze(0).expand(size, *out.shape)
    return out.movedim(dim, 0)
