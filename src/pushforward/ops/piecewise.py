"""Element-wise choices: one of the arguments, or a function of one, by a condition that is constant almost everywhere.

The tangent follows the choice. At ties the weights are those of torch's reverse mode: `maximum` and `minimum` give a
half to each, `fmax` and `fmin` all to the first, `clamp` passes the value's tangent where the value is at a bound.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .kinds import Decomposed, Elementwise, Special
from .lanes import in_front
from .table import row

Tensor = torch.Tensor


# -- the larger, the smaller, and bounds ---------------------------------------------------------------------------


def between(out: Tensor, x: Tensor, low: Any = None, high: Any = None) -> Any:
    """d clamp / dx: 1 inside and at the bounds."""
    inside = None if low is None else x >= low
    if high is not None:
        inside = x <= high if inside is None else inside & (x <= high)
    return 1 if inside is None else inside


def at_low(out: Tensor, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """d clamp / d low: below it, unless the upper bound wins."""
    return x < low if high is None else (x < low) & (low < high)


def at_high(out: Tensor, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """d clamp / d high: above it, or where the bounds have crossed."""
    return x > high if low is None else (x > high) | (high < low)


def larger(x: Tensor, y: Tensor) -> Tensor:
    """1 where x > y, a half where they are equal."""
    return torch.where(x == y, 0.5, (x > y).to(torch.promote_types(x.dtype, y.dtype)))


def first_of(x: Tensor, y: Tensor, before: Any) -> Tensor:
    """Whether fmax, fmin take x: also where y is NaN."""
    return before(x, y) | y.isnan()


row("clamp", Elementwise((between, at_low, at_high)))
row("clamp_min", Elementwise((lambda out, x, low: x >= low, lambda out, x, low: x < low)))
row("clamp_max", Elementwise((lambda out, x, high: x <= high, lambda out, x, high: x > high)))
row("maximum", Elementwise((lambda out, x, y: larger(x, y), lambda out, x, y: larger(y, x))))
row("minimum", Elementwise((lambda out, x, y: larger(y, x), lambda out, x, y: larger(x, y))))
row("fmax", Elementwise((lambda out, x, y: first_of(x, y, torch.ge), lambda out, x, y: ~first_of(x, y, torch.ge))))
row("fmin", Elementwise((lambda out, x, y: first_of(x, y, torch.le), lambda out, x, y: ~first_of(x, y, torch.le))))


# -- remainders, signs and exponents -------------------------------------------------------------------------------


def rounded_quotient(x: Any, y: Any, mode: str) -> Tensor:
    """x / y rounded: constant almost everywhere."""
    if not isinstance(x, Tensor):
        x = torch.full_like(y, x)
    return torch.div(x, y, rounding_mode=mode)


def sign_factor(out: Tensor, x: Tensor, y: Any) -> Tensor:
    """d copysign / dx: whether the sign was changed; 0 at 0."""
    return torch.where(x == 0, 0, out.sgn() * x.sgn()).to(out.dtype)


def frexp_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """frexp: the mantissa is x / 2^exponent."""
    del level, kwargs
    mantissa, exponent = op(primals[0])
    return (mantissa, exponent), (tangents[0] / torch.exp2(exponent.to(mantissa.dtype)), None)


def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """x · 2^exponent."""
    return x * torch.pow(2.0, exponent)


row("fmod", Elementwise((lambda out, x, y: 1, lambda out, x, y: -rounded_quotient(x, y, "trunc"))))
row("remainder", Elementwise((lambda out, x, y: 1, lambda out, x, y: -rounded_quotient(x, y, "floor"))))
row("copysign", Elementwise((sign_factor, None)))
row("nextafter", Elementwise((lambda out, x, y: x != y, None)))
row("frexp", Elementwise(), tangent=frexp_tangent)
row("ldexp", Decomposed(ldexp))
row(
    "logaddexp2",
    Elementwise(
        (lambda out, x, y: torch.sigmoid((x - y) * math.log(2)), lambda out, x, y: torch.sigmoid((y - x) * math.log(2)))
    ),
)


# -- choices by a mask ---------------------------------------------------------------------------------------------


def batch_where(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """where: the two values promote as the lane's do; the condition takes no part in that."""
    del kwargs
    ranks = [a.dim() - m for a, m in zip(args, mapped, strict=True)]
    rank = max(ranks)
    values = list(args)
    if values[1].dtype is not values[2].dtype:
        like = [torch.empty([1] * r, dtype=v.dtype, device="meta") for v, r in zip(values[1:], ranks[1:], strict=True)]
        dtype = torch.result_type(*like)
        values[1], values[2] = values[1].to(dtype), values[2].to(dtype)
    for k, (m, r) in enumerate(zip(mapped, ranks, strict=True)):
        if m and r < rank:
            values[k] = values[k].reshape(level.size, *[1] * (rank - r), *values[k].shape[1:])
    return op(*values)


def where_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """where of the tangents, 0 for a missing one: what was not chosen has no part in the result, NaN or not."""
    del level, kwargs
    out = op(*primals)
    if not (out.is_floating_point() or out.is_complex()):
        return out, None
    _, dx, dy = tangents
    return out, torch.where(primals[0], 0 if dx is None else dx, 0 if dy is None else dy).to(out.dtype).expand(
        out.shape
    )


def batch_masked_fill(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """masked_fill with a number, or a 0-dim value for each lane: the result keeps the dtype of the first argument."""
    del op, kwargs
    x, mask, value = args
    if isinstance(value, Tensor):
        if value.dim() - mapped[2] > 0:
            count = value.dim() - mapped[2]
            msg = f"masked_fill only supports a 0-dimensional value tensor, but got tensor with {count} dimension(s)."
            raise RuntimeError(msg)
        value = value.to(x.dtype)
    if isinstance(value, Tensor) and mapped[2]:
        return batch_where(torch.ops.aten.where.self, level, [mask, value, x], [mapped[1], True, mapped[0]], {})
    rank = max(x.dim() - mapped[0], mask.dim() - mapped[1])
    x = lifted(in_front(x, mapped[0], level.size), rank)
    mask = lifted(mask, rank) if mapped[1] else mask
    return torch.masked_fill(x, mask, value)


def lifted(x: Tensor, rank: int) -> Tensor:
    """A mapped value with new dimensions behind the mapped one, up to `rank` logical ones."""
    return x if x.dim() > rank else x.reshape(x.shape[0], *[1] * (rank + 1 - x.dim()), *x.shape[1:])


def masked_fill_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """masked_fill of the tangents."""
    del level, kwargs
    x, mask, _ = primals
    dx, _, dv = tangents
    out = op(*primals)
    dx = torch.zeros_like(x) if dx is None else dx
    return out, torch.masked_fill(dx, mask, 0 if dv is None else dv)


def batch_fill(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """fill: one value everywhere in a lane."""
    x, value = args
    if not (isinstance(value, Tensor) and mapped[1]):
        return op(*args, **kwargs)
    shape = x.shape[1:] if mapped[0] else x.shape
    return value.to(x.dtype).reshape(level.size, *[1] * len(shape)).expand(level.size, *shape).clone()


def fill_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """fill with the tangent of the value; nothing is left of the old one."""
    del level
    out = op(*primals, **kwargs)
    return out, None if tangents[1] is None else torch.ops.aten.fill.Tensor(torch.zeros_like(out), tangents[1])


row("where.self", Special(), batch=batch_where, tangent=where_tangent)
row("masked_fill", Special(), batch=batch_masked_fill, tangent=masked_fill_tangent)
row("fill", Special(), batch=batch_fill, tangent=fill_tangent)
