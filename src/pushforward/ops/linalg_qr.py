"""QR, Householder reflections and L D Lᴴ.

    A = Q R:   with W = Qᴴ dA R⁻¹ and T = striu(W + Wᴴ) + Re diag(W):   dR = T R,   dQ = (dA − Q dR) R⁻¹

for at least as many rows as columns; a wide A = [A1 A2] takes Q and R1 from A1, and R2 = Qᴴ A2. The derivative exists
where R1 is invertible. A complete Q of a tall A has columns that A does not determine: refused, as in torch.

Reflections: H1 … Hk with Hi = I − τi vi viᴴ are I − V T Vᴴ with T = (I + diag(τ) striu(VᴴV))⁻¹ diag(τ) (the compact
WY form; no division, so it holds for τi = 0 too). Written so, the product can be differentiated to any order.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import NotDifferentiableError
from ..core.source import source_line
from .kinds import Decomposed, Special
from .linalg import Tensor, diagonal, identity, line_up, one_matrix, solve_tri, stacked, with_absent
from .table import row


def refuse(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """An operator that torch does not differentiate either."""
    del level, primals, tangents, kwargs
    msg = f"jvp: `{op.name()}` at {source_line()} has no derivative (in PyTorch neither); detach its input"
    raise NotDifferentiableError(msg)


refuse.refused = "PyTorch has no derivative of it either"


def tangent_qr(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """linalg_qr in the modes reduced, complete and r."""
    del level
    a, da = primals[0], tangents[0]
    mode = primals[1] if len(primals) > 1 else kwargs.get("mode", "reduced")
    m, n = a.shape[-2:]
    if mode == "complete" and m > n:
        msg = (
            f"jvp: qr at {source_line()} with mode='complete' of a matrix with {m} rows and {n} columns has no "
            "derivative: the matrix does not determine all of Q. Use mode='reduced'."
        )
        raise NotDifferentiableError(msg)
    out = op(*primals, **kwargs)
    q, r = out if mode != "r" else torch.linalg.qr(a)
    k = min(m, n)
    q, r1 = q[..., :k], r[..., :k, :k]
    w = q.mH @ da[..., :k]
    w = solve_tri(r1, w, upper=True, left=False)
    real = diagonal(w)
    if w.is_complex():
        real = torch.complex(real.real, torch.zeros_like(real.real))
    dr = ((w + w.mH).triu(1) + torch.diag_embed(real)) @ r1
    dq = solve_tri(r1, da[..., :k] - q @ dr, upper=True, left=False)
    if n > k:
        dr = torch.cat([dr, dq.mH @ a[..., k:] + q.mH @ da[..., k:]], -1)
    return out, (None if mode == "r" else dq, dr)


def compact(v: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """V and T of the reflections stored below the diagonal of `v`."""
    k = tau.shape[-1]
    v = v[..., :k].tril(-1) + identity(v.shape[-2], v, k)
    gram = (v.mH @ v).triu(1)
    scale = torch.diag_embed(tau)
    return v, solve_tri(identity(k, v) + scale @ gram, scale, upper=True, unit=True)


def householder_product(a: Tensor, tau: Tensor) -> Tensor:
    """The first columns of H1 … Hk, as many as `a` has."""
    v, t = compact(a, tau)
    n = a.shape[-1]
    return identity(a.shape[-2], a, n) - v @ (t @ v[..., :n, :].mH)


def ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Q C, Qᴴ C, C Q or C Qᴴ, with Q = H1 … Hk in full."""
    v, t = compact(a, tau)
    t = t.mH if transpose else t
    return other - v @ (t @ (v.mH @ other)) if left else other - ((other @ v) @ t) @ v.mH


def batch_ldl_solve(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """linalg_ldl_solve: the operator must not be left to broadcast."""
    ld, pivots, b = line_up(args, mapped, (2, 1, 2), level.size, spread=True)
    return op(ld.contiguous(), pivots.contiguous(), b.contiguous(), **kwargs)


def tangent_ldl_solve(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """linalg_ldl_solve: linear in the right-hand side; by the factors torch has no derivative."""
    if tangents[0] is not None:
        return refuse(op, level, primals, tangents, kwargs)
    return op(*primals, **kwargs), op(primals[0], primals[1], tangents[2], **kwargs)


row("linalg_qr", Special(), batch=with_absent(one_matrix), tangent=tangent_qr)
row("geqrf", Special(), batch=one_matrix, tangent=refuse)
row("linalg_householder_product", Decomposed(householder_product), batch=stacked(2, 1, spread=True))
row("ormqr", Decomposed(ormqr), batch=stacked(2, 1, 2, spread=True))
row("linalg_ldl_factor_ex", Special(), batch=one_matrix, tangent=refuse)
row("linalg_ldl_solve", Special(), batch=batch_ldl_solve, tangent=tangent_ldl_solve)
