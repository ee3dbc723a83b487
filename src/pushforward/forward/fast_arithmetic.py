"""Short ways of arithmetic under `jvp`: functions of one tensor, of two, products; see `fast`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..core.level import recorded_below
from ..core.methods import SWAPPED, own_code
from ..core.torch_private import (
    NoDispatch,
    NoFunction,
    function_mode_on,
    functions_on,
    make_wrapper,
)
from ..core.traced import UNPLANNED, NotFast
from ..ops.kinds import Elementwise
from ..ops.table import ROWS
from .fast import (
    compute,
    like,
    like_over,
    meta_of,
    number,
    plain_dual,
    ready,
    ready_over,
    register_method,
    shape_and_dtype,
)
from .level import Dual, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_PLAIN = frozenset({Tensor, Parameter})

UNARY = (
    "sin cos tan tanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sigmoid relu reciprocal square erf erfc sinh cosh "
    "asin acos atan asinh acosh atanh"
)


# -- functions of one tensor -------------------------------------------------------------------------------------------


def unary(derivative: Any, kernel: Any) -> Any:
    """The short way of a function of one real tensor."""

    def both(func: Any, p: Tensor, t: Any) -> tuple[Any, Any]:
        out = func(p)
        if kernel is not None and type(t) is Tensor:
            return out, kernel(t, out, p)
        return out, t * derivative(out, p)

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        x = args[0]
        if len(args) != 1 or type(x) is not Dual or x._form is UNPLANNED:
            return None
        p, t, level = x._primal, x._tangent, x._level
        if type(p) is Tensor and type(t) is Tensor and ready(level):
            meta = x._meta or meta_of(x)
            if not (meta or p.is_floating_point()):
                return None
            guard = NoDispatch()
            try:
                out = func(p)
                t = kernel(t, out, p) if kernel is not None else t * derivative(out, p)
            finally:
                del guard
            return like(level, out, t, meta) if meta else wrap(level, out, t)
        if t is None or not plain_dual(x) or not p.is_floating_point():
            return None
        over, meta = ready_over(level, t), x._meta or meta_of(x)
        if over is None or not meta or p.requires_grad or over[1].dtype is not p.dtype:
            return compute(level, both, func, p, t)
        below, rows = over
        guard = NoDispatch()
        try:
            out = func(p)
            rows = kernel(rows, out, p) if kernel is not None else rows * derivative(out, p)
        finally:
            del guard
        return like_over(level, out, below, rows, meta)

    return own_code(short)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def parts(a: Any, level: Any) -> Any:
    """(level, primal, tangent) of an operand that is plain enough, or None."""
    kind = type(a)
    if kind is Dual:
        if not plain_dual(a) or a._form is UNPLANNED or (level is not None and a._level is not level):
            return None
        if a._tangent is None:
            with NoFunction():
                if a.requires_grad:
                    a._level.tracked = True
                    return None
        return a._level, a._primal, a._tangent
    if kind is float or kind is int:
        return level, a, None
    if kind is Tensor or kind is Parameter:
        return level, a, None
    return None


def general(tangent_of: Any) -> Any:
    """The short way of an arithmetic operator for any operands, unless they broadcast or promote.

    `tangent_of(func, x, dx, y, dy, out)` gives the tangent; it may raise NotFast.
    """

    def both(func: Any, x: Any, dx: Any, y: Any, dy: Any) -> tuple[Any, Any]:
        out = func(x, y)
        tangent = tangent_of(func, x, dx, y, dy, out)
        shape, dtype = shape_and_dtype(tangent)
        return out, tangent if dtype is out.dtype and shape == out.shape else None

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        if len(args) != 2:
            return None
        first = parts(args[0], None)
        if first is None:
            return None
        second = parts(args[1], first[0])
        if second is None:
            return None
        level = second[0]
        dx, dy = first[2], second[2]
        if level is None or (dx is None and dy is None):
            return None
        for v in (first[1], second[1]):
            if type(v) in _PLAIN and v.requires_grad and not recorded_below(level, v):
                return None
        return compute(level, both, func, first[1], dx, second[1], dy)

    return short


def binary(lean: Any, tangent_of: Any) -> tuple[Any, Any]:
    """The short way of an arithmetic operator, and that of its method.

    `lean(x, dx, y, dy)` is for plain operands of one size and dtype; y may be a number, or have no tangent.
    """
    others = general(tangent_of)

    def core(x: Any, y: Any) -> Any:
        level, p, dp, below = x._level, x._primal, x._tangent, None
        if type(p) is not Tensor or x._form is UNPLANNED:
            return None
        if type(dp) is not Tensor:
            over = ready_over(level, dp)
            if over is None or p.requires_grad or over[1].dtype is not p.dtype:
                return None
            below, dp = over
        elif not ready(level):
            return None
        meta = x._meta or meta_of(x)
        if not meta:
            return None
        kind, dq = type(y), None
        if kind is Dual:
            q, dq = y._primal, y._tangent
            if y._level is not level or type(q) is not Tensor:
                return None
            if below is not None:
                over = ready_over(level, dq)
                if over is None or q.requires_grad:
                    return None
                dq = over[1]
            elif type(dq) is not Tensor:
                return None
            other = y._meta or meta_of(y)
            if other is not meta and (not other or other[5] is not meta[5] or other[1] != meta[1]):
                return None
        elif kind is float or kind is int:
            q = number(y, meta)
        elif kind is Tensor:
            q = y
            if q.dtype is not meta[5] or q.shape != meta[1] or not q.is_contiguous() or not recorded_below(level, q):
                return None
            if below is not None and q.requires_grad:
                return None
        else:
            return None
        guard = NoDispatch()
        try:
            out, t = lean(p, dp, q, dq)
        finally:
            del guard
        if below is not None:
            return like_over(level, out, below, t, meta)
        made: Any = make_wrapper(*meta)  # as `like`, which is called too often to be called
        made._primal, made._tangent, made._level, made._meta, made._form = out, t, level, meta, None
        return made

    core = own_code(core)

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        if len(args) != 2:
            return None
        x, y = args
        out = core(x, y) if type(x) is Dual else None
        return others(func, args) if out is None else out

    def method_of(original: Any, swapped: Any) -> Any:
        def call(self: Any, other: Any) -> Any:
            if swapped is not None and isinstance(other, Tensor):
                return swapped(other, self)  # the result lies in memory as the first operand does
            if functions_on() and not function_mode_on():
                out = core(self, other)
                if out is None:
                    out = others(original, (self, other))
                if out is not None:
                    return out
            return original(self, other)

        return own_code(call)

    return short, method_of


def of_product(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """dx y + x dy."""
    del func, out
    if dx is None:
        return x * dy
    return dx * y if dy is None else dx * y + x * dy


def lean_product(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """x y, and dx y + x dy without a tensor more than the result."""
    return x * y, dx * y if dy is None else (dx * y).addcmul_(x, dy)


def of_sum(sign_x: int, sign_y: int) -> Any:
    """±dx ± dy."""

    def tangent(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
        del func, x, y, out
        if dy is None:
            return dx if sign_x == 1 else -dx
        if dx is None:
            return dy if sign_y == 1 else -dy
        if sign_x == 1:
            return dx + dy if sign_y == 1 else dx - dy
        return dy - dx

    return tangent


def lean_add(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """x + y."""
    return x + y, dx if dy is None else dx + dy


def lean_sub(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """x − y."""
    return x - y, dx if dy is None else dx - dy


def lean_rsub(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """y − x."""
    return torch.rsub(x, y), -dx if dy is None else dy - dx


def of_quotient(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """(dx − out dy) / y."""
    del func, x
    if dy is None:
        return dx / y
    return -(dy * out) / y if dx is None else (dx - dy * out) / y


def lean_quotient(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """x / y, and (dx − out dy) / y."""
    out = x / y
    return out, dx / y if dy is None else torch.addcmul(dx, out, dy, value=-1).div_(y)


def of_power(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """n x^(n−1) dx for a number n other than 0."""
    del func, out
    if dy is not None or type(y) not in (int, float) or y == 0:
        raise NotFast
    return dx * (2 * x) if y == 2 else dx * (y * x ** (y - 1))


def power(func: Any, args: tuple[Any, ...]) -> Any:
    """`x ** n` with a number n."""
    if len(args) != 2:
        return None
    x, n = args
    if type(x) is Dual and x._form is not UNPLANNED and (type(n) is int or type(n) is float) and n != 0:
        p, t, level = x._primal, x._tangent, x._level
        below, rows = (None, t) if type(t) is Tensor else ready_over(level, t) or (None, None)
        if type(p) is Tensor and rows is not None and (ready(level) if below is None else not p.requires_grad):
            meta = x._meta or meta_of(x)
            if meta and rows.dtype is p.dtype:
                guard = NoDispatch()
                try:
                    # Squares and cubes are products in torch's kernel too.
                    slope = p if n == 2 else p * p if n == 3 else p ** (n - 1)
                    out = slope * p if n == 2 or n == 3 else p**n
                    rows = (rows * slope).mul_(number(n, meta))
                finally:
                    del guard
                return like(level, out, rows, meta) if below is None else like_over(level, out, below, rows, meta)
    return _power(func, args)


_power = general(of_power)


def lean_reciprocal(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """y / x for a number y, as torch makes it: y · (1 / x)."""
    del dy
    inverse = x.reciprocal()
    out = inverse * y
    return out, (dx * (out * inverse)).neg_()


def of_reciprocal(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """−out dx / x for a number y."""
    del func, y, dy
    return -(dx * out) / x


_reciprocal, _ = binary(lean_reciprocal, of_reciprocal)


def reciprocal(func: Any, args: tuple[Any, ...]) -> Any:
    """`y / x` for a number y."""
    return _reciprocal(func, args) if len(args) == 2 and type(args[1]) in (int, float) else None


def register_overloads(overloads: dict[str, str]) -> None:
    """Traced programs call operators by their overloads: they take the short ways of the functions."""
    for name, overload in overloads.items():
        func = getattr(torch, name)
        Dual._fast[getattr(getattr(torch.ops.aten, name), overload)] = called_as(func, Dual._fast[func])


def register() -> None:
    """Fill the table of short ways."""
    table = Dual._fast
    for name in UNARY.split():
        kind = ROWS[name].kind
        if isinstance(kind, Elementwise):
            table[getattr(torch, name)] = table[getattr(Tensor, name)] = short = unary(kind.derivatives[0], kind.kernel)
            register_method(name, short)
    table[F.relu] = table[torch.relu]
    for name, reflected, (short, method_of) in (
        ("add", "__radd__", binary(lean_add, of_sum(1, 1))),
        ("sub", "", binary(lean_sub, of_sum(1, -1))),
        ("mul", "__rmul__", binary(lean_product, of_product)),
        ("div", "", binary(lean_quotient, of_quotient)),
        ("rsub", "__rsub__", binary(lean_rsub, of_sum(-1, 1))),
    ):
        operator = {"div": "__truediv__"}.get(name, f"__{name}__")
        for key in (name, operator, reflected):
            if not hasattr(Tensor, key):
                continue
            table[getattr(Tensor, key)] = short
            if key == name:
                register_method(key, short)
            else:
                swapped = getattr(Tensor, SWAPPED[key]) if key == reflected else None
                setattr(Dual, key, method_of(getattr(Tensor, key), swapped))
        table[getattr(torch, name)] = short
    for key, short in (("pow", power), ("__pow__", power), ("__rtruediv__", reciprocal)):
        table[getattr(Tensor, key)] = short
        register_method(key, short)
    table[torch.pow] = power
    register_overloads(OVERLOADS)


OVERLOADS: dict[str, str] = {
    **{str(name): "default" for name in UNARY.split()},
    **{name: "Tensor" for name in ("add", "sub", "mul", "div")},
    "pow": "Tensor_Scalar",
}


def called_as(func: Any, short: Any) -> Any:
    """The short way of an overload: that of the function of the Python API."""
    return lambda _, args: short(func, args)


register()
