"""Batch norm: the statistics run over the samples, so lanes are channels of their own in training.

    training    unit = (x − mean(x)) · rstd(x) over all dimensions but the channels'; see `norm` for the derivative
    evaluation  unit = (x − running_mean) · (running_var + eps)^(−1/2), whose statistics are inputs
What training writes into running statistics carries no derivative, as in eager PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.captured import module_path
from ..core.errors import CapturedWriteError
from ..core.fresh import stopped
from ..core.source import source_line
from .kinds import Decomposed, Special
from .lanes import in_front, merged, merged_at, parted, parted_at, some_lanes
from .norm import affine_tangent, reverse, statistics, unit_tangent, wide, with_statistics
from .table import row

Tensor = torch.Tensor
NORMS = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.batchnorm._NormBase)


def shape_of(x: Tensor) -> list[int]:
    """How a value for each channel broadcasts against `[N, C, …]`."""
    return [1, -1, *[1] * (x.dim() - 2)]


def sample_dims(x: Tensor) -> list[int]:
    """All dimensions but the channels'."""
    return [0, *range(2, x.dim())]


@some_lanes
def batch_batch_norm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """In training the lanes join the channels; in evaluation with shared statistics they join the samples."""
    del kwargs
    x, weight, bias, mean, var, training, momentum, eps = args
    size, own = level.size, (mapped[1], mapped[2], mapped[3], mapped[4])
    use_batch = training or mean is None
    if training and momentum == 0:  # then training leaves them as they are
        mean = var = None
    if not use_batch and not any(own):
        n = x.shape[1]
        out, saved_mean, saved_rstd = op(merged(x), weight, bias, mean, var, training, momentum, eps)
        return parted(out, size, n), in_front(saved_mean, False, size), in_front(saved_rstd, False, size)
    if use_batch and mean is not None and not (mapped[3] and mapped[4]):
        raise captured_statistics(op)
    if use_batch and mean is not None and level.call is not None:
        for buffer in (mean, var):
            level.call.before_write(buffer)
    n_lanes = size
    given: list[Any] = [None if v is None else in_front(v, m, size) for v, m in zip((weight, bias, mean, var), own, strict=True)]
    flat: list[Any] = [None if v is None else v.reshape(-1) for v in given]
    wide_x = merged_at(in_front(x, mapped[0], size), 1)
    out, saved_mean, saved_rstd = op(wide_x, *flat, training, momentum, eps)
    if use_batch and mean is not None:
        for buffer, new in zip(given[2:], flat[2:], strict=True):
            if new.data_ptr() != buffer.data_ptr():
                buffer.copy_(new.reshape(buffer.shape))
    return parted_at(out, 1, n_lanes), saved_mean.reshape(size, -1), saved_rstd.reshape(size, -1)


def captured_statistics(op: Any) -> CapturedWriteError:
    """The error for statistics of one lane that would go into a buffer of all lanes."""
    return CapturedWriteError(
        f"vmap: `{op.name()}` at {source_line()} in {module_path(NORMS) or 'a function'} would write the statistics of "
        "each lane into running statistics that all lanes share. Use `with pf.frozen_statistics(model):`, or pass the "
        "buffers as mapped arguments and get them back (`pf.functional_call(model, (params, buffers), x, "
        "return_buffers=True)`), or use GroupNorm."
    )


@some_lanes
def batch_batch_norm_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the channels: every result is one of a channel."""
    del kwargs
    size = level.size
    vectors = [
        None if v is None else v.new_zeros(0) if v.numel() == 0 else in_front(v, m, size).reshape(-1)
        for v, m in zip(args[2:7], mapped[2:7], strict=True)
    ]
    g, x = (merged_at(in_front(v, m, size), 1) for v, m in zip(args[:2], mapped[:2], strict=True))
    by_x, by_weight, by_bias = op(g, x, *vectors, *args[7:])
    return (
        None if by_x is None or not args[9][0] else parted_at(by_x, 1, size),
        None if by_weight is None or not args[9][1] else by_weight.reshape(size, -1),
        None if by_bias is None or not args[9][2] else by_bias.reshape(size, -1),
    )


def batch_norm_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Out and the saved statistics; the kernel updates running statistics as it does in eager mode."""
    del kwargs
    x, weight, _, mean, var, training, _, eps = primals
    dx, dw, db, d_mean, d_var = tangents[:5]
    shape, dims = shape_of(x), sample_dims(x)
    if training or mean is None:
        found, rstd, unit = statistics(wide(x), dims, eps)
        d_unit = d_mean = d_rstd = None
        if dx is not None:
            d_unit, d_mean, d_rstd = unit_tangent(unit, rstd, wide(dx), dims)
            d_mean, d_rstd = d_mean.flatten(), d_rstd.flatten()
        saved = (d_mean, d_rstd)
    else:
        rstd = (var + eps).rsqrt()
        unit = (wide(x) - mean.view(shape)) * rstd.view(shape)
        parts = []
        if dx is not None:
            parts.append(wide(dx) * rstd.view(shape))
        if d_mean is not None:
            parts.append(-(d_mean * rstd).view(shape))
        if d_var is not None:
            parts.append(unit * (-0.5 * d_var / (var + eps)).view(shape))
        d_unit, saved = (sum(parts[1:], parts[0]) if parts else None), (None, None)
    out = op(*primals)
    if saved[0] is not None:
        out = with_statistics(level, out, found, rstd)
    w, dw, db = (None if v is None else v.view(shape) for v in (weight, dw, db))
    if d_unit is None and dw is None and db is None:
        return out, (None, *saved)
    return out, (affine_tangent(unit, d_unit, w, dw, db, out[0]), *saved)


def batch_norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Any,
    mean: Any,
    var: Any,
    saved_mean: Any,
    saved_rstd: Any,
    train: bool,
    eps: float,
    mask: Any,
) -> Any:
    """The reverse formula as a function of all that is handed to it."""
    shape, dims = shape_of(x), sample_dims(x)
    if train or mean is None:
        centre, rstd = saved_mean, saved_rstd
    else:
        centre, rstd = mean, (var + eps).rsqrt()
    unit, rstd = (wide(x) - centre.view(shape)) * rstd.view(shape), rstd.view(shape)
    scale = None if weight is None else weight.view(shape)
    fixed = not train and mean is not None
    return (
        reverse(wide(g), unit, rstd, scale, dims, fixed).to(x.dtype) if mask[0] else None,
        (g * unit).sum(dims).to(unit.dtype) if mask[1] else None,
        wide(g).sum(dims) if mask[2] else None,
    )


def training_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """out, mean, rstd and the new running statistics, in elementary operators."""
    if x.dim() < 2:  # torch lets a value without channels pass only if it is empty
        return x.clone(), x.new_zeros(0), x.new_zeros(0), mean, var
    shape = shape_of(x)
    if training or mean is None:
        kept_mean, kept_rstd, unit = statistics(wide(x), sample_dims(x), eps)
        saved = kept_mean.flatten(), kept_rstd.flatten()
        if mean is not None:
            n = x.numel() // max(x.shape[1], 1)
            spread = (stopped(saved[1]) ** -2 - eps) * (n / max(n - 1, 1))
            mean = (1 - momentum) * mean + momentum * stopped(saved[0])
            var = (1 - momentum) * var + momentum * spread
    else:
        unit = (wide(x) - mean.view(shape)) * (var + eps).rsqrt().view(shape)
        saved = x.new_zeros(0), x.new_zeros(0)
        mean, var = mean.clone(), var.clone()
    out = unit if weight is None else unit * weight.view(shape)
    out = out if bias is None else out + bias.view(shape)
    return out.to(x.dtype), saved[0], saved[1], mean, var  # type: ignore[return-value]


def with_update(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """As `training_norm`, with the empty reserve that other devices use."""
    out, saved_mean, saved_rstd, mean, var = training_norm(x, weight, bias, mean, var, True, momentum, eps)
    return out, saved_mean, saved_rstd, x.new_zeros(0, dtype=torch.uint8), mean, var


def without_update(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """In evaluation."""
    return *training_norm(x, weight, bias, mean, var, False, momentum, eps)[:3], x.new_zeros(0, dtype=torch.uint8)


def reserve_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Any,
    var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: float,
    mask: Any,
    reserve: Tensor,
) -> Any:
    """The reverse formula of the forms with a reserve."""
    del reserve
    return torch.ops.aten.native_batch_norm_backward(g, x, weight, mean, var, save_mean, save_var, update, eps, mask)


row("native_batch_norm", Special(), batch=batch_batch_norm, tangent=batch_norm_tangent)
row("native_batch_norm_backward", Special(), batch=batch_batch_norm_backward, formula=batch_norm_backward)
# In evaluation nothing is written, so that all lanes may share the running statistics.
row("_native_batch_norm_legit_functional", Decomposed(training_norm), writes=lambda values: values[5] and values[6] != 0)
row(
    "_native_batch_norm_legit.no_stats",
    Decomposed(lambda x, w, b, training, m, eps: torch.native_batch_norm(x, w, b, None, None, training, m, eps)),
)
row(
    "_native_batch_norm_legit_no_training",
    Decomposed(lambda x, w, b, mean, var, m, eps: torch.native_batch_norm(x, w, b, mean, var, False, m, eps)),
)
row("_batch_norm_with_update_functional", Decomposed(with_update), writes=lambda values: values[5] != 0)
row("_batch_norm_no_update", Decomposed(without_update))
row("batch_norm_backward", Decomposed(reserve_backward))
