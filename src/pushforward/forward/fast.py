"""The short way for small operators under `jvp`: value and tangent where the Python API is called, before dispatch.

Taken only where nothing can be missed: one level alone on the stack, plain primals and tangents, nothing that requires grad, no
`no_grad` of the user's. The derivatives are those of the table's rows.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.level import is_grad_enabled
from ..core.torch_private import PYTHON_KEY, set_key_excluded
from ..ops.kinds import Elementwise
from ..ops.table import ROWS
from .level import Dual, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

UNARY = (
    "sin cos tan tanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sigmoid relu reciprocal square erf erfc sinh cosh "
    "asin acos atan asinh acosh atanh"
)


def ready(level: Any) -> bool:
    """Whether a tangent can be computed at once."""
    return level.on_top() and is_grad_enabled() and not level.suspended


def unary(derivative: Any) -> Any:
    """The short way of a function of one real tensor."""

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        x = args[0]
        if len(args) != 1 or type(x) is not Dual:
            return None
        p, t, level = x._primal, x._tangent, x._level
        if t is None or type(p) is not Tensor or type(t) is not Tensor or not p.is_floating_point() or not ready(level):
            return None
        set_key_excluded(PYTHON_KEY, True)
        try:
            out = func(p)
            factor = derivative(out, p)
            tangent = t * factor
        finally:
            set_key_excluded(PYTHON_KEY, False)
        return wrap(level, out, tangent)

    return short


def parts(a: Any, level: Any) -> Any:
    """(level, primal, tangent) of an operand that is plain enough, or None."""
    kind = type(a)
    if kind is Dual:
        p, t = a._primal, a._tangent
        if type(p) is not Tensor or (t is not None and type(t) is not Tensor) or (level is not None and a._level is not level):
            return None
        return a._level, p, t
    if kind is float or kind is int:
        return level, a, None
    if (kind is Tensor or kind is Parameter) and not a.requires_grad:
        return level, a, None
    return None


def binary(tangent_of: Any) -> Any:
    """The short way of an arithmetic operator; `tangent_of(func, x, dx, y, dy)` gives the tangent before broadcasting."""

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
        _, x, dx = first
        _, y, dy = second
        if level is None or (dx is None and dy is None) or not ready(level):
            return None
        set_key_excluded(PYTHON_KEY, True)
        try:
            out = func(x, y)
            tangent = tangent_of(func, x, dx, y, dy, out)
            if tangent.dtype is not out.dtype:
                return None
            if tangent.shape != out.shape:
                tangent = tangent.expand(out.shape)
        finally:
            set_key_excluded(PYTHON_KEY, False)
        return wrap(level, out, tangent)

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
    return -(out * dy) / y if dx is None else (dx - out * dy) / y


def total(func: Any, args: tuple[Any, ...]) -> Any:
    """`x.sum()`."""
    x = args[0]
    if len(args) != 1 or type(x) is not Dual:
        return None
    p, t = x._primal, x._tangent
    if type(p) is not Tensor or type(t) is not Tensor or not p.is_floating_point() or not ready(x._level):
        return None
    set_key_excluded(PYTHON_KEY, True)
    try:
        out, tangent = func(p), func(t)
    finally:
        set_key_excluded(PYTHON_KEY, False)
    return wrap(x._level, out, tangent)


def register() -> None:
    """Fill the table of short ways."""
    table = Dual._fast
    for name in UNARY.split():
        kind = ROWS[name].kind
        if isinstance(kind, Elementwise):
            short = unary(kind.derivatives[0])
            for place in (torch, Tensor):
                table[getattr(place, name)] = short
    signs = {"add": (1, 1), "__add__": (1, 1), "__radd__": (1, 1), "sub": (1, -1), "__sub__": (1, -1), "__rsub__": (-1, 1)}
    for name, (a, b) in signs.items():
        table[getattr(Tensor, name)] = binary(of_sum(a, b))
    table[torch.add], table[torch.sub] = binary(of_sum(1, 1)), binary(of_sum(1, -1))
    for func in (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__):
        table[func] = binary(of_product)
    for func in (torch.div, Tensor.div, Tensor.__truediv__):
        table[func] = binary(of_quotient)
    for func in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mv, torch.mm, torch.dot):
        table[func] = binary(of_matmul)
    for func in (torch.sum, Tensor.sum):
        table[func] = total


register()
