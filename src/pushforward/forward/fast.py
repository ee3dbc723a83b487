"""The short way for small operators under `jvp`: value and tangent where the Python API is called, before dispatch.

Taken only where nothing can be missed: this level on top, at most one `vmap` below it, plain primals, tangents that are plain or
mapped by that `vmap`, nothing that requires grad, no `no_grad` of the user's. The derivatives are those of the table's rows.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch.level import Batched, BatchLevel
from ..core.level import THREAD, is_grad_enabled, recorded_below
from ..core.torch_private import PYTHON_KEY, NoFunction, set_key_excluded
from ..core.traced import HELD, NotFast
from ..ops.kinds import Elementwise
from ..ops.table import ROWS
from .level import Dual, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
SELECT = torch.ops.aten.select.int
_PLAIN = frozenset({Tensor, Parameter})

UNARY = (
    "sin cos tan tanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sigmoid relu reciprocal square erf erfc sinh cosh "
    "asin acos atan asinh acosh atanh"
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


def unary(derivative: Any, kernel: Any) -> Any:
    """The short way of a function of one real tensor."""

    def both(func: Any, p: Tensor, t: Any) -> tuple[Any, Any]:
        out = func(p)
        if kernel is not None and type(t) is Tensor:
            return out, kernel(t, out, p)
        return out, t * derivative(out, p)

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        x = args[0]
        if len(args) != 1 or type(x) is not Dual or x._tangent is None or not plain_dual(x):
            return None
        if not x._primal.is_floating_point():
            return None
        return compute(x._level, both, func, x._primal, x._tangent)

    return short


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


def binary(tangent_of: Any) -> Any:
    """The short way of an arithmetic operator; `tangent_of(func, x, dx, y, dy, out)` gives the tangent, unless it broadcasts."""

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


def of_product(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """dx y + x dy."""
    del func, out
    if dx is None:
        return x * dy
    return dx * y if dy is None else dx * y + x * dy


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


def of_quotient(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """(dx − out dy) / y."""
    del func, x
    if dy is None:
        return dx / y
    return -(dy * out) / y if dx is None else (dx - dy * out) / y


def of_power(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """n x^(n−1) dx for a number n other than 0."""
    del func, out
    if dy is not None or type(y) not in (int, float) or y == 0:
        raise NotFast
    return dx * (2 * x) if y == 2 else dx * (y * x ** (y - 1))


def moved(func: Any, p: Tensor, t: Any) -> tuple[Any, Any]:
    """A linear function on value and tangent."""
    return func(p), func(t)


def total(func: Any, args: tuple[Any, ...]) -> Any:
    """`x.sum()`."""
    x = args[0]
    if len(args) != 1 or type(x) is not Dual or x._tangent is None or not plain_dual(x):
        return None
    if not x._primal.is_floating_point():
        return None
    return compute(x._level, moved, func, x._primal, x._tangent)


def item(func: Any, args: tuple[Any, ...]) -> Any:
    """`x[k]` with an int, as a view that knows its base."""
    x, k = args
    if type(x) is not Dual or type(k) is not int or x._tangent is None or not plain_dual(x) or x._primal.dim() < 1:
        return None
    if not -x._primal.shape[0] <= k < x._primal.shape[0] or not x._primal.is_floating_point():
        return None
    del func
    return compute_view(x, k)


def compute_view(x: Dual, k: int) -> Any:
    """Primal and tangent of an item, wrapped as a view of `x`."""
    level = x._level
    pair = compute(level, _items, x._primal, x._tangent, k, view=True)
    return None if pair is None else level.wrap_view(x, (SELECT, (0, k), {}, None), *pair)


def _items(p: Tensor, t: Any, k: int) -> tuple[Any, Any]:
    return p[k], t[k]


def stack(func: Any, args: tuple[Any, ...]) -> Any:
    """`torch.stack` of dual numbers of one size, all with tangents."""
    values = args[0]
    if len(args) != 1 or type(values) not in (list, tuple) or not values or type(values[0]) is not Dual:
        return None
    level = values[0]._level
    for v in values:
        if type(v) is not Dual or v._level is not level or v._tangent is None or not plain_dual(v):
            return None
    del func
    return compute(level, _stacks, [v._primal for v in values], [v._tangent for v in values])


def _stacks(ps: list[Tensor], ts: list[Any]) -> tuple[Any, Any]:
    return torch.stack(ps), torch.stack(ts)


def register() -> None:
    """Fill the table of short ways."""
    table = Dual._fast
    for name in UNARY.split():
        kind = ROWS[name].kind
        if isinstance(kind, Elementwise):
            short = unary(kind.derivatives[0], kind.kernel)
            for place in (torch, Tensor):
                table[getattr(place, name)] = short
    signs = {
        "add": (1, 1),
        "__add__": (1, 1),
        "__radd__": (1, 1),
        "sub": (1, -1),
        "__sub__": (1, -1),
        "__rsub__": (-1, 1),
    }
    for name, (a, b) in signs.items():
        table[getattr(Tensor, name)] = binary(of_sum(a, b))
    table[torch.add], table[torch.sub] = binary(of_sum(1, 1)), binary(of_sum(1, -1))
    for func in (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__):
        table[func] = binary(of_product)
    for func in (torch.div, Tensor.div, Tensor.__truediv__):
        table[func] = binary(of_quotient)
    for func in (torch.pow, Tensor.pow, Tensor.__pow__):
        table[func] = binary(of_power)
    for func in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mv, torch.mm, torch.dot):
        table[func] = binary(of_matmul)
    for func in (torch.sum, Tensor.sum):
        table[func] = total
    table[Tensor.__getitem__] = item
    table[torch.stack] = stack


register()
