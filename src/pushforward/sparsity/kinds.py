"""How each kind of operator moves dependences.

A rule is called with a `Call` and returns the labels of the output (for several outputs: a list, or one array for all
that carry a derivative); None means no dependence. Whatever is unknown is dense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..ops import kinds
from ..ops.table import ROWS, Entry, attach
from .csr import Array
from .interpreter import Call, has_labels

Tensor = torch.Tensor
Rule = Callable[[Call], Any]


def teach(names: str) -> Callable[[Rule], Rule]:
    """Decorator: the sparsity rule of some operators, for every row with one of the names, whatever its overload."""

    def keep(rule: Rule) -> Rule:
        for name in names.split():
            for key in [k for k in ROWS if k.partition(".")[0] == name] or [name]:
                attach("sparsity", key)(rule)
        return rule

    return keep


def pattern_rule(e: Entry) -> Rule:
    """The rule of an operator: hand-written, by kind, or dense."""
    hand = e.rule("sparsity")
    if hand is not None:
        return hand
    if e.row is not None:
        for kind, make in BY_KIND.items():
            if isinstance(e.row.kind, kind):
                e.cache["lends"] = kind is kinds.Factory
                if kind in UNSAID and not e.row.rules.keys().isdisjoint(("tangent", "formula")):
                    return UNSAID[kind]
                return make(e.row.kind)
        formula = e.rule("formula")
        if formula is not None:
            return decomposed(kinds.Decomposed(formula))
    return movement(None) if e.name.endswith("_copy") else dense


def dense(call: Call) -> Any:
    """Every output element depends on everything in every argument."""
    call.level.dense[call.entry.name] = call.level.dense.get(call.entry.name, 0) + 1
    label = call.sets.all_of(*[call.labels(t) for t in call.tensors()])
    return [np.full(tuple(o.shape), label) if has_labels(o) else None for o in call.outs]


def nowhere(_: Call) -> None:
    """No derivative."""
    return


def broadcast(labels: Array, out: Tensor) -> Array:
    """Labels in the sizes of an output."""
    return np.broadcast_to(labels, tuple(out.shape))


def zeros_cut(labels: Array, factor: Any, out: Tensor) -> Array:
    """Labels with no dependence where the factor is exactly zero."""
    if isinstance(factor, Tensor):
        zero = factor.detach() == 0
        if zero.any():
            return np.where(np.broadcast_to(zero.cpu().numpy(), tuple(out.shape)), 0, broadcast(labels, out))
        return labels
    return labels if factor != 0 else np.zeros((), dtype=np.int64)


def either(call: Call, parts: list[Array]) -> Array | None:
    """Element-wise union of labels, broadcast to the output."""
    total = None
    for part in parts:
        full = broadcast(part, call.outs[0])
        total = full if total is None or total is part else call.sets.either(total, full)
    return total


def elementwise(kind: kinds.Elementwise) -> Rule:
    """The arguments that have a derivative; at one point, where the factor is not zero."""

    def rule(call: Call) -> Any:
        out = call.outs[0]
        if not has_labels(out):
            return None
        parts = []
        for derivative, x in zip(kind.derivatives, call.args, strict=False):
            labels = call.labels(x)
            if derivative is None or labels is None:
                continue
            if call.local:
                labels = zeros_cut(labels, derivative(out, *call.args, **call.kwargs), out)
            parts.append(labels)
        parts += [labels for x in call.kwargs.values() if (labels := call.labels(x)) is not None]
        return either(call, parts)

    return rule


def elementwise_in_all(call: Call) -> Any:
    """Element-wise in every tensor argument: where a hand-written tangent knows more than the kind says."""
    return either(call, [labels for t in call.tensors() if (labels := call.labels(t)) is not None])


def elementwise_linear(kind: kinds.ElementwiseLinear) -> Rule:
    """The union over the linear arguments."""

    def rule(call: Call) -> Any:
        chosen = [call.args[k] for k in kind.linear if k < len(call.args)]
        return either(call, [labels for x in chosen if (labels := call.labels(x)) is not None])

    return rule


def elementwise_bilinear(_: Any) -> Rule:
    """d(x y) = dx y + x dy: a factor that is zero, and may be read, cuts the other."""

    def rule(call: Call) -> Any:
        parts = []
        for x, other in (call.args[:2], call.args[1::-1]):
            labels = call.labels(x)
            if labels is not None:
                parts.append(zeros_cut(labels, other, call.outs[0]) if call.fixed(other) else labels)
        return either(call, parts)

    return rule


def movement(_: Any) -> Rule:
    """The operator itself on the labels of its first argument."""

    def rule(call: Call) -> Any:
        labels = call.labels(call.args[0])
        if any(o.layout is not torch.strided for o in call.outs):
            return dense(call)  # which says that sparse tensors made from the inputs cannot be followed
        if any(call.labels(t) is not None or not call.fixed(t) for t in call.tensors() if t is not call.args[0]):
            return dense(call)
        if labels is None:
            return None
        moved = call.op(torch.from_numpy(np.asarray(labels, order="C")), *call.args[1:], **call.kwargs)
        return [o.numpy() for o in moved] if isinstance(moved, (tuple, list)) else moved.numpy()

    return rule


def reduced_dims(call: Call, kind: Any, rank: int) -> tuple[int, ...]:
    """The dimensions that an operator runs over."""
    names = [a.name for a in call.op._schema.arguments]
    dim = None
    for name in ("dim", "dims"):
        if name in names:
            dim = call.argument(name)
            break
    else:
        if kind is not None and kind.dim < len(call.args) and isinstance(call.args[kind.dim], (int, list, tuple)):
            dim = call.args[kind.dim]
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    return tuple(sorted({d % max(rank, 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])} if rank else ()))


def over_dims(call: Call, labels: Array, dims: tuple[int, ...], *, keep: bool = True) -> Array:
    """The union along some dimensions, kept with size 1 or dropped."""
    shape = labels.shape
    small = [1 if d in dims else n for d, n in enumerate(shape)]
    count = int(np.prod(small))
    rows = np.broadcast_to(np.arange(count).reshape(small), shape)
    out = call.sets.joined(rows.reshape(-1), labels.reshape(-1), count)
    return out.reshape(small if keep else [n for d, n in enumerate(shape) if d not in dims])


def reduction(kind: kinds.Reduction) -> Rule:
    """Each output depends on the whole of what it was reduced from."""

    def rule(call: Call) -> Any:
        x = call.args[0]
        labels = call.labels(x)
        if labels is None or any(call.labels(a) is not None for a in call.args[1:]):
            return dense(call)
        kept = over_dims(call, labels, reduced_dims(call, kind, x.dim()))
        return [kept.reshape(tuple(o.shape)) if has_labels(o) else None for o in call.outs]

    return rule


def along_dim(kind: kinds.AlongDim) -> Rule:
    """Every element of a line depends on the whole line, in each tensor argument."""

    def rule(call: Call) -> Any:
        shape = tuple(call.outs[0].shape)
        parts = []
        for x in call.tensors():
            labels = call.labels(x)
            if labels is None:
                continue
            if tuple(x.shape) != shape:
                return dense(call)
            parts.append(labels)
        if any(isinstance(o, Tensor) and tuple(o.shape) != shape for o in call.outs):
            return dense(call)
        joined = either(call, parts)
        return None if joined is None else over_dims(call, joined, reduced_dims(call, kind, len(shape)))

    return rule


def linear(kind: kinds.Linear) -> Rule:
    """A linear operator of one small tensor, run on the basis: where the result is zero nothing passes. Else dense."""

    def rule(call: Call) -> Any:
        x = call.args[0]
        others = [t for t in call.tensors() if t is not x]
        if (
            kind.linear != (0,)
            or not isinstance(x, Tensor)
            or len(call.outs) != 1
            or x.numel() * call.outs[0].numel() > 1 << 20
        ):
            return dense(call)
        if any(call.labels(t) is not None or not call.fixed(t) for t in others):
            return dense(call)
        labels = call.dense_labels(x).reshape(-1)
        pairs_in, pairs_out = [], []
        for j in np.flatnonzero(labels):
            unit = torch.zeros_like(x, memory_format=torch.contiguous_format)
            unit.view(-1)[int(j)] = 1
            hit = np.flatnonzero((call.op(unit, *call.args[1:], **call.kwargs) != 0).cpu().numpy())
            pairs_out.append(hit)
            pairs_in.append(np.full(hit.size, labels[j]))
        if not pairs_in:
            return None
        out = call.outs[0]
        return call.sets.joined(np.concatenate(pairs_out), np.concatenate(pairs_in), out.numel()).reshape(
            tuple(out.shape)
        )

    return rule


def decomposed(kind: kinds.Decomposed) -> Rule:
    """Run the decomposition under the interpreter and read what it gives."""

    def rule(call: Call) -> Any:
        function = kind.function or call.op.decompose
        with call.level:
            made = function(*call.args, **call.kwargs)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        return [call.labels(o) if isinstance(o, Tensor) else None for o in made]

    return rule


# A kind that says "no derivative", or names its factors, is not the whole truth beside a hand-written tangent.
UNSAID: dict[type, Rule] = {
    kinds.Elementwise: elementwise_in_all,
    kinds.ElementwiseLinear: elementwise_in_all,
    kinds.ElementwiseBilinear: elementwise_in_all,
    kinds.Constant: dense,
    kinds.Random: dense,
    kinds.Factory: dense,
}

BY_KIND: dict[type, Callable[[Any], Rule]] = {
    kinds.Elementwise: elementwise,
    kinds.ElementwiseLinear: elementwise_linear,
    kinds.ElementwiseBilinear: elementwise_bilinear,
    kinds.Movement: movement,
    kinds.Reduction: reduction,
    kinds.AlongDim: along_dim,
    kinds.Linear: linear,
    kinds.Constant: lambda _: nowhere,
    kinds.Random: lambda _: nowhere,
    kinds.Factory: lambda _: nowhere,
    kinds.Decomposed: decomposed,
}
