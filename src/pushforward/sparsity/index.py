"""Reading and writing by index: the labels are read and written by the same index, if it is known.

If the index varies with the inputs, everything it could reach is joined.

    gather([{a}, {b}, {c}], [2, 0]) = [{c}, {a}]        scatter_add([{a}, {b}], [1, 1], [{c}, {d}]) = [{a}, {b, c, d}]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .csr import Array
from .interpreter import Call
from .kinds import dense, over_dims, teach

Tensor = torch.Tensor


def as_tensor(labels: Array) -> Tensor:
    """Labels as a tensor that operators can move."""
    return torch.from_numpy(np.asarray(labels, order="C"))


@teach("gather index_select take take_along_dim embedding _embedding_bag_dense masked_select")
def read(call: Call) -> Any:
    """Read the labels by the index; if it varies, the union along what it runs over."""
    x = call.args[0]
    labels = call.labels(x)
    if labels is None:
        return None
    if call.entry.name == "index_select" and x.dim() == 0:
        return labels.reshape(tuple(call.outs[0].shape))
    if all(call.fixed(t) for t in call.tensors() if t is not x):
        return call.op(as_tensor(labels), *call.args[1:], **call.kwargs).numpy()
    shape = tuple(call.outs[0].shape)
    if call.entry.name in ("gather", "index_select") and x.dim():
        line = over_dims(call, labels, (call.args[1] % x.dim(),))
        if call.entry.name == "gather":
            line = line[tuple(slice(0, n) if k != call.args[1] % x.dim() else slice(None) for k, n in enumerate(shape))]
        return np.broadcast_to(line, shape)
    return dense(call)


def positions(call: Call, x: Tensor) -> Tensor:
    """The number of each element of a tensor."""
    return torch.arange(x.numel()).reshape(x.shape)


@teach("index _unsafe_index")
def read_index(call: Call) -> Any:
    """x[i, :, j]: labels by the same indices."""
    x, indices = call.args[:2]
    labels = call.labels(x)
    if labels is None:
        return None
    given = [i for i in indices if i is not None]
    if all(call.fixed(i) for i in given):
        return call.op(as_tensor(labels), indices).numpy()
    if any(i.dtype is torch.bool for i in given):
        return dense(call)
    dims = tuple(k for k, i in enumerate(indices) if i is not None)
    spread = np.broadcast_to(over_dims(call, labels, dims), labels.shape)
    return call.op(as_tensor(spread), indices).numpy()


def written(call: Call, target: Tensor, where: Tensor, source: Array | None, *, accumulate: bool) -> Any:
    """Labels of `target` with those of `source` written (or joined in) at the element numbers `where`."""
    old = call.dense_labels(target).reshape(-1)
    places = where.reshape(-1).numpy()
    new = (
        np.zeros(places.size, dtype=np.int64)
        if source is None
        else np.broadcast_to(source, tuple(where.shape)).reshape(-1)
    )
    kept = old.copy()
    if not accumulate:
        kept[places] = 0
    rows = np.concatenate([np.arange(old.size), places])
    return call.sets.joined(rows, np.concatenate([kept, new]), old.size).reshape(tuple(target.shape))


@teach("index_put _unsafe_index_put _index_put_impl")
def put(call: Call) -> Any:
    """x[i] = v, or x[i] += v with `accumulate`."""
    x, indices, values = call.args[:3]
    if not all(call.fixed(i) for i in indices if i is not None):
        return dense(call)
    where = torch.ops.aten.index.Tensor(positions(call, x), indices)
    accumulate = bool(call.argument("accumulate", False))
    source = call.labels(values)
    return written(call, x, where, source, accumulate=accumulate)


@teach("scatter scatter_add scatter_reduce")
def scattered(call: Call) -> Any:
    """out[index] gets src, or src joins what is there."""
    x, dim, index = call.args[:3]
    source = call.argument("src")
    if not call.fixed(index):
        return dense(call)
    if not x.dim():
        return dense(call)
    where = positions(call, x).gather(dim, index)
    labels = call.labels(source)
    if labels is not None:
        labels = labels[tuple(slice(0, n) for n in index.shape)]
    plain = call.entry.name == "scatter" and call.argument("reduce") is None
    if call.entry.name == "scatter_reduce":
        return reduced_into(call, x, where, labels)
    return written(call, x, where, labels, accumulate=not plain)


def reduced_into(call: Call, x: Tensor, where: Tensor, labels: Array | None) -> Any:
    """scatter_reduce: joined, and without the old value if it is not included."""
    if call.argument("include_self", True):
        return written(call, x, where, labels, accumulate=True)
    return written(call, x, where, labels, accumulate=False)


@teach("index_add index_copy index_fill index_reduce")
def along_index(call: Call) -> Any:
    """Slices of x at `index` along a dimension get, or are joined with, those of the source."""
    x, dim, index, source = call.args[:4]
    if not call.fixed(index) or not x.dim():
        return dense(call)
    where = positions(call, x).index_select(dim, index.reshape(-1))
    accumulate = call.entry.functional_name() in ("index_add", "index_reduce")
    return written(call, x, where, call.labels(source), accumulate=accumulate)


@teach("select_scatter slice_scatter diagonal_scatter as_strided_scatter")
def into_view(call: Call) -> Any:
    """A copy of x with one of its views replaced: the operator on the labels."""
    if call.entry.name.startswith("as_strided"):
        return strided(call)
    labels = [as_tensor(call.dense_labels(t)) for t in call.args[:2]]
    return call.op(*labels, *call.args[2:], **call.kwargs).numpy()


def strided(call: Call) -> Any:
    """As_strided_scatter sees the storage: where each number lies is found on numbers laid out like x."""
    x, source, size, stride = call.args[:4]
    offset = call.argument("storage_offset")
    numbers = torch.empty_strided(x.shape, x.stride(), dtype=torch.int64)
    numbers.copy_(positions(call, x))
    places = numbers.as_strided(size, stride, (offset or 0) - (x.storage_offset() if offset is not None else 0))
    return written(call, x, places, call.dense_labels(source).reshape(tuple(places.shape)), accumulate=False)


@teach("select_backward slice_backward diagonal_backward unfold_backward")
def into_zeros(call: Call) -> Any:
    """The cotangent of a view, put into zeros; windows that overlap are joined."""
    labels = call.dense_labels(call.args[0])
    if call.entry.name != "unfold_backward":
        return call.op(as_tensor(labels), *call.args[1:], **call.kwargs).numpy()
    sizes, dim, size, step = call.args[1:5]
    count = int(np.prod(sizes))
    where = torch.arange(count).reshape(sizes).unfold(dim, size, step)
    return call.sets.joined(where.reshape(-1).numpy(), labels.reshape(-1), count).reshape(sizes)


@teach("embedding_dense_backward embedding_backward")
def embedding_rows(call: Call) -> Any:
    """The cotangents of the rows of one word are added."""
    grad, index = call.args[:2]
    labels = call.labels(grad)
    if labels is None or not call.fixed(index):
        return dense(call)
    rows, width = call.outs[0].shape
    where = index.reshape(-1, 1).numpy() * width + np.arange(width)
    return call.sets.joined(where.reshape(-1), labels.reshape(-1), rows * width).reshape(rows, width)
