"""Movement with more than one source, and choices between element-wise values.

Joining moves the labels as the operator moves the elements. `where(c, a, b)` has derivative c da + (1 − c) db: where
c may be read, only the chosen side remains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .interpreter import Call
from .kinds import either, elementwise_in_all, over_dims, reduced_dims, teach

Tensor = torch.Tensor


@teach("cat stack hstack vstack dstack column_stack block_diag")
def joined(call: Call) -> Any:
    """The operator on the labels: cat([{a}, {b}]) = [{a}, {b}]."""
    parts = [torch.from_numpy(np.asarray(call.dense_labels(t), order="C")) for t in call.args[0]]
    return call.op(parts, *call.args[1:], **call.kwargs).numpy()


@teach("constant_pad_nd")
def padded(call: Call) -> Any:
    """Padding with a constant: the new elements depend on nothing, whatever the constant is."""
    labels = torch.from_numpy(np.asarray(call.dense_labels(call.args[0]), order="C"))
    return torch.constant_pad_nd(labels, list(call.args[1]), 0).numpy()


@teach(
    "reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d channel_shuffle"
)
def copied(call: Call) -> Any:
    """Elements at other places, for operators that take floating-point numbers only (exact below 2⁵³)."""
    labels = torch.from_numpy(call.dense_labels(call.args[0]).astype(np.float64))
    return call.op(labels, *call.args[1:], **call.kwargs).numpy().astype(np.int64)


@teach("where")
def chosen(call: Call) -> Any:
    """The side that the condition chooses; both where the condition varies."""
    if len(call.args) < 3:
        return None
    condition, a, b = call.args[:3]
    shape = tuple(call.outs[0].shape)
    if not call.fixed(condition):
        return either(call, [x for v in (a, b) if (x := call.labels(v)) is not None])
    sides = [call.labels(v) for v in (a, b)]
    left, right = (0 if s is None else np.broadcast_to(s, shape) for s in sides)
    return np.where(np.broadcast_to(condition.cpu().numpy(), shape), left, right)


@teach("masked_fill")
def masked(call: Call) -> Any:
    """As `where(mask, value, x)`."""
    x, mask, value = call.args[:3]
    shape = tuple(call.outs[0].shape)
    parts = [labels for v in (x, value) if (labels := call.labels(v)) is not None]
    if not call.fixed(mask):
        return either(call, parts)
    taken = np.broadcast_to(mask.cpu().numpy(), shape)
    inner, outer = call.labels(value), call.labels(x)
    filled = np.zeros((), dtype=np.int64) if inner is None else np.broadcast_to(inner, shape)
    return np.where(taken, filled, 0 if outer is None else np.broadcast_to(outer, shape))


@teach(
    "native_dropout _fused_dropout rrelu_with_noise rrelu_with_noise_functional native_dropout_backward "
    "lerp addcmul addcdiv"
)
@teach("_to_copy clone threshold_backward masked_scale dropout feature_dropout alpha_dropout")
@teach(
    "clamp clamp_min clamp_max maximum minimum fmax fmin pow atan2 hypot xlogy logaddexp logaddexp2 "
    "fmod remainder copysign"
)
@teach("sigmoid_backward tanh_backward gelu_backward silu_backward elu_backward leaky_relu_backward softplus_backward")
@teach("hardtanh_backward hardswish_backward hardsigmoid_backward mish_backward log_sigmoid_backward logit_backward")
def pointwise(call: Call) -> Any:
    """Element-wise in every tensor argument."""
    if call.entry.name in ("threshold_backward", "hardtanh_backward", "native_dropout_backward"):
        # The derivative by the value that decides is zero: only the cotangent passes.
        labels = call.labels(call.args[0])
        return None if labels is None else np.broadcast_to(labels, tuple(call.outs[0].shape))
    return elementwise_in_all(call)


@teach("max min amax amin aminmax median nanmedian")
def extreme(call: Call) -> Any:
    """Everything that was compared; at one point, only what equals the result."""
    x = call.args[0]
    labels = call.labels(x)
    if len(call.args) > 1 and isinstance(call.args[1], Tensor):  # max(x, y)
        return elementwise_in_all(call)
    if labels is None:
        return None
    dims = reduced_dims(call, None, x.dim())
    if call.entry.name in ("max", "min", "median", "nanmedian") and not isinstance(call.argument("dim"), int):
        dims = tuple(range(x.dim()))
    if call.local and call.entry.name in ("max", "min", "amax", "amin"):
        out = call.outs[0].reshape([1 if d in dims else n for d, n in enumerate(x.shape)])
        labels = np.where((x == out).cpu().numpy(), labels, 0)
    kept = over_dims(call, labels, dims)
    return [kept.reshape(tuple(o.shape)) if o.is_floating_point() else None for o in call.outs]


@teach("mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss")
def loss(call: Call) -> Any:
    """Element by element, or the sum or mean of that."""
    if call.outs[0].dim() == call.args[0].dim() and call.argument("reduction") == 0:
        return elementwise_in_all(call)
    label = call.sets.all_of(*[call.labels(t) for t in call.tensors()])
    return np.full(tuple(call.outs[0].shape), label)


@teach("pixel_shuffle pixel_unshuffle diag_embed trace rot90")
def rearranged(call: Call) -> Any:
    """The operator on the labels, where it only moves them; a trace joins the diagonal."""
    labels = call.dense_labels(call.args[0])
    if call.entry.name == "trace":
        return np.asarray(call.sets.all_of(np.diagonal(labels)))
    return call.op(torch.from_numpy(np.asarray(labels, order="C")), *call.args[1:], **call.kwargs).numpy()
