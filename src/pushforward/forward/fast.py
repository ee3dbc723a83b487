"""The short way for small operators under `jvp`: value and tangent where the Python API is called, before dispatch.

Taken only where nothing can be missed: this level on top, at most one `vmap` below it, plain primals, tangents that are plain or
mapped by that `vmap`, nothing that requires grad, no `no_grad` of the user's. The derivatives are those of the table's rows.

Methods of dual numbers come here straight from Python (`method`), which saves the way through torch's argument parser.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ..batch.level import Batched, BatchLevel
from ..core.level import THREAD, is_grad_enabled, recorded_below
from ..core.torch_private import (
    PYTHON_KEY,
    NoFunction,
    autocast_on,
    function_mode_on,
    functions_on,
    make_wrapper,
    mode_count,
    set_key_excluded,
)
from ..core.traced import HELD, NotFast
from ..ops.kinds import Elementwise
from ..ops.table import ROWS
from .level import Dual, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
STRIDED = torch.strided
_PLAIN = frozenset({Tensor, Parameter})

UNARY = (
    "sin cos tan tanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sigmoid relu reciprocal square erf erfc sinh cosh "
    "asin acos atan asinh acosh atanh"
)


def own_code(function: Any) -> Any:
    """A function with a copy of its code: the interpreter adapts code to what it calls, and each operator calls another."""
    return types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


# -- what all short ways share -----------------------------------------------------------------------------------------


def ready(level: Any) -> bool:
    """Whether an operator called now is for this level alone, and gives what its name says."""
    return (
        level.depth == 1
        and level.alive
        and level.clear
        and not level.tracked
        and not level.suspended
        and mode_count() == 1
        and is_grad_enabled()
        and not autocast_on()
    )


def compute(level: Any, function: Any, *args: Any, view: bool = False) -> Any:
    """`function(*args)` on payloads with dispatch off, giving (out, tangent); None where the long way must be taken.

    The pair is wrapped, but for a view, which its base wraps.
    """
    if not (level.on_top() and is_grad_enabled() and not level.suspended):
        return None
    below = None
    if level.depth > 1:
        below = THREAD.levels[-2]
        if level.depth > 2 or type(below) is not BatchLevel or below.tracked or not below.alive:
            return None
        below.held = True
        HELD.levels += 1
    set_key_excluded(PYTHON_KEY, True)
    try:
        out, tangent = function(*args)
    except NotFast:
        return None
    finally:
        set_key_excluded(PYTHON_KEY, False)
        if below is not None:
            below.held = False
            HELD.levels -= 1
    if tangent is None or view:
        return (out, tangent) if view else None
    made = wrap(level, out, tangent)
    if below is not None:
        made._loose = True
    return made


def meta_of(x: Dual) -> Any:
    """What the wrapper of a like result is made from, kept with the value; False if results have a layout of their own."""
    p = x._primal
    if type(p) is not Tensor or not p.is_floating_point() or p.layout is not torch.strided or not p.is_contiguous():
        x._meta = False
        return False
    made = (Dual, p.shape, p.stride(), None, None, p.dtype, STRIDED, p.device)
    x._meta = made
    return made


def like(level: Any, out: Tensor, tangent: Tensor | None, meta: Any) -> Dual:
    """A result of the sizes, strides and dtype that `meta` tells."""
    made: Any = make_wrapper(*meta)
    made._primal = out
    made._tangent = tangent
    made._level = level
    made._meta = meta
    return made


def wrap_plain(level: Any, out: Tensor, tangent: Tensor) -> Dual:
    """A floating-point result of any layout; what its likes are made from is kept at once."""
    if out.is_contiguous():
        return like(level, out, tangent, (Dual, out.shape, out.stride(), None, None, out.dtype, STRIDED, out.device))
    return wrap(level, out, tangent)


_NUMBERS: dict[Any, Tensor] = {}
WIDTHS = {torch.float32: (1 << 24, 3e38), torch.float64: (1 << 53, 1e308)}  # exact integers, and what is not infinite


def number(value: Any, meta: Any) -> Any:
    """A number as a tensor without dimensions, kept: torch makes one in every call, which takes as long as the arithmetic."""
    found = _NUMBERS.get((value, meta[5]))
    return kept_number(value, meta[5]) if found is None else found


def kept_number(value: Any, dtype: torch.dtype) -> Any:
    """Keep a number, unless a tensor of that dtype would be another one (−0 and 0 are one key)."""
    exact, finite = WIDTHS.get(dtype, (0, 0.0))
    if not 0 < abs(value) < (exact if type(value) is int else finite):
        return value
    if len(_NUMBERS) >= 256:
        _NUMBERS.clear()
    with torch.inference_mode(False):
        made = _NUMBERS[value, dtype] = torch.tensor(value, dtype=dtype, device="cpu")
    return made


def shape_and_dtype(t: Any) -> tuple[Any, Any]:
    """Logical sizes and dtype of a plain or mapped tangent."""
    if type(t) is Batched:
        return (t._payload.shape[1:] if t._mapped else t._payload.shape), t._payload.dtype
    return t.shape, t.dtype


def plain_dual(x: Any) -> bool:
    """Whether a dual number has a plain primal, and a tangent of a kind the short way knows."""
    t = x._tangent
    if type(x._primal) is not Tensor:
        return False
    return t is None or type(t) is Tensor or (type(t) is Batched and t._mapped and type(t._payload) is Tensor)


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
        if len(args) != 1 or type(x) is not Dual:
            return None
        p, t, level = x._primal, x._tangent, x._level
        if type(p) is Tensor and type(t) is Tensor and ready(level):
            meta = x._meta or meta_of(x)
            if not (meta or p.is_floating_point()):
                return None
            set_key_excluded(PYTHON_KEY, True)
            try:
                out = func(p)
                t = kernel(t, out, p) if kernel is not None else t * derivative(out, p)
            finally:
                set_key_excluded(PYTHON_KEY, False)
            return like(level, out, t, meta) if meta else wrap(level, out, t)
        if t is None or not plain_dual(x) or not p.is_floating_point():
            return None
        return compute(level, both, func, p, t)

    return own_code(short)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def parts(a: Any, level: Any) -> Any:
    """(level, primal, tangent) of an operand that is plain enough, or None."""
    kind = type(a)
    if kind is Dual:
        if not plain_dual(a) or (level is not None and a._level is not level):
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


def binary(lean: Any, tangent_of: Any) -> Any:
    """The short way of an arithmetic operator; `lean(x, dx, y, dy)` where the operands are plain, of one size and dtype.

    There y may be a number, or a tensor without a tangent.
    """
    others = general(tangent_of)

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        if len(args) != 2:
            return None
        x, y = args
        if type(x) is not Dual:
            return others(func, args)
        level, p, dp = x._level, x._primal, x._tangent
        if type(p) is not Tensor or type(dp) is not Tensor or not ready(level):
            return others(func, args)
        meta = x._meta or meta_of(x)
        if not meta:
            return others(func, args)
        kind, dq = type(y), None
        if kind is Dual:
            q, dq = y._primal, y._tangent
            if y._level is not level or type(q) is not Tensor or type(dq) is not Tensor:
                return others(func, args)
            other = y._meta or meta_of(y)
            if other is not meta and (not other or other[5] is not meta[5] or other[1] != meta[1]):
                return others(func, args)
        elif kind is float or kind is int:
            q = number(y, meta)
        elif kind is Tensor:
            q = y
            if q.dtype is not meta[5] or q.shape != meta[1] or not q.is_contiguous() or not recorded_below(level, q):
                return others(func, args)
        else:
            return others(func, args)
        set_key_excluded(PYTHON_KEY, True)
        try:
            out, t = lean(p, dp, q, dq)
        finally:
            set_key_excluded(PYTHON_KEY, False)
        return like(level, out, t, meta)

    return own_code(short)


def of_product(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """dx y + x dy."""
    del func, out
    if dx is None:
        return x * dy
    return dx * y if dy is None else dx * y + x * dy


def lean_product(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """x y, and dx y + x dy without a tensor more than the result."""
    return x * y, dx * y if dy is None else (dx * y).addcmul_(x, dy)


def of_matmul(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """The operator itself with each factor's tangent."""
    del out
    if dx is None:
        return func(x, dy)
    return func(dx, y) if dy is None else func(dx, y) + func(x, dy)


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
    if type(x) is Dual and (type(n) is int or type(n) is float) and n != 0:
        p, t, level = x._primal, x._tangent, x._level
        if type(p) is Tensor and type(t) is Tensor and ready(level):
            meta = x._meta or meta_of(x)
            if meta:
                set_key_excluded(PYTHON_KEY, True)
                try:
                    # Squares and cubes are products in torch's kernel too.
                    out = p * p if n == 2 else p**n
                    slope = p if n == 2 else p * p if n == 3 else p ** (n - 1)
                    t = (t * slope).mul_(number(n, meta))
                finally:
                    set_key_excluded(PYTHON_KEY, False)
                return like(level, out, t, meta)
    return _power(func, args)


_power = general(of_power)


def lean_reciprocal(x: Tensor, dx: Tensor, y: Any, dy: Any) -> tuple[Tensor, Tensor]:
    """y / x for a number y, as torch makes it: y · (1 / x)."""
    del dy
    inverse = x.reciprocal()
    out = inverse * y
    return out, (out * inverse).mul_(dx).neg_()


def of_reciprocal(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """−out dx / x for a number y."""
    del func, y, dy
    return -(dx * out) / x


_reciprocal = binary(lean_reciprocal, of_reciprocal)


def reciprocal(func: Any, args: tuple[Any, ...]) -> Any:
    """`y / x` for a number y."""
    return _reciprocal(func, args) if len(args) == 2 and type(args[1]) in (int, float) else None


# -- methods -----------------------------------------------------------------------------------------------------------


def method(short: Any, original: Any) -> Any:
    """A method of dual numbers: the short way at once, where nobody else listens to calls of the Python API."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and functions_on() and not function_mode_on():
            out = short(original, (self, *args))
            if out is not None:
                return out
        return original(self, *args, **kwargs)

    return own_code(call)


def operator_method(short: Any, original: Any, swapped: Any = None) -> Any:
    """The same for an operator of two; `swapped` is for `plain + dual`, which comes to the dual number first."""

    def call(self: Any, other: Any) -> Any:
        if functions_on() and not function_mode_on():
            out = short(original, (self, other))
            if out is not None:
                return out
        if swapped is not None and isinstance(other, Tensor):
            return swapped(other, self)
        return original(self, other)

    return own_code(call)


def register_method(name: str, short: Any) -> None:
    """Let a method or an operator of dual numbers take a short way."""
    original = getattr(Tensor, name)
    if name in SWAPPED:
        made = operator_method(short, original, getattr(Tensor, SWAPPED[name]))
    else:
        made = (operator_method if name in OPERATORS else method)(short, original)
    made.__name__ = name
    setattr(Dual, name, made)


OPERATORS = {"__add__", "__sub__", "__mul__", "__truediv__", "__matmul__", "__getitem__"}
SWAPPED = {
    "__radd__": "__add__",
    "__rsub__": "__sub__",
    "__rmul__": "__mul__",
    "__rtruediv__": "__truediv__",
    "__rmatmul__": "__matmul__",
}


def register() -> None:
    """Fill the table of short ways."""
    table = Dual._fast
    for name in UNARY.split():
        kind = ROWS[name].kind
        if isinstance(kind, Elementwise):
            table[getattr(torch, name)] = table[getattr(Tensor, name)] = short = unary(kind.derivatives[0], kind.kernel)
            register_method(name, short)
    table[torch.nn.functional.relu] = table[torch.relu]
    both_ways = {
        "add": binary(lean_add, of_sum(1, 1)),
        "sub": binary(lean_sub, of_sum(1, -1)),
        "mul": binary(lean_product, of_product),
        "div": binary(lean_quotient, of_quotient),
        "pow": power,
    }
    operators = {"div": "__truediv__"}
    for name, short in both_ways.items():
        for key in (name, operators.get(name, f"__{name}__")):
            table[getattr(Tensor, key)] = short
            register_method(key, short)
        table[getattr(torch, name)] = short
    for key, short in (
        ("__radd__", both_ways["add"]),
        ("__rmul__", both_ways["mul"]),
        ("__rsub__", binary(lean_rsub, of_sum(-1, 1))),
        ("__rtruediv__", reciprocal),
    ):
        table[getattr(Tensor, key)] = short
        register_method(key, short)


register()
