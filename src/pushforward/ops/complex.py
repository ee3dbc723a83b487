"""Complex numbers: made from parts, taken apart, and the functions of them that are not holomorphic.

For those a tangent is not factor · tangent; with s = x/|x|

    d|x| = Re(s̄ dx),    d sgn x = (dx − s Re(s̄ dx)) / |x|,    d angle x = Im(x̄ dx) / |x|²

and 0 where x is 0, as in torch's reverse mode. A jvp of a complex function is the real-linear one: it needs no
holomorphy.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Elementwise, ElementwiseLinear
from .linalg import Tensor
from .table import row


def real_product(a: Tensor, b: Tensor) -> Tensor:
    """Re(ā b)."""
    return (a.conj() * b).real if a.is_complex() else a * b


def tangent_abs(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The part of the tangent along x."""
    del level, kwargs
    x = primals[0]
    return op(x), real_product(x.sgn(), tangents[0])


def tangent_sgn(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The part of the tangent across x; of a real number nothing."""
    del level, kwargs
    x, t = primals[0], tangents[0]
    out = op(x)
    if not x.is_complex():
        return out, None
    size = x.abs()
    across = t - out * real_product(out, t)
    return out, torch.where(size == 0, 0, across / torch.where(size == 0, 1, size))


def tangent_angle(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The turn of the tangent; of a real number nothing."""
    del level, kwargs
    x, t = primals[0], tangents[0]
    out = op(x)
    if not x.is_complex():
        return out, None
    size = x.real * x.real + x.imag * x.imag
    return out, torch.where(size == 0, 0, (x.conj() * t).imag / torch.where(size == 0, 1, size))


row("abs", Elementwise(), tangent=tangent_abs)
row("sgn", Elementwise(), tangent=tangent_sgn)
row("angle", Elementwise(), tangent=tangent_angle)
row("complex", Elementwise((lambda out, x, y: 1, lambda out, x, y: 1j)))
row("polar", Elementwise((lambda out, r, a: torch.polar(torch.ones_like(a), a), lambda out, r, a: out * 1j)))
row("_conj_physical _conj_copy view_as_real_copy view_as_complex_copy", ElementwiseLinear())
