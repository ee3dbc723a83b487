"""Fake quantisation: values on a grid, y = scale · (q − zero point), q = round(x / scale + zero point) kept within bounds.

Rounding has no slope, so derivatives are straight-through: dy = dx where q is within its bounds, 0 elsewhere. Where scale and
zero point are learnt, torch's reverse formulas say what their factors are, and forward mode is their transpose:
    dy/dscale = q − zero point − x / scale within bounds, bound − zero point outside;  dy/dzero = 0 within, −scale outside,
both times `grad_factor` (aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp and FakeQuantPerChannelAffine.cpp).
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import NotDifferentiableError
from .kinds import Special
from .lanes import all_in_front, in_front, merged_at, parted_at, some_lanes
from .table import row

Tensor = torch.Tensor


def on_grid(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Values and mask with a scale and an integer zero point for each element, bit for bit as torch's kernel rounds them."""
    scale, wide = scale.float(), torch.float64 if x.dtype is torch.float64 else torch.float32
    place = zero.to(wide) + torch.round(x.to(wide) * scale.reciprocal())
    inside = torch.fmin(torch.fmax(place, place.new_full((), low)), place.new_full((), high)).to(torch.int64)
    return ((inside - zero).float() * scale).to(x.dtype), (low <= place) & (place <= high)


def batch_numbers(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """Scale and zero point are numbers: element-wise."""
    del level, mapped
    return op(*args, **kwargs)


def batch_tensors(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """Scale and zero point are tensors of one element, perhaps one for each lane; `enabled` says whether anything is done."""
    if not any(mapped[1:]):
        return op(*args, **kwargs)
    x, scale, zero, enabled, low, high = args
    x, scale, zero, enabled = all_in_front([x, scale, zero, enabled], mapped[:4], level.size)
    scale, zero, enabled = (a.reshape(level.size, *[1] * (x.dim() - 1)) for a in (scale, zero, enabled))
    out, mask = on_grid(x, scale, zero.to(torch.int64), low, high)
    on = enabled.to(torch.int64) != 0
    return torch.where(on, out, x), mask | ~on


def batch_learnable(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """As `batch_tensors`; the zero point is rounded here."""
    if not any(mapped[1:]):
        return op(*args, **kwargs)
    x, scale, zero, low, high = args[:5]
    x, scale, zero = all_in_front([x, scale, zero], mapped[:3], level.size)
    scale, zero = (a.reshape(level.size, *[1] * (x.dim() - 1)) for a in (scale, zero))
    return on_grid(x, scale, zero.float().round().clamp(low, high).to(torch.int64), low, high)[0]


@some_lanes
def batch_channels(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """A scale and a zero point for each channel: one more dimension, or the channels of all lanes side by side."""
    x, scale, zero, axis, *rest = args
    size = level.size
    x = in_front(x, mapped[0], size)
    axis = axis % (x.dim() - 1)
    if not (mapped[1] or mapped[2]):
        return op(x, scale, zero, axis + 1, *rest, **kwargs)
    scale, zero = (in_front(a, m, size).flatten() for a, m in ((scale, mapped[1]), (zero, mapped[2])))
    out = op(merged_at(x, axis), scale, zero, axis, *rest, **kwargs)
    return parted_at(out, axis, size) if isinstance(out, Tensor) else tuple(parted_at(o, axis, size) for o in out)


def straight_through(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, None]]:
    """The tangent where the value is within bounds; scale and zero point have none, and torch says so too."""
    del level
    if any(t is not None for t in tangents[1:]):
        msg = f"`{op.name()}` is not differentiable with respect to its scale and zero point: see the learnable ones"
        raise NotDifferentiableError(msg)
    out, mask = op(*primals, **kwargs)
    return (out, mask), (tangents[0] * mask, None)


row("fake_quantize_per_tensor_affine_cachemask", Special(), batch=batch_numbers, tangent=straight_through)
row("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", Special(), batch=batch_tensors, tangent=straight_through)
row("fake_quantize_per_channel_affine_cachemask", Special(), batch=batch_channels, tangent=straight_through)


# -- scale and zero point learnt -----------------------------------------------------------------------------------------


def factors(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Whether q is within its bounds, and the factors of scale and zero point, each lined up with x and rounded already."""
    inverse = scale.reciprocal()
    place = torch.round(zero + x * inverse)
    within = (place >= low) & (place <= high)
    bound = place.clamp(low, high) - zero
    by_scale = torch.where(within, (bound * scale - x) * inverse, bound) * factor
    return within, by_scale, torch.where(within, 0, -scale * factor)


def lined_up(x: Tensor, scale: Tensor, zero: Tensor, axis: int | None, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Scale and zero point in the shape of x; torch rounds a zero point otherwise for a tensor than for channels."""
    if axis is None:
        return scale.reshape([1] * x.dim()), (zero + 0.5).clamp(low, high).trunc().reshape([1] * x.dim())
    shape = [-1 if k == axis % x.dim() else 1 for k in range(x.dim())]
    return scale.reshape(shape), zero.round().clamp(low, high).reshape(shape)


def parted_arguments(op: Any, args: Any) -> tuple[Any, ...]:
    """x, scale, zero, axis (None: one for the tensor), low, high, factor."""
    x, scale, zero, *rest = args
    axis = rest.pop(0) if "channel" in op.name() else None
    return x, scale, zero, axis, rest[0], rest[1], rest[2] if len(rest) > 2 else 1.0


def learnable_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The transpose of torch's reverse formula."""
    del level
    out = op(*primals, **kwargs)
    x, scale, zero, axis, low, high, factor = parted_arguments(op, primals)
    factor = kwargs.get("grad_factor", factor)
    own_scale, own_zero = lined_up(x, scale, zero, axis, low, high)
    within, by_scale, by_zero = factors(x, own_scale, own_zero, low, high, factor)
    total: Any = None
    for tangent, part in zip(tangents[:3], (within, by_scale, by_zero), strict=True):
        if tangent is None:
            continue
        moved = tangent if part is within else tangent.reshape(own_scale.shape)
        total = moved * part if total is None else total + moved * part
    return out, total.to(out.dtype).expand(out.shape)


def backward_of(axis_given: bool) -> Any:
    """The reverse formula written out, for one scale or for one each channel."""

    def backward(g: Tensor, x: Tensor, scale: Tensor, zero: Tensor, *rest: Any, grad_factor: float = 1.0) -> Any:
        axis, bounds = (rest[0], rest[1:]) if axis_given else (None, rest)
        low, high, factor = bounds if len(bounds) > 2 else (*bounds, grad_factor)
        own_scale, own_zero = lined_up(x, scale, zero, axis, low, high)
        within, by_scale, by_zero = factors(x, own_scale, own_zero, low, high, factor)
        others = [k for k in range(x.dim()) if axis is None or k != axis % x.dim()]
        by_scale, by_zero = ((g * part).sum(others) if others else g * part for part in (by_scale, by_zero))
        return g * within, by_scale.reshape(scale.shape), by_zero.reshape(zero.shape)

    return backward


row("_fake_quantize_learnable_per_tensor_affine", Special(), batch=batch_learnable, tangent=learnable_tangent)
row("_fake_quantize_learnable_per_channel_affine", Special(), batch=batch_channels, tangent=learnable_tangent)
row("_fake_quantize_learnable_per_tensor_affine_backward", Special(), formula=backward_of(False))
row("_fake_quantize_learnable_per_channel_affine_backward", Special(), formula=backward_of(True))
