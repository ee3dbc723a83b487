"""Norms, attention, linear algebra: dense over some trailing dimensions, independent over the leading ones.

With `k` trailing dimensions, out[b, …] depends on every element of x[b, …] in each tensor argument that has the
leading dimensions b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .csr import Array
from .interpreter import Call, has_labels
from .kinds import dense, over_dims, teach

Tensor = torch.Tensor


def independent(call: Call, lead: tuple[int, ...], batched: list[Tensor]) -> Any:
    """Dense but for the leading dimensions `lead`, which the arguments in `batched` have; others reach all outputs."""
    rank = len(lead)
    total: Array | None = None
    for t in call.tensors():
        labels = call.labels(t)
        if labels is None:
            continue
        if any(t is b for b in batched):
            part = over_dims(call, labels, tuple(range(rank, t.dim())), keep=False)
        else:
            part = np.asarray(call.sets.all_of(labels))
        full = np.broadcast_to(part, lead)
        total = full if total is None else call.sets.either(total, full)
    if total is None:
        return None
    made: list[Array | None] = []
    for o in call.outs:
        if not has_labels(o):
            made.append(None)
        elif tuple(o.shape[:rank]) == lead:
            made.append(np.broadcast_to(total.reshape((*lead, *[1] * (o.dim() - rank))), tuple(o.shape)))
        else:
            made.append(np.full(tuple(o.shape), call.sets.all_of(total)))
    return made


@teach("native_layer_norm _fused_rms_norm")
def layer_norm(call: Call) -> Any:
    """Independent over the dimensions before the normalised ones; weight and bias act element by element."""
    x, shape = call.args[0], call.args[1]
    lead = tuple(x.shape[: x.dim() - len(shape)])
    labels = call.labels(x)
    out = call.outs[0]
    inner = None if labels is None else over_dims(call, labels, tuple(range(len(lead), x.dim())))
    total = None if inner is None else np.broadcast_to(inner, tuple(out.shape))
    for t in call.args[2:4]:
        own = call.labels(t)
        if own is not None:
            full = np.broadcast_to(own, tuple(out.shape))
            total = full if total is None else call.sets.either(total, full)
    rest = [None if inner is None or not has_labels(o) else inner.reshape(tuple(o.shape)) for o in call.outs[1:]]
    return [total, *rest]


@teach("native_layer_norm_backward")
def layer_norm_backward(call: Call) -> Any:
    """The gradient of the input is independent over the leading dimensions; those of weight and bias sum over them."""
    x, shape = call.args[1], call.args[2]
    lead = tuple(x.shape[: x.dim() - len(shape)])
    made = independent(call, lead, [call.args[0], x, call.args[3], call.args[4]])
    if made is None:
        return None
    everything = call.sets.all_of(*[m for m in made if m is not None])
    return [made[0], *[np.full(tuple(o.shape), everything) if has_labels(o) else None for o in call.outs[1:]]]


@teach("native_group_norm")
def group_norm(call: Call) -> Any:
    """Independent over the examples."""
    return independent(call, tuple(call.outs[0].shape[:1]), [call.args[0]])


LINEAR_ALGEBRA = """
cholesky linalg_cholesky_ex cholesky_inverse cholesky_solve linalg_inv_ex linalg_det _linalg_det linalg_slogdet
_linalg_slogdet linalg_eig linalg_eigh _linalg_eigh linalg_eigvals _linalg_eigvals linalg_qr linalg_svd _linalg_svd
linalg_lu linalg_lu_factor_ex linalg_ldl_factor_ex linalg_solve_ex _linalg_solve_ex linalg_lu_solve
linalg_solve_triangular triangular_solve linalg_lstsq linalg_matrix_exp linalg_householder_product geqrf ormqr
linalg_pinv lu_unpack linalg_matrix_power
"""


@teach(LINEAR_ALGEBRA)
def matrices(call: Call) -> Any:
    """Independent over the stack of matrices, where all arguments have the same one."""
    ranks = {t.dim() for t in call.tensors() if t.is_floating_point() or t.is_complex()}
    stacks = {tuple(t.shape[:-2]) for t in call.tensors() if has_labels(t)}
    if len(ranks) != 1 or len(stacks) != 1:
        return dense(call)
    return independent(call, stacks.pop(), call.tensors())


@teach(
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention"
)
def attention(call: Call) -> Any:
    """Each query row of a head depends on itself and on all keys and values of that head."""
    query, key, value = call.args[:3]
    out = call.outs[0]
    if key.shape[:-2] != query.shape[:-2] or value.shape[:-2] != query.shape[:-2]:
        return dense(call)
    lead = tuple(query.shape[:-2])
    total: Array | None = None
    own = call.labels(query)
    if own is not None:
        total = over_dims(call, own, (query.dim() - 1,))
    for t in (key, value, *[t for t in call.tensors() if t is not query and t is not key and t is not value]):
        labels = call.labels(t)
        if labels is None:
            continue
        if t.dim() == query.dim() and tuple(t.shape[: len(lead)]) == lead:
            part = over_dims(call, labels, (t.dim() - 2, t.dim() - 1))
        else:
            part = np.asarray(call.sets.all_of(labels))
        shape = (*lead, query.shape[-2], 1)
        part = np.broadcast_to(part, shape)
        total = part if total is None else call.sets.either(np.broadcast_to(total, shape), part)
    if total is None:
        return None
    rest = [None if not has_labels(o) else dense_like(call, total, o) for o in call.outs[1:]]
    return [np.broadcast_to(total, tuple(out.shape)), *rest]


def dense_like(call: Call, labels: Array, out: Tensor) -> Array:
    """Everything in `labels`, in the sizes of an output."""
    return np.full(tuple(out.shape), call.sets.all_of(labels))
