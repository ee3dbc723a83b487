"""The rules of simplification: zeros and ones in arithmetic, views of views, copies nobody needs.

A rule gets the rewriter, the operator, its arguments as nodes of the new graph and the fake result; it returns a node
in place of the operator, or None.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from .simplify import POINTWISE_RULES, RULES, Rewriter, aten, rule, static, value
from .torch_private import without_modes

Tensor = torch.Tensor


def fit(rw: Rewriter, x: Any, val: Tensor) -> Any:
    """`x` with the shape and dtype of `val`."""
    if not isinstance(x, Node):
        return None
    own = value(x)
    if own.dtype != val.dtype:
        x = rw.emit(aten._to_copy.default, (x,), {"dtype": val.dtype})
    if own.shape != val.shape:
        if not static(val):
            return None
        x = rw.emit(aten.expand.default, (x, list(val.shape)))
    return x


def zero(rw: Rewriter, val: Any) -> Any:
    """Zeros like `val`."""
    if not static(val):
        return None
    return rw.full(val, False if val.dtype is torch.bool else 0)


# -- arithmetic -------------------------------------------------------------------------------------------------------


@rule(aten.mul)
def of_mul(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """0·x = 0 and 1·x = x."""
    for x, u in ((args[0], args[1]), (args[1], args[0])):
        number = rw.number(u)
        if number is None:
            continue
        if isinstance(u, Node) and number == 0:
            return zero(rw, val)
        if number == 1 and type(number) is not complex:
            return fit(rw, x, val)
    return scalar_operand(rw, target, args, kwargs, val, (0, 1))


@rule(aten.add)
def of_add(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """x + 0 = x."""
    alpha = kwargs.get("alpha", 1)
    if rw.number(args[1]) == 0:
        return fit(rw, args[0], val)
    if rw.number(args[0]) == 0 and alpha == 1:
        return fit(rw, args[1], val)
    return scalar_operand(rw, target, args, kwargs, val, (1,))


@rule(aten.sub)
def of_sub(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """x - 0 = x and 0 - x = -x."""
    if rw.number(args[1]) == 0:
        return fit(rw, args[0], val)
    if rw.number(args[0]) == 0 and kwargs.get("alpha", 1) == 1 and isinstance(args[1], Node):
        whole = fit(rw, args[1], val)
        return None if whole is None else rw.emit(aten.neg.default, (whole,))
    return scalar_operand(rw, target, args, kwargs, val, (1,))


@rule(aten.div)
def of_div(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """x / 1 = x and 0 / x = 0."""
    if kwargs.get("rounding_mode"):
        return None
    if rw.number(args[1]) == 1:
        return fit(rw, args[0], val)
    if isinstance(args[0], Node) and rw.number(args[0]) == 0 and rw.number(args[1]) is None:
        return zero(rw, val)
    return scalar_operand(rw, target, args, kwargs, val, (1,))


def scalar_operand(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any, places: tuple[int, ...]) -> Any:
    """A tensor of one number as that number, where shape and dtype do not depend on it."""
    if str(target).split(".")[-1] != "Tensor" or not isinstance(val, Tensor) or not val.is_floating_point():
        return None
    for k in places:
        u, x = args[k], args[1 - k]
        if not (isinstance(u, Node) and isinstance(x, Node)) or rw.number(u) is None:
            continue
        own = value(x)
        if own.shape == val.shape and own.dtype == val.dtype and not isinstance(rw.number(u), complex):
            return rw.emit(target, (x, rw.number(u)), kwargs) if k == 1 or target is aten.mul.Tensor else None
    return None


@rule(aten.pow)
def of_pow(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """x¹ = x."""
    if isinstance(args[0], Node) and rw.number(args[1]) == 1:
        return fit(rw, args[0], val)
    return None


@rule(aten.neg)
def of_neg(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """-(-x) = x."""
    inner = args[0]
    return inner.args[0] if inner.target is aten.neg.default else None


@rule(aten.mm, aten.bmm, aten.mv, aten.dot)
def of_product(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """A product with zeros is zero; a column times a row is a product element by element."""
    if any(rw.number(a) == 0 for a in args[:2]):
        return zero(rw, val)
    if target in (aten.mm.default, aten.bmm.default) and value(args[0]).shape[-1] == 1 and static(val):
        return rw.emit(aten.mul.Tensor, args)
    return None


@rule(aten.addmm, aten.baddbmm, aten.addmv)
def of_added_product(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """b + A·0 = b, and 0 + A·B = A·B."""
    if kwargs.get("beta", 1) != 1 or kwargs.get("alpha", 1) != 1:
        return None
    if any(rw.number(a) == 0 for a in args[1:3]):
        return fit(rw, args[0], val)
    if rw.number(args[0]) == 0:
        name = {"addmm": aten.mm, "baddbmm": aten.bmm, "addmv": aten.mv}[str(target).split(".")[1]]
        return rw.emit(name.default, args[1:3])
    return None


@rule(aten.sum, aten.mean)
def of_sum(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """A sum of zeros is zero; a sum over dimensions of size 1 is a view."""
    x = args[0]
    own = value(x)
    if rw.number(x) == 0:
        return zero(rw, val)
    if not static(own) or own.dtype != val.dtype:
        return None
    dims = args[1] if len(args) > 1 and args[1] else list(range(own.dim()))
    if all(own.shape[d] == 1 for d in dims):
        return rw.emit(aten.reshape.default, (x, list(val.shape))) if own.shape != val.shape else x
    return None


@rule(aten.cat, aten.stack)
def of_cat(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """One tensor joined with nothing is itself."""
    items = args[0]
    return (
        items[0]
        if len(items) == 1 and value(items[0]).shape == val.shape and value(items[0]).dtype == val.dtype
        else None
    )


@rule(aten.where)
def of_where(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """A choice between equals, or by a constant, is none."""
    if len(args) != 3:
        return None
    condition, a, b = args
    if a is b and isinstance(a, Node):
        return fit(rw, a, val)
    number = rw.number(condition)
    if number is None:
        return None
    return fit(rw, a if number else b, val)


def expanded_operands(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """Broadcasting does what `expand` did: use the smaller operand where the result keeps its shape."""
    if not isinstance(val, Tensor) or not any(isinstance(a, Node) and a.target is aten.expand.default for a in args):
        return None
    made = list(args)
    for k, a in enumerate(args):
        if isinstance(a, Node) and a.target is aten.expand.default:
            trial = [*made[:k], a.args[0], *made[k + 1 :]]
            shapes = [value(t).shape for t in trial if isinstance(t, Node) and isinstance(value(t), Tensor)]
            if broadcasts_to(shapes, val.shape) and same_dtype(rw, target, trial, kwargs, val):
                made = trial
    return rw.apply(target, tuple(made), kwargs, val) if made != list(args) else None


def broadcasts_to(shapes: list[Any], shape: Any) -> bool:
    """Whether shapes broadcast to `shape` without help."""
    try:
        return torch.broadcast_shapes(*shapes) == shape
    except RuntimeError:
        return False


def same_dtype(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> bool:
    """Whether the result keeps its dtype (a scalar promotes less than a vector)."""
    return rw.compute(target, tuple(args), kwargs).dtype == val.dtype


def uniform_operands(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """A function of uniform tensors is uniform."""
    nodes: list[Node] = []
    torch.fx.map_arg((args, kwargs), nodes.append)
    if not nodes or not static(val) or any(n not in rw.uniform for n in nodes) or val.numel() == 0:
        return None

    def one(n: Node) -> Tensor:
        return torch.full((1,) * value(n).dim(), rw.uniform[n], dtype=value(n).dtype)

    real_args, real_kwargs = torch.fx.map_arg((args, kwargs), one)
    with without_modes(), torch.no_grad():
        return rw.full(val, target(*real_args, **real_kwargs).item())


POINTWISE_RULES += [uniform_operands, expanded_operands]


# -- copies and views -------------------------------------------------------------------------------------------------


@rule(aten.detach, aten.alias, aten.lift_fresh, aten.lift_fresh_copy)
def of_alias(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """The same tensor under another name."""
    return args[0]


@rule(aten.clone, aten._to_copy, aten.contiguous)
def of_clone(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """A copy like its source, of which nobody writes either."""
    own = value(args[0])
    same = own.dtype == val.dtype and own.device == val.device and own.layout == val.layout
    return args[0] if same and own.stride() == val.stride() else None


@rule(aten.copy)
def of_copy(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """What is copied over a buffer takes its place."""
    return fit(rw, args[1], val)


@rule(aten.expand)
def of_expand(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """No expansion, or two in one."""
    x = args[0]
    if value(x).shape == val.shape:
        return x
    if rw.number(x) is not None and static(val):
        return rw.full(val, rw.number(x))
    if x.target is aten.expand.default:
        return rw.emit(target, (x.args[0], args[1]))
    return None


_RESHAPES = (aten.view, aten.reshape, aten._unsafe_view, aten.unsqueeze, aten.squeeze, aten.flatten, aten.unflatten)
_RESHAPE_OVERLOADS = {getattr(p, o) for p in _RESHAPES for o in p.overloads()} - {aten.view.dtype}


@rule(*_RESHAPES)
def of_reshape(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """All of these keep the order of elements, so a chain of them is one, and none where the shape came back."""
    if target is aten.view.dtype:
        return None
    x = args[0]
    if value(x).shape == val.shape:
        return x
    if rw.number(x) is not None and static(val):
        return rw.full(val, rw.number(x))
    root = x
    while root.target in _RESHAPE_OVERLOADS:
        root = root.args[0]
        if value(root).shape == val.shape:
            return root
    if root is x or not static(val):
        return None
    dims = (value(root).dim(), value(x).dim(), val.dim())
    if x.target in _RESHAPE_OVERLOADS and (target in _VIEWS or x.target in _VIEWS) and dims:
        return rw.emit(aten.reshape.default, (root, list(val.shape)))
    return None


_VIEWS = {aten.view.default, aten.reshape.default, aten._unsafe_view.default}


def order_of(node: Node) -> list[int] | None:
    """A transposing node as a permutation."""
    n = value(node).dim()
    order = list(range(n))
    if node.target is aten.permute.default:
        return [d % n for d in node.args[1]]  # type: ignore[union-attr]
    if node.target is aten.t.default:
        return order[::-1]
    if node.target in (aten.transpose.int, aten.swapaxes.default):
        a, b = node.args[1] % n, node.args[2] % n
        order[a], order[b] = order[b], order[a]
        return order
    return None


@rule(aten.permute, aten.t, aten.transpose, aten.swapaxes)
def of_permute(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """Two transpositions are one or none."""
    x = args[0]
    if rw.number(x) is not None and static(val):
        return rw.full(val, rw.number(x))
    probe = rw.graph.call_function(target, args, kwargs)
    probe.meta["val"] = val
    outer = order_of(probe)
    rw.graph.erase_node(probe)
    if outer is None:
        return None
    if outer == list(range(len(outer))):
        return x
    inner = order_of(x)
    if inner is None:
        return None
    both = [inner[d] for d in outer]
    if both == list(range(len(both))):
        return x.args[0]
    return rw.emit(aten.permute.default, (x.args[0], both))


@rule(aten.slice, aten.select, aten.index_select, aten.gather, aten.squeeze, aten.as_strided, aten.split, aten.narrow)
def of_zero_part(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """A part of zeros is zeros; a slice of everything is everything."""
    x = args[0]
    if isinstance(x, Node) and rw.number(x) is not None and static(val):
        return rw.full(val, rw.number(x))
    if target is aten.slice.Tensor and value(x).shape == val.shape and (len(args) < 5 or args[4] == 1):
        return x
    return None


_PARTS = {aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default}


def of_item(rw: Rewriter, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
    """The only part of a tensor is the tensor."""
    parts = args[0]
    if isinstance(parts, Node) and parts.target in _PARTS and len(value(parts)) == 1:
        return parts.args[0]
    return None


RULES[operator.getitem] = [of_item]
