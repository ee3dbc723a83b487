"""Normalisations: unit = (x − mean) · rstd over some dimensions, out = unit · weight + bias.

Along a direction dx, with means over the same dimensions and rstd = (var + eps)^(−1/2),
    d mean = mean(dx),  d rstd = −rstd² mean(unit dx),  d unit = rstd (dx − mean(dx) − unit mean(unit dx)).
The statistics are computed again from the input in every rule: torch hands them out as constants, which is where
derivatives of higher order go wrong. Mapped weights are applied after a normalisation without them.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Special
from .lanes import behind, in_front, merged, parted, some_lanes
from .table import row

Tensor = torch.Tensor
HALF = (torch.float16, torch.bfloat16)


def wide(x: Tensor | None) -> Any:
    """Half precision as float32, in which torch's kernels compute."""
    return x.float() if isinstance(x, Tensor) and x.dtype in HALF else x


def statistics(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """mean, rstd (dimensions kept) and the normalised values, as functions of x."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    return mean, rstd, centred * rstd


def unit_tangent(unit: Tensor, rstd: Tensor, dx: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """d unit, d mean, d rstd along dx."""
    d_mean = dx.mean(dims, keepdim=True)
    along = (unit * dx).mean(dims, keepdim=True)
    return rstd * (dx - d_mean - unit * along), d_mean, -rstd * rstd * along


def affine_tangent(unit: Tensor, d_unit: Any, weight: Any, dw: Any, db: Any, out: Tensor) -> Tensor:
    """The tangent of unit · weight + bias; `weight`, `dw`, `db` are shaped to broadcast."""
    total: Any = None
    if d_unit is not None:
        total = d_unit if weight is None else d_unit * weight
    if dw is not None:
        total = unit * dw if total is None else total + unit * dw
    if db is not None:
        total = db if total is None else total + db
    return total.to(out.dtype).expand(out.shape)


def reverse(
    g: Tensor, unit: Tensor, rstd: Tensor, weight: Tensor | None, dims: list[int], fixed: bool = False
) -> Tensor:
    """The gradient by x: rstd (h − mean(h) − unit mean(h unit)), h = g · weight; with fixed statistics h · rstd."""
    h = g if weight is None else g * weight
    if fixed:
        return h * rstd
    return rstd * (h - h.mean(dims, keepdim=True) - unit * (h * unit).mean(dims, keepdim=True))


# -- layer norm -------------------------------------------------------------------------------------------------------


@some_lanes
def batch_layer_norm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """Any leading dimensions are samples, the mapped one too."""
    del kwargs
    x, shape, weight, bias, eps = args
    mx, _, mw, mb, _ = mapped
    if len(shape) > x.dim() - (1 if mx else 0):
        own = list(x.shape[1:] if mx else x.shape)
        msg = f"layer_norm: normalized_shape {list(shape)} has more dimensions than an input of shape {own}"
        raise RuntimeError(msg)
    if not (mw or mb):
        return op(x, shape, weight, bias, eps)
    out, mean, rstd = (in_front(o, mx, level.size) for o in op(x, shape, None, None, eps))
    rank = out.dim() - 1
    if weight is not None:
        out = out * behind(weight, mw, rank)
    if bias is not None:
        out = out + behind(bias, mb, rank)
    return out, mean, rstd


@some_lanes
def batch_layer_norm_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """By x: one call. By weight and bias: sums for each lane."""
    del kwargs
    g, x, shape, mean, rstd, weight, bias, mask = args
    g, x, mean, rstd = (
        in_front(a, mapped[k], level.size).contiguous() for a, k in ((g, 0), (x, 1), (mean, 3), (rstd, 4))
    )
    by_x = by_weight = by_bias = None
    if mask[0]:
        if weight is not None and mapped[5]:
            by_x = op(g * behind(weight, True, g.dim() - 1), x, shape, mean, rstd, None, None, [True, False, False])[0]
        else:
            by_x = op(g, x, shape, mean, rstd, weight, None if mapped[6] else bias, [True, False, False])[0]
    lead = list(range(1, g.dim() - len(shape)))
    if mask[1]:
        part = g * ((x - mean) * rstd)
        by_weight = part.sum(lead) if lead else part
    if mask[2]:
        by_bias = g.sum(lead) if lead else g.clone()
    return by_x, by_weight, by_bias


def with_statistics(level: Any, out: Any, mean: Tensor, rstd: Tensor) -> Any:
    """The results of a kernel whose statistics autograd takes for constants, with what they are where it records."""
    if level.payload_graphs or not (torch.is_grad_enabled() and mean.requires_grad) or out[1].requires_grad:
        return out
    return out[0], mean.reshape(out[1].shape).to(out[1].dtype), rstd.reshape(out[2].shape).to(out[2].dtype), *out[3:]


def layer_norm_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Out, mean and rstd."""
    del kwargs
    out = op(*primals)
    x, shape, weight, _, eps = primals
    dx, _, dw, db, _ = tangents
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean, rstd, unit = statistics(wide(x), dims, eps)
    d_unit = d_mean = d_rstd = None
    if dx is not None:
        d_unit, d_mean, d_rstd = unit_tangent(unit, rstd, wide(dx), dims)
        out = with_statistics(level, out, mean, rstd)
    return out, (affine_tangent(unit, d_unit, weight, dw, db, out[0]), d_mean, d_rstd)


def layer_norm_backward(
    g: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
) -> Any:
    """The reverse formula as a function of all that is handed to it."""
    del bias
    dims = list(range(x.dim() - len(shape), x.dim()))
    lead = list(range(x.dim() - len(shape)))
    unit = (wide(x) - mean) * rstd
    part = g * unit
    return (
        reverse(wide(g), unit, rstd, weight, dims).to(x.dtype) if mask[0] else None,
        ((part.sum(lead) if lead else part).to(weight.dtype)) if mask[1] else None,
        (g.sum(lead) if lead else g.clone()) if mask[2] else None,
    )


row("native_layer_norm", Special(), batch=batch_layer_norm, tangent=layer_norm_tangent)
row("native_layer_norm_backward", Special(), batch=batch_layer_norm_backward, formula=layer_norm_backward)


# -- group norm -------------------------------------------------------------------------------------------------------


@some_lanes
def batch_group_norm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the samples."""
    del kwargs
    x, weight, bias, n, c, hw, group, eps = args
    size = level.size
    x, plain = in_front(x, mapped[0], size), not (mapped[1] or mapped[2])
    given = (weight, bias) if plain else (None, None)
    out, mean, rstd = op(merged(x).contiguous(), *given, size * n, c, hw, group, eps)
    out, mean, rstd = out.reshape(x.shape), parted(mean, size, n), parted(rstd, size, n)
    if not plain:
        if weight is not None:
            out = out * over_channels(weight, mapped[1], x)
        if bias is not None:
            out = out + over_channels(bias, mapped[2], x)
    return out, mean, rstd


def over_channels(v: Tensor, mapped: bool, x: Tensor) -> Tensor:
    """A value for each channel, lined up with `[lanes, N, C, …]`."""
    shape = (v.shape[0], 1, -1) if mapped else (1, 1, -1)
    return v.reshape(*shape, *[1] * (x.dim() - 3))


@some_lanes
def batch_group_norm_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """By x: the lanes join the samples. By weight and bias: sums for each lane."""
    del kwargs
    g, x, mean, rstd, weight, n, c, hw, group, mask = args
    size = level.size
    g, x, mean, rstd = (in_front(a, mapped[k], size).contiguous() for k, a in enumerate((g, x, mean, rstd)))
    by_x = by_weight = by_bias = None
    if mask[0]:
        h = g * over_channels(weight, True, x) if mapped[4] else g
        by_x = op(
            merged(h).contiguous(),
            merged(x).contiguous(),
            merged(mean),
            merged(rstd),
            None if mapped[4] else weight,
            size * n,
            c,
            hw,
            group,
            [True, False, False],
        )[0].reshape(x.shape)
    flat = g.reshape(size, n, c, hw)
    if mask[1]:
        unit = (x.reshape(size, n, group, c // group * hw) - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
        by_weight = (flat * unit.reshape(size, n, c, hw)).sum((1, 3))
    if mask[2]:
        by_bias = flat.sum((1, 3))
    return by_x, by_weight, by_bias


def group_norm_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Out, mean and rstd."""
    del level, kwargs
    out = op(*primals)
    x, weight, _, n, c, hw, group, eps = primals
    dx, dw, db = tangents[:3]
    _, rstd, unit = statistics(wide(x).reshape(n, group, c // group * hw), [2], eps)
    d_unit = d_mean = d_rstd = None
    if dx is not None:
        d_unit, d_mean, d_rstd = unit_tangent(unit, rstd, wide(dx).reshape(unit.shape), [2])
        d_unit, d_mean, d_rstd = d_unit.reshape(n, c, hw), d_mean.squeeze(-1), d_rstd.squeeze(-1)
    w, dw, db = (None if v is None else v.unsqueeze(-1) for v in (weight, dw, db))
    moved = affine_tangent(unit.reshape(n, c, hw), d_unit, w, dw, db, out[0].reshape(n, c, hw))
    return out, (moved.reshape(x.shape), d_mean, d_rstd)


def group_norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, n: int, c: int, hw: int, group: int, mask: Any
) -> Any:
    """The reverse formula as a function of all that is handed to it."""
    rows = (n, group, c // group * hw)
    unit = (wide(x).reshape(rows) - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    flat = wide(g).reshape(n, c, hw)
    by_x = None
    if mask[0]:
        h = flat if weight is None else flat * weight.unsqueeze(-1)
        by_x = reverse(h.reshape(rows), unit, rstd.unsqueeze(-1), None, [2]).reshape(x.shape).to(x.dtype)
    by_weight = (flat * unit.reshape(n, c, hw)).sum((0, 2)) if mask[1] else None
    return by_x, by_weight, flat.sum((0, 2)) if mask[2] else None


row("native_group_norm", Special(), batch=batch_group_norm, tangent=group_norm_tangent)
row("native_group_norm_backward", Special(), batch=batch_group_norm_backward, formula=group_norm_backward)


# -- weight norm: w = v · g / ‖v‖, norms over all dimensions but one ----------------------------------------------------------


def weight_norms(v: Tensor, dim: int) -> Tensor:
    """‖v‖ over the other dimensions, which are kept."""
    others = [k for k in range(v.dim()) if k != dim % v.dim()]
    return torch.linalg.vector_norm(v, 2, others, keepdim=True) if others else v.abs()


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The weight and the norms."""
    norms = weight_norms(wide(v), dim)
    return (wide(v) * (wide(g) / norms)).to(v.dtype), norms


def weight_norm_backward(by_w: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The reverse formula, with norms that are functions of v."""
    del norms
    dtype = v.dtype
    by_w, v, g = wide(by_w), wide(v), wide(g)
    norms = weight_norms(v, dim)
    others = [k for k in range(v.dim()) if k != dim % v.dim()]
    along = (by_w * v).sum(others, keepdim=True) if others else by_w * v
    by_v = (g / norms) * (by_w - v * (along / norms.square()))
    return by_v.to(dtype), (along / norms).to(dtype)


row("_weight_norm_interface", Special(), formula=weight_norm)
row("_weight_norm_interface_backward", Special(), formula=weight_norm_backward)
