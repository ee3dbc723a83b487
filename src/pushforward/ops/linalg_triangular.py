"""Triangular and Cholesky: solves with a triangle, A = L Lᴴ, and what is computed with L.

    T X = B:            dX = T⁻¹ (dB − dT X), of dT only the triangle that is read
    A = L Lᴴ:           dL = L Φ(L⁻¹ dA L⁻ᴴ), Φ the lower triangle with half the diagonal
    X = (L Lᴴ)⁻¹ B:     dX = (L Lᴴ)⁻¹ (dB − d(L Lᴴ) X)

Cholesky reads one triangle of A and takes A to be Hermitian, so dA stands for its Hermitian part, as in torch's
reverse mode. The derivatives exist where the triangle is invertible, the one of Cholesky where A is positive
definite.
"""

from __future__ import annotations

from typing import Any

from .kinds import Special
from .linalg import Tensor, fold, line_up, one_matrix, solve_tri, triangle, unfold
from .table import row


def batch_solve_triangular(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """linalg_solve_triangular; lanes are more right-hand sides where the triangle is shared."""
    left = kwargs.get("left", True)
    if not mapped[0] and level.size:
        return unfold(op(args[0], fold(args[1], left=left), **kwargs), level.size, left=left)
    return op(*line_up(args, mapped, (2, 2), level.size), **kwargs)


def tangent_solve_triangular(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """linalg_solve_triangular: T X = B, or X T = B."""
    del level
    a, b = primals
    x = op(a, b, **kwargs)
    da, db = tangents
    if da is not None:
        da = triangle(da, upper=kwargs["upper"], unit=kwargs.get("unitriangular", False))
        moved = da @ x if kwargs.get("left", True) else x @ da
        db = -moved if db is None else db - moved
    return x, op(a, db.expand(x.shape), **kwargs)


def batch_triangular_solve(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """triangular_solve: right-hand side first; it also returns a copy of the triangle."""
    size = level.size
    if not mapped[1] and size:
        x, copy = op(fold(args[0]), *args[1:], **kwargs)
        return unfold(x, size), copy.unsqueeze(0).expand(size, *copy.shape)
    b, a, *rest = line_up(args, mapped, (2, 2), size, spread=True)
    x, copy = op(b, a, *rest, **kwargs)
    return x, copy


def tangent_triangular_solve(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """triangular_solve: op(T) X = B with op the identity or the (plain) transpose."""
    del level
    b, a, upper, transpose, unit = [*primals, *[True, False, False][len(primals) - 2 :]]
    upper, transpose, unit = (
        kwargs.get(k, v) for k, v in (("upper", upper), ("transpose", transpose), ("unitriangular", unit))
    )
    x, copy = op(b, a, upper, transpose, unit)
    db, da = tangents[:2]
    right = db
    if da is not None:
        part = triangle(da, upper=upper, unit=unit)
        moved = (part.mT if transpose else part) @ x
        right = -moved if right is None else right - moved
    factor = a.mT if transpose else a
    return (x, copy), (
        solve_tri(factor, right.expand(x.shape), upper=upper != transpose, unit=unit),
        None if da is None else da.expand(copy.shape),
    )


def lower_tangent(low: Tensor, da: Tensor) -> Tensor:
    """dL of A = L Lᴴ."""
    hermitian = (da + da.mH) / 2
    f = solve_tri(low, hermitian, upper=False)
    f = solve_tri(low.mH, f, upper=True, left=False)
    return low @ ((f.tril() + f.tril(-1)) / 2)


def tangent_cholesky(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """cholesky, linalg_cholesky_ex: (L, info) for the latter."""
    del level
    out = op(*primals, **kwargs)
    factor = out[0] if isinstance(out, (tuple, list)) else out
    upper = kwargs.get("upper", primals[1] if len(primals) > 1 else False)
    low = factor.mH if upper else factor
    moved = lower_tangent(low, tangents[0])
    moved = moved.mH.resolve_conj() if upper else moved
    return out, (moved, None) if isinstance(out, (tuple, list)) else moved


def gram_tangent(factor: Tensor, moved: Tensor, upper: bool) -> Tensor:
    """d(L Lᴴ), or d(Uᴴ U), from the triangle that is read."""
    factor, moved = triangle(factor, upper=upper), triangle(moved, upper=upper)
    half = moved.mH @ factor if upper else moved @ factor.mH
    return half + half.mH


def tangent_cholesky_inverse(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """X = (L Lᴴ)⁻¹: dX = −X d(L Lᴴ) X."""
    del level
    upper = kwargs.get("upper", primals[1] if len(primals) > 1 else False)
    x = op(primals[0], upper)
    return x, -(x @ gram_tangent(primals[0], tangents[0], upper) @ x)


def batch_cholesky_solve(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """cholesky_solve: right-hand side first."""
    if not mapped[1] and level.size:
        return unfold(op(fold(args[0]), *args[1:], **kwargs), level.size)
    return op(*line_up(args, mapped, (2, 2), level.size), **kwargs)


def tangent_cholesky_solve(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """X = (L Lᴴ)⁻¹ B."""
    del level
    b, factor = primals[:2]
    upper = kwargs.get("upper", primals[2] if len(primals) > 2 else False)
    x = op(b, factor, upper)
    db, dfactor = tangents[:2]
    if dfactor is not None:
        moved = gram_tangent(factor, dfactor, upper) @ x
        db = -moved if db is None else db - moved
    return x, op(db.expand(x.shape), factor, upper)


row("linalg_solve_triangular", Special(), batch=batch_solve_triangular, tangent=tangent_solve_triangular)
row("triangular_solve", Special(), batch=batch_triangular_solve, tangent=tangent_triangular_solve)
row("cholesky linalg_cholesky_ex", Special(), batch=one_matrix, tangent=tangent_cholesky)
row("cholesky_inverse", Special(), batch=one_matrix, tangent=tangent_cholesky_inverse)
row("cholesky_solve _cholesky_solve_helper", Special(), batch=batch_cholesky_solve, tangent=tangent_cholesky_solve)
