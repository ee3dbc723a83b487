"""Factories and constants: tensors from sizes, fillings, and results without a derivative."""

from __future__ import annotations

from typing import Any

import torch

from .cast import batch_copied
from .kinds import Constant, Elementwise, ElementwiseLinear, Factory
from .table import row

Tensor = torch.Tensor


def zeroed(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Tensor, None]:
    """Zeros, which depend on nothing; torch's functional operator has no reverse formula for complex ones."""
    del op, level, tangents, kwargs
    return torch.zeros_like(primals[0]), None


row("zeros_like ones_like full_like empty_like", Factory(), batch=batch_copied)
row("new_zeros new_ones new_full new_empty new_empty_strided", Factory())
row("zeros ones full empty empty_strided arange linspace logspace eye scalar_tensor tril_indices triu_indices", Constant())
row("zero", Elementwise(()), tangent=zeroed)


def batch_copy(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """copy: the source, broadcast to the sizes and cast to the dtype of the first argument."""
    del op, kwargs
    x, source = args[0], args[1]
    shape = x.shape[1:] if mapped[0] else x.shape
    if mapped[1]:
        source = source.reshape(level.size, *[1] * (len(shape) - source.dim() + 1), *source.shape[1:])
    return source.to(x.dtype).expand(level.size, *shape)


def tangent_copy(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """copy: value and tangent of the source (torch's functional copy has no reverse formula)."""
    del op, level, kwargs
    x, source = primals[0], primals[1]
    made = source.to(x.dtype).expand(x.shape)
    t: Any = tangents[1]
    moved = t is not None and (x.is_floating_point() or x.is_complex())
    return made, t.to(x.dtype).expand(x.shape) if moved else None  # pyright: ignore[reportOptionalMemberAccess]


row("copy", ElementwiseLinear((1,)), batch=batch_copy, tangent=tangent_copy)
