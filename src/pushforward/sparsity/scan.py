"""Along one dimension: a prefix scan sees what came before, a transform or a sort sees the whole line.

cumsum([{a}, {b}, {c}]) = [{a}, {a, b}, {a, b, c}]        sort([{a}, {b}]) = [{a, b}, {a, b}]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..ops import kinds
from .csr import Array
from .interpreter import Call, has_labels
from .kinds import along_dim, dense, either, over_dims, teach

# A scan writes down a triangle of pairs; beyond this many it is taken as dense along its line.
LARGEST_TRIANGLE = 20_000_000

whole_line = along_dim(kinds.AlongDim())


@teach("cumsum cumprod logcumsumexp cummax cummin")
def prefix(call: Call) -> Any:
    """out[i] depends on x[0 … i] of its line."""
    x = call.args[0]
    labels = call.labels(x)
    if labels is None or x.dim() == 0:
        return labels
    dim = call.argument("dim") % x.dim()
    length = x.shape[dim]
    lines = x.numel() // max(length, 1)
    if lines * length * (length + 1) // 2 > LARGEST_TRIANGLE:
        whole = over_dims(call, labels, (dim,))
        return [np.broadcast_to(whole, labels.shape) if has_labels(o) else None for o in call.outs]
    moved = np.moveaxis(labels, dim, -1).reshape(lines, length)
    later, earlier = np.tril_indices(length)
    rows = (np.arange(lines)[:, None] * length + later).reshape(-1)
    made = call.sets.joined(rows, moved[:, earlier].reshape(-1), lines * length)
    shape = [n for d, n in enumerate(labels.shape) if d != dim]
    back = np.moveaxis(made.reshape([*shape, length]), -1, dim)
    return [back if has_labels(o) else None for o in call.outs]


@teach("sort msort")
def ordered(call: Call) -> Any:
    """The whole line; at one point, the element that came to this place."""
    x = call.args[0]
    labels = call.labels(x)
    if labels is None or x.dim() == 0:
        return [labels] * len(call.outs)
    dim = int(call.argument("dim", -1)) % x.dim()
    if call.local and len(call.outs) > 1:
        moved = torch.from_numpy(np.asarray(labels, order="C")).gather(dim, call.outs[1])
        return [moved.numpy(), None]
    whole = np.broadcast_to(over_dims(call, labels, (dim,)), labels.shape)
    return [whole if has_labels(o) else None for o in call.outs]


@teach("topk kthvalue mode")
def selected(call: Call) -> Any:
    """The whole line; at one point, the element chosen."""
    x = call.args[0]
    labels = call.labels(x)
    if labels is None or x.dim() == 0:
        return [
            None if labels is None else labels.reshape(tuple(o.shape)) if has_labels(o) else None for o in call.outs
        ]
    dim = int(call.argument("dim", -1)) % x.dim()
    line = over_dims(call, labels, (dim,))
    out = call.outs[0]
    if call.entry.name == "topk":
        return [np.broadcast_to(line, tuple(out.shape)), None]
    return [line.reshape(tuple(out.shape)), None]


@teach("_softmax _log_softmax softmax log_softmax _softmax_backward_data _log_softmax_backward_data renorm")
def line(call: Call) -> Any:
    """Every element of a line depends on the whole line."""
    return dense(call) if call.entry.name == "renorm" else whole_line(call)


@teach("_fft_c2c _fft_r2c _fft_c2r")
def transformed(call: Call) -> Any:
    """The whole of the transformed dimensions, in each line of the others."""
    x = call.args[0]
    labels = call.labels(x)
    if labels is None:
        return None
    dims = tuple(d % x.dim() for d in call.args[1])
    kept: Array = over_dims(call, labels, dims)
    return np.broadcast_to(kept, tuple(call.outs[0].shape))


@teach("linalg_cross")
def cross(call: Call) -> Any:
    """Each line of three numbers by itself, in both arguments."""
    shape = tuple(call.outs[0].shape)
    joined = either(call, [labels for t in call.args[:2] if (labels := call.labels(t)) is not None])
    if joined is None:
        return None
    return np.broadcast_to(over_dims(call, joined, (call.argument("dim", -1) % len(shape),)), shape)
