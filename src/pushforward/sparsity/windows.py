"""Operators that slide a window over the last dimensions: convolutions and pooling.

out[n, o, s] = Σ_{c, k} w[o, c, k] x[n, c, stride · s + dilation · k − padding]: the labels in the window are joined,
and a weight that is known to be zero cuts, so that a 5-point stencil written as a 3 × 3 convolution has five places
in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .csr import Array
from .interpreter import Call
from .kinds import dense, teach

Tensor = torch.Tensor


def windows(
    labels: Array, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], out: list[int]
) -> Array:
    """Labels `[N, C, *spatial]` as `[N, C, *out, *kernel]`: what each output position looks at (0 outside)."""
    rank = len(kernel)
    needed = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, stride, kernel, dilation, strict=True)]
    widths = [(0, 0), (0, 0)]
    for n, p, need in zip(labels.shape[2:], padding, needed, strict=True):
        widths.append((p, max(need - p - n, 0)))
    full = np.ascontiguousarray(np.pad(labels, widths))
    strides = full.strides
    moved = [strides[2 + d] * stride[d] for d in range(rank)] + [strides[2 + d] * dilation[d] for d in range(rank)]
    return np.lib.stride_tricks.as_strided(full, [*full.shape[:2], *out, *kernel], [*strides[:2], *moved])


def spread(value: Any, rank: int) -> list[int]:
    """One number for each spatial dimension."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * rank if len(values) == 1 else values


@teach("convolution _convolution convolution_overrideable mkldnn_convolution")
def convolution(call: Call) -> Any:
    """Joined over the window and the channels of the group; the weight reaches every position of its output channel."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args[:9]
    out = call.outs[0]
    rank = weight.dim() - 2
    if x.dim() != rank + 2:
        return dense(call)
    total: Array | None = None
    labels = call.labels(x)
    if labels is not None:
        total = convolved(
            call,
            labels,
            weight,
            spread(stride, rank),
            spread(padding, rank),
            spread(dilation, rank),
            transposed,
            groups,
        )
    for t, axis in ((weight, 1 if transposed else 0), (bias, 0)):
        own = call.labels(t)
        if own is None:
            continue
        if transposed and t is weight and groups > 1:
            part = np.full((out.shape[1],), call.sets.all_of(own))
        else:
            lines = np.moveaxis(own, axis, 0).reshape(t.shape[axis], -1)
            rows = np.repeat(np.arange(lines.shape[0]), lines.shape[1])
            part = call.sets.joined(rows, lines.reshape(-1), lines.shape[0])
        part = np.broadcast_to(part.reshape(1, -1, *[1] * rank), tuple(out.shape))
        total = part if total is None else call.sets.either(total, part)
    return total


def convolved(
    call: Call,
    labels: Array,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    groups: int,
) -> Array:
    """The labels that pass through the weight."""
    out = list(call.outs[0].shape)
    rank = weight.dim() - 2
    kernel = list(weight.shape[2:])
    mask = (weight.detach() != 0).cpu().numpy() if call.fixed(weight) else np.ones(tuple(weight.shape), dtype=bool)
    batch, channels = labels.shape[:2]
    inner = channels // groups
    if transposed:
        # The transpose is a convolution of the input spread by `stride`, with the kernel turned round.
        spaced = np.zeros(
            [batch, channels, *[(n - 1) * s + 1 if n else 0 for n, s in zip(labels.shape[2:], stride, strict=True)]],
            np.int64,
        )
        spaced[(slice(None), slice(None), *[slice(None, None, s) for s in stride])] = labels
        padding = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
        if any(p < 0 for p in padding):
            cut = [slice(-p, None) if p < 0 else slice(None) for p in padding]
            spaced = spaced[(slice(None), slice(None), *cut)]
            padding = [max(p, 0) for p in padding]
        labels, stride = spaced, [1] * rank
        flipped = mask[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
        mask = np.concatenate([flipped[g * inner : (g + 1) * inner].swapaxes(0, 1) for g in range(groups)])
    seen = windows(labels, kernel, stride, padding, dilation, out[2:])
    outer = out[1] // groups
    positions = batch * int(np.prod(out[2:]))
    made = np.zeros((batch, out[1], *out[2:]), dtype=np.int64)
    for g in range(groups):
        part = np.moveaxis(seen[:, g * inner : (g + 1) * inner], 1, 1 + rank)  # [N, *out, C, *kernel]
        flat = part.reshape(positions, -1)
        masks = mask[g * outer : (g + 1) * outer].reshape(outer, -1)
        kinds, which = np.unique(masks, axis=0, return_inverse=True)
        which = which.reshape(-1)
        for number, chosen in enumerate(kinds):
            taken = flat[:, chosen]
            rows = np.repeat(np.arange(positions), taken.shape[1])
            joined = call.sets.joined(rows, taken.reshape(-1), positions).reshape(batch, *out[2:])
            made[:, g * outer + np.flatnonzero(which == number)] = joined[:, None]
    return made


@teach("avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices")
def pooled(call: Call) -> Any:
    """Joined over the window of each channel."""
    x, out = call.args[0], call.outs[0]
    labels = call.labels(x)
    if labels is None:
        return None
    rank = len(call.argument("kernel_size")) if isinstance(call.argument("kernel_size"), (list, tuple)) else 1
    rank = int(call.entry.name.partition("pool")[2][0]) if rank == 1 else rank
    kernel = spread(call.argument("kernel_size"), rank)
    stride = spread(call.argument("stride") or kernel, rank)
    padding = spread(call.argument("padding") or 0, rank)
    dilation = spread(call.argument("dilation") or 1, rank)
    shaped = labels.reshape(1, -1, *labels.shape[-rank:])
    seen = windows(shaped, kernel, stride, padding, dilation, list(out.shape[-rank:]))
    count = out.numel()
    rows = np.repeat(np.arange(count), int(np.prod(kernel)))
    made = call.sets.joined(rows, seen.reshape(-1), count).reshape(tuple(out.shape))
    return [made, *[None] * (len(call.outs) - 1)]


# The resampling operators are probed by the unit vectors of one channel, up to so many numbers.
LARGEST_PROBE = 1 << 24


@teach(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d"
)
def resampled(call: Call) -> Any:
    """Linear in the last dimensions and the same for every channel: the operator on the unit vectors of one channel."""
    x, out = call.args[0], call.outs[0]
    labels = call.labels(x)
    if labels is None:
        return None
    rank = int(call.entry.name.removesuffix("_aa")[-2])
    spatial, after = list(x.shape[-rank:]), list(out.shape[-rank:])
    inner, outer = int(np.prod(spatial)), int(np.prod(after))
    if inner * max(inner, outer) > LARGEST_PROBE:
        return dense(call)
    unit = torch.eye(inner, dtype=x.dtype).reshape(inner, 1, *spatial)
    hits = (call.op(unit, *call.args[1:], **call.kwargs).reshape(inner, outer) != 0).numpy()
    source, target = np.nonzero(hits)
    lines = labels.reshape(-1, inner)
    rows = (np.arange(lines.shape[0])[:, None] * outer + target).reshape(-1)
    return call.sets.joined(rows, lines[:, source].reshape(-1), lines.shape[0] * outer).reshape(tuple(out.shape))
