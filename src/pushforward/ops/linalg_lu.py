"""LU: P A = L U, and what is computed with it: lu_solve, solve, inv.

With F = L⁻¹ Pᵀ dA U⁻¹ (torch's convention A = P L U)

    dL = L stril(F),   dU = triu(F) U,   packed: dLU = stril(dL) + dU

for a square A; a tall or wide A adds the rows of L, or the columns of U, that solve the rest of d(PᵀA) = dL U + L dU.
The pivots are locally constant. The derivative exists where the leading square block of PᵀA is invertible.

Solving: A X = B gives dX = A⁻¹ (dB − dA X); it exists where A is invertible.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Constant, Special
from .linalg import Tensor, fold, line_up, one_matrix, recorded, solve_tri, spread_stacks, stacked, unfold, with_absent
from .table import row


def lu_parts_tangent(p: Tensor, low: Tensor, up: Tensor, da: Tensor) -> tuple[Tensor, Tensor]:
    """Tangents of L and U, from the tangent of A."""
    da = p.mT @ da
    k = low.shape[-1]
    low1, up1 = low[..., :k, :], up[..., :, :k]
    f = solve_tri(low1, da[..., :k, :k], upper=False, unit=True)
    f = solve_tri(up1, f, upper=True, left=False)
    dlow, dup = low1 @ f.tril(-1), f.triu() @ up1
    if low.shape[-2] > k:
        rest = da[..., k:, :] - low[..., k:, :] @ dup
        dlow = torch.cat([dlow, solve_tri(up1, rest, upper=True, left=False)], -2)
    if up.shape[-1] > k:
        rest = solve_tri(low1, da[..., k:], upper=False, unit=True) - f.tril(-1) @ up[..., k:]
        dup = torch.cat([dup, rest], -1)
    return dlow, dup


def lu_tangent(lu: Tensor, pivots: Tensor, da: Tensor) -> Tensor:
    """The tangent of the packed factors."""
    p, low, up = torch.lu_unpack(lu, pivots)
    dlow, dup = lu_parts_tangent(p, low, up, da)
    m, n = lu.shape[-2:]
    dlow, dup = dlow.tril(-1), dup.triu()
    if m > n:
        return dlow + torch.nn.functional.pad(dup, (0, 0, 0, m - n))
    return dup + torch.nn.functional.pad(dlow, (0, n - m)) if n > m else dlow + dup


def factored(a: Tensor, lu: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    """LU of `a` as a function of it: what the operator handed out, unless autograd has to know."""
    return torch.linalg.lu_factor_ex(a)[:2] if recorded(a) else (lu, pivots)


def tangent_lu_factor(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """linalg_lu_factor_ex: (LU, pivots, info)."""
    del level
    out = op(*primals, **kwargs)
    return out, (lu_tangent(out[0], out[1], tangents[0]), None, None)


def tangent_lu(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """linalg_lu: (P, L, U)."""
    del level
    out = op(*primals, **kwargs)
    return out, (None, *lu_parts_tangent(out[0], out[1], out[2], tangents[0]))


def tangent_lu_unpack(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """lu_unpack: the triangles of the packed tangent."""
    del level
    out = op(*primals, **kwargs)
    if out[1].numel() == 0 and out[2].numel() == 0:
        return out, (None, None, None)
    t = tangents[0]
    k = min(t.shape[-2:])
    return out, (None, t[..., :k].tril(-1), t[..., :k, :].triu())


def tangent_lu_solve(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """lu_solve: the tangent of A = P L U is P (dL U + L dU)."""
    del level
    lu, pivots, b = primals
    x = op(lu, pivots, b, **kwargs)
    db = tangents[2]
    if tangents[0] is not None:
        p, low, up = torch.lu_unpack(lu, pivots)
        t = tangents[0]
        da = p @ (t.tril(-1) @ up + low @ t.triu())
        da = da.mH if kwargs.get("adjoint", False) else da
        moved = da @ x if kwargs.get("left", True) else x @ da
        db = -moved if db is None else db - moved
    return x, op(lu, pivots, db.expand(x.shape), **kwargs)


def batch_lu_solve(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """lu_solve: stacks are spread first, for the operator itself does not broadcast them reliably."""
    cores, left = (2, 1, 2), kwargs.get("left", True)
    lu, pivots = ((x.shape[1:] if m else x.shape) for x, m in zip(args[:2], mapped[:2], strict=True))
    if lu[:-1] != pivots:
        msg = f"linalg.lu_solve: expected LU.shape[:-1] and pivots.shape to agree, got {list(lu)} and {list(pivots)}"
        raise RuntimeError(msg)
    if not (mapped[0] or mapped[1]) and level.size:
        lu, pivots, b = spread_stacks([args[0], args[1], fold(args[2], left=left)], cores)
        return unfold(op(lu, pivots, b, **kwargs), level.size, left=left)
    return op(*line_up(args, mapped, cores, level.size, spread=True), **kwargs)


def is_vector(a: Tensor, am: bool, b: Tensor, bm: bool) -> bool:
    """Whether the right-hand side of a `solve` is a vector or a stack of vectors, by the logical sizes."""
    rank, shape = b.dim() - int(bm), tuple(b.shape[int(bm) :])
    return rank == 1 or (rank == a.dim() - int(am) - 1 and shape == tuple(a.shape[int(am) : -1]))


def batch_solve(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """_linalg_solve_ex: a vector on the right becomes a matrix of one column, so that stacks line up."""
    a, b = args[:2]
    am, bm = mapped[:2]
    left = kwargs.get("left", True)
    vector = is_vector(a, am, b, bm)
    if vector:
        b = b.unsqueeze(-1)
    if not am and level.size:
        x, *rest = op(a, fold(b, left=left), **kwargs)
        x = unfold(x, level.size, left=left)
        lu, pivots, info = (r.unsqueeze(0).expand(level.size, *r.shape) for r in rest)
    else:
        a, b = line_up([a, b], [am, bm], (2, 2), level.size, spread=not am)
        x, lu, pivots, info = op(a, b, **kwargs)
    return (x.squeeze(-1) if vector else x), lu, pivots, info


def tangent_solve(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A X = B: dX = A⁻¹ (dB − dA X); X A = B: dX = (dB − X dA) A⁻¹."""
    del level
    a, b = primals[:2]
    da, db = tangents[:2]
    left = kwargs.get("left", True)
    x, lu, pivots, info = op(a, b, **kwargs)
    vector = is_vector(a, False, b, False)
    right: Any = None if db is None else db.unsqueeze(-1) if vector else db
    if da is not None:
        full = x.unsqueeze(-1) if vector else x
        moved = da @ full if left else full @ da
        right = -moved if right is None else right - moved
    right = right.expand(x.unsqueeze(-1).shape if vector else x.shape)
    if recorded(a):
        dx = torch.linalg.solve(a, right, left=left)
    else:
        dx = torch.linalg.lu_solve(*spread_stacks([lu, pivots, right], (2, 1, 2)), left=left)
    dlu = None if da is None else lu_tangent(*factored(a, lu, pivots), da)
    return (x, lu, pivots, info), (dx.squeeze(-1) if vector else dx, dlu, None, None)


def tangent_inv(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """d(A⁻¹) = −A⁻¹ dA A⁻¹."""
    del level
    inverse, info = op(*primals, **kwargs)
    return (inverse, info), (-(inverse @ tangents[0] @ inverse), None)


def batch_check(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> None:
    """_linalg_check_errors: only the lanes that are asked can fail."""
    del mapped, kwargs
    lanes = level.active_lanes()
    if level.size and len(lanes):
        info = args[0].contiguous() if len(lanes) == level.size else args[0][list(lanes)]
        op(info, args[1], is_matrix=False)


row("linalg_lu_factor_ex", Special(), batch=one_matrix, tangent=tangent_lu_factor)
row("linalg_lu", Special(), batch=one_matrix, tangent=tangent_lu)
row("lu_unpack", Special(), batch=with_absent(stacked(2, 1, spread=True)), tangent=tangent_lu_unpack)
row("linalg_lu_solve", Special(), batch=batch_lu_solve, tangent=tangent_lu_solve)
row("_linalg_solve_ex", Special(), batch=batch_solve, tangent=tangent_solve)
row("linalg_inv_ex", Special(), batch=one_matrix, tangent=tangent_inv)
row("_linalg_check_errors", Constant(), batch=batch_check)
