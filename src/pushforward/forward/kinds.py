"""How each kind of operator is differentiated in forward mode.

A rule is called as `rule(op, level, primals, tangents, kwargs)` and returns `(out, tangent)`. `tangents[k]` is None for a zero tangent
(for a list argument: a list of such); the tangent of a tuple of results is a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.level import resumed
from ..core.slow import say_slow
from ..ops import kinds
from ..ops.table import Entry
from .from_reverse import from_reverse

Tensor = torch.Tensor
Rule = Callable[[Any, Any, list[Any], Any, dict[str, Any]], tuple[Any, Any]]


def tangent_rule(e: Entry) -> Rule:
    """The rule of an operator: hand-written, by kind, or derived from its reverse formula."""
    return chosen(e)[1]


def chosen(e: Entry) -> tuple[str, Rule]:
    """Where the rule of an operator comes from, and the rule."""
    hand = e.rule("tangent")
    if hand is not None:
        return kinds.OWN, hand
    formula = e.rule("formula")
    if formula is not None:
        return kinds.DECOMPOSITION, decomposed(kinds.Decomposed(formula))
    if e.row is not None:
        for kind, make in BY_KIND.items():
            if isinstance(e.row.kind, kind):
                rule = make(e.row.kind)
                return kinds.DERIVED if rule in (derived, from_reverse) else SOURCES.get(kind, kinds.OWN), rule
    if e.composite:
        return kinds.DECOMPOSITION, decomposed(kinds.Decomposed())
    return kinds.DERIVED, derived


SOURCES = {
    kinds.Constant: kinds.CONSTANT,
    kinds.Random: kinds.CONSTANT,
    kinds.Factory: kinds.CONSTANT,
    kinds.Decomposed: kinds.DECOMPOSITION,
}


def derived(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """No rule: the tangent comes from the reverse formula, which is said once per operator."""
    out, tangent = from_reverse(op, level, primals, tangents, kwargs)
    if any(t is not None for t in (tangent if isinstance(tangent, (tuple, list)) else (tangent,))):
        say_slow(op.name(), "has no tangent rule: its tangent is derived from its reverse formula")
    return out, tangent


INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


def differentiable(t: Any) -> bool:
    """Whether a tensor can have a tangent at all."""
    return isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())


def fitted(tangent: Any, out: Tensor) -> Tensor | None:
    """A tangent in the sizes and dtype of its primal."""
    if tangent is None:
        return None
    if tangent.dtype is not out.dtype:
        if tangent.is_complex() and not out.is_complex():
            tangent = tangent.real
        tangent = tangent.to(out.dtype)
    return tangent if tangent.shape == out.shape else tangent.expand(out.shape)


def elementwise(kind: kinds.Elementwise) -> Rule:
    """Sum over the arguments of factor · tangent."""
    derivatives, kernel = kind.derivatives, kind.kernel

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        out = op(*primals, **kwargs)
        if not derivatives or not differentiable(out):
            return out, None
        if kernel is not None and tangents[0].dtype is out.dtype and not out.is_complex():
            return out, kernel(tangents[0], out, *primals, **kwargs)
        total = None
        if any(isinstance(p, Tensor) and p.dtype in INTEGERS for p in primals):  # 1 / n would be in the default dtype
            primals = [p.to(out.dtype) if isinstance(p, Tensor) and p.dtype in INTEGERS else p for p in primals]
        for derivative, t in zip(derivatives, tangents, strict=False):
            if t is None or derivative is None:
                continue
            factor = derivative(out, *primals, **kwargs)
            if isinstance(factor, Tensor):
                part = torch.where(factor, t, 0) if factor.dtype is torch.bool else t * factor
            elif factor == 0:
                continue
            else:
                part = t if factor == 1 else t * factor
            total = part if total is None else total + part
        return out, fitted(total, out)

    return rule


def elementwise_linear(kind: kinds.ElementwiseLinear) -> Rule:
    """The operator itself on the tangent."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        out = op(*primals, **kwargs)
        if not differentiable(out):
            return out, None
        moved = list(primals)
        for k in kind.linear:
            if tangents[k] is None:
                return out, None
            moved[k] = tangents[k]
        return out, fitted(op(*moved, **kwargs), out)

    return rule


def elementwise_bilinear(_: Any) -> Rule:
    """x · dy + dx · y."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level, kwargs
        x, y = primals
        out = op(x, y)
        if not differentiable(out):
            return out, None
        dx, dy = tangents
        if dx is None:
            tangent = x * dy
        elif dy is None:
            tangent = dx * y
        else:
            tangent = dx * y + x * dy
        return out, fitted(tangent, out)

    return rule


def linear_in_first(_: Any) -> Rule:
    """Movement: the same movement of the tangent."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        out = op(*primals, **kwargs)
        t = tangents[0]
        first = out[0] if isinstance(out, (list, tuple)) else out
        if t is None or (isinstance(first, Tensor) and not differentiable(first)):
            return out, None
        return out, op(t, *primals[1:], **kwargs)

    return rule


def reduction(kind: Any) -> Rule:
    """Linear reductions move the tangent the same way; the others are derived from reverse mode."""
    return linear_in_first(kind) if kind.linear else derived


def linear(kind: kinds.Linear) -> Rule:
    """Jointly linear in some arguments; a missing tangent among them is zeros."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        out = op(*primals, **kwargs)
        moved = list(primals)
        for k in kind.linear:
            moved[k] = filled(primals[k], tangents[k])
        t = op(*moved, **kwargs)
        return out, fitted(t, out) if isinstance(out, Tensor) else t

    return rule


def filled(primal: Any, tangent: Any) -> Any:
    """Tangents with zeros for the missing ones."""
    if isinstance(primal, (list, tuple)):
        tangents = tangent if tangent is not None else [None] * len(primal)
        return [filled(p, t) for p, t in zip(primal, tangents, strict=True)]
    if tangent is None and isinstance(primal, Tensor):
        return torch.zeros_like(primal)
    return tangent


def bilinear(kind: kinds.Bilinear) -> Rule:
    """Sum over the factors of the operator with that factor's tangent; the additive argument moves by itself."""
    i, j = kind.factors

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        out = op(*primals, **kwargs)
        total = None
        plus = kind.plus
        for k in (i, j):
            if tangents[k] is None:
                continue
            moved = list(primals)
            moved[k] = tangents[k]
            if plus is not None:
                dp = tangents[plus] if total is None else None
                moved[plus] = torch.zeros_like(primals[plus]) if dp is None else dp
            part = op(*moved, **kwargs)
            total = part if total is None else total + part
        if total is None and plus is not None and tangents[plus] is not None:
            total = tangents[plus] * kwargs.get("beta", 1)
        return out, fitted(total, out)

    return rule


def constant(_: Any) -> Rule:
    """No tangent."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level, tangents
        return op(*primals, **kwargs), None

    return rule


def along_dim(kind: Any) -> Rule:
    """Linear ones move the tangent the same way; the others are derived from reverse mode."""
    return linear_in_first(kind) if kind.linear else derived


def decomposed(kind: kinds.Decomposed) -> Rule:
    """Run the decomposition on dual numbers of the level itself."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return through_level(kind.function or op.decompose, level, primals, tangents, kwargs)

    return rule


def through_level(
    function: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Call `function` on dual numbers of the level and take the result apart."""
    keywords = getattr(tangents, "keywords", {})
    lifted = [lift(level, p, t) for p, t in zip(primals, tangents, strict=True)]
    kwargs = {k: lift(level, v, keywords.get(k)) for k, v in kwargs.items()}
    with resumed(level):
        return lower(level, function(*lifted, **kwargs))


# These two call themselves, so they are no closures: a closure that does is a cycle, and would keep the level with all its values.
def lift(level: Any, p: Any, t: Any) -> Any:
    """A primal and its tangent as a dual number of the level."""
    from .level import wrap

    if isinstance(p, (list, tuple)) and t is not None:
        return [lift(level, x, d) for x, d in zip(p, t, strict=True)]
    return wrap(level, p, t) if t is not None else p  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def lower(level: Any, o: Any) -> tuple[Any, Any]:
    """A dual number of the level as primal and tangent."""
    from .level import Dual

    if isinstance(o, (list, tuple)):
        both = [lower(level, x) for x in o]
        return tuple(b[0] for b in both), tuple(b[1] for b in both)
    if isinstance(o, Dual) and o._level is level:
        return o._primal, o._tangent
    return o, None


BY_KIND: dict[type, Callable[[Any], Rule]] = {
    kinds.Elementwise: elementwise,
    kinds.ElementwiseLinear: elementwise_linear,
    kinds.ElementwiseBilinear: elementwise_bilinear,
    kinds.Movement: linear_in_first,
    kinds.Reduction: reduction,
    kinds.AlongDim: along_dim,
    kinds.Linear: linear,
    kinds.Bilinear: bilinear,
    kinds.Constant: constant,
    kinds.Random: lambda kind: from_reverse if kind.pathwise else constant(kind),
    kinds.Factory: constant,
    kinds.Decomposed: decomposed,
}
