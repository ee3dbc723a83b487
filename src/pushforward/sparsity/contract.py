"""Contractions: out[i, j] = Σ_k a[i, k] b[k, j] depends on row i of a and column j of b.

A factor that is known to be zero cuts the other.

diag(1, 2) @ [{a}, {b}] = [{a}, {b}]        ones(1, 2) @ [{a}, {b}] = [{a, b}]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .csr import Array
from .interpreter import Call
from .kinds import dense, over_dims, teach
from .sets import mixed

Tensor = torch.Tensor

# A contraction with a constant is written out entry by entry up to so many; beyond, the constant is taken as full.
LARGEST_PRODUCT = 50_000_000


def support(call: Call, factor: Tensor) -> tuple[Array, ...] | None:
    """Where a stack of matrices `[s, i, k]` is nonzero, as index arrays; None where it must be taken as full."""
    if not call.fixed(factor):
        return None
    if factor.layout is not torch.strided:
        coo = factor.detach().to_sparse_coo().coalesce()
        places = coo.indices().cpu().numpy()[:, (coo.values() != 0).cpu().numpy()]
        return np.zeros(places.shape[1], dtype=np.int64), places[0], places[1]
    mask = factor.detach() != 0
    if bool(mask.all()):
        return None
    return np.nonzero(mask.reshape(-1, *mask.shape[-2:]).cpu().numpy())


def through(call: Call, labels: Array, other: Tensor, rows: int) -> Array:
    """Labels `[s, k, j]` contracted over k with a stack of matrices `other` `[s, i, k]`: labels `[s, i, j]`."""
    stack, _, columns = labels.shape
    found = support(call, other)
    if found is None or found[0].size * columns > LARGEST_PRODUCT:
        return np.broadcast_to(over_dims(call, labels, (1,)), (stack, rows, columns))
    s, i, k = found
    # Rows with one support are worked out once.
    row = s * rows + i
    order = np.argsort(row, kind="stable")
    row, s, k = row[order], s[order], k[order]
    bounds = np.searchsorted(row, np.arange(stack * rows + 1))
    totals = np.concatenate([[np.uint64(0)], np.add.accumulate(mixed(s * labels.shape[1] + k))])
    some = np.flatnonzero(np.diff(bounds))
    _, first, group = np.unique(
        totals[bounds[1:][some]] - totals[bounds[:-1][some]], return_index=True, return_inverse=True
    )
    number = np.full(stack * rows, -1, dtype=np.int64)
    number[some[first]] = np.arange(first.size)
    taken = number[row] >= 0
    places = number[row[taken]][:, None] * columns + np.arange(columns)
    made = call.sets.joined(places.reshape(-1), labels[s[taken], k[taken]].reshape(-1), first.size * columns)
    out = np.zeros((stack * rows, columns), dtype=np.int64)
    out[some] = made.reshape(first.size, columns)[group]
    return out.reshape(stack, rows, columns)


def product(call: Call, a: Tensor, b: Tensor) -> Array | None:
    """Labels of a stack of matrix products, `[s, i, k] @ [s, k, j]`."""
    left, right = call.labels(a), call.labels(b)
    total = None
    if right is not None:
        total = through(call, stacked(right), a, a.shape[-2])
    if left is not None:
        turned = through(call, stacked(left).swapaxes(1, 2), b.mT if b.layout is torch.strided else b.t(), b.shape[-1])
        part = turned.swapaxes(1, 2)
        total = part if total is None else call.sets.either(total, part)
    return total


def stacked(labels: Array) -> Array:
    """Labels of one matrix as a stack of one."""
    return labels[None] if labels.ndim == 2 else labels


@teach("mm bmm mv dot vdot _sparse_mm linear matmul")
def matrix_product(call: Call) -> Any:
    """Two factors; a vector is a matrix of one row or column."""
    a, b = call.args[:2]
    name = call.entry.name
    if name in ("dot", "vdot"):
        made = product(call, *with_shape(call, a, (1, -1)), *with_shape(call, b, (-1, 1)))
    elif name == "mv":
        made = product(call, a, *with_shape(call, b, (-1, 1)))
    elif name in ("mm", "bmm", "_sparse_mm"):
        made = product(call, a, b)
    else:
        return dense(call)
    return None if made is None else made.reshape(tuple(call.outs[0].shape))


def with_shape(call: Call, t: Tensor, shape: tuple[int, int]) -> tuple[Tensor]:
    """A vector as a matrix, with its labels."""
    shaped = t.reshape(shape)
    if call.level.kept(shaped) is None:
        found = call.level.kept(t)
        if found is not None:
            labels = call.labels(t)
            call.level.write(shaped, None if labels is None else labels.reshape(tuple(shaped.shape)), found.varies)
    return (shaped,)


@teach("addmm addmv baddbmm addr addbmm _addmm_activation sparse_sampled_addmm")
def with_sum(call: Call) -> Any:
    """beta · self + alpha · product."""
    x, a, b = call.args[:3]
    name = call.entry.functional_name() if call.entry.writes else call.entry.name
    out = call.outs[0]
    if name in ("addmm", "baddbmm"):
        made = product(call, a, b)
    elif name == "addmv":
        made = product(call, a, *with_shape(call, b, (-1, 1)))
    elif name == "addr":
        made = product(call, *with_shape(call, a, (-1, 1)), *with_shape(call, b, (1, -1)))
    elif name == "addbmm":
        made = product(call, a, b)
        made = None if made is None else over_dims(call, made, (0,))
    else:
        return dense(call)
    if made is not None:
        made = made.reshape(tuple(out.shape))
    own = call.labels(x)
    if own is None or call.kwargs.get("beta", 1) == 0:
        return made
    own = np.broadcast_to(own, tuple(out.shape))
    return own if made is None else call.sets.either(made, own)


@teach("_cdist_forward cdist")
def distances(call: Call) -> Any:
    """out[i, j] depends on row i of a and row j of b."""
    a, b = call.args[:2]
    shape = tuple(call.outs[0].shape)
    total = None
    left, right = call.labels(a), call.labels(b)
    if left is not None:
        total = np.broadcast_to(over_dims(call, left, (a.dim() - 1,)), shape)
    if right is not None:
        part = np.broadcast_to(over_dims(call, right, (b.dim() - 1,)).swapaxes(-1, -2), shape)
        total = part if total is None else call.sets.either(total, part)
    return total
