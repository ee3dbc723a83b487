"""Spectral decompositions: eigh, eig, svd.

    A V = V Λ (Hermitian):   P = Vᴴ dA V,    dλ = Re diag P,   dV = V (P ∘ F),   F_ij = 1/(λj − λi), 0 on the diagonal
    A V = V Λ:               P = V⁻¹ dA V,   dλ = diag P,      dV = V (P ∘ F), less the part that changes norms
    A = U Σ Vᴴ:              P = Uᴴ dA V,    dσ = Re diag P,   dU = U Ω + …,   dV = V Ψ + …
                             Ω = (P Σ + Σ Pᴴ) ∘ G,  Ψ = (Σ P + Pᴴ Σ) ∘ G,  G_ij = 1/(σj² − σi²)

Eigenvalues have derivatives where they are simple (those of a Hermitian matrix along a direction that keeps a
repeated one together too); vectors have them where the values are distinct, and are inf or NaN elsewhere, as torch's
docs promise. Vectors are determined up to a phase (and a rotation of those that belong to the null space): the
tangent is the one that does not move along it, and only functions that do not depend on the phase have a derivative.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Special
from .linalg import Tensor, diagonal, one_matrix, with_absent
from .table import row


def gaps(values: Tensor) -> Tensor:
    """1/(x_j − x_i), and 0 on the diagonal."""
    difference = values.unsqueeze(-2) - values.unsqueeze(-1)
    one = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    return (difference + one).reciprocal() - one


def real_diagonal(p: Tensor) -> Tensor:
    """The real parts of the diagonals."""
    d = diagonal(p)
    return d.real if d.is_complex() else d


def tangent_eigh(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """_linalg_eigh: (values, vectors)."""
    del level
    names = dict(zip(("UPLO", "compute_v"), primals[1:], strict=False)) | kwargs
    out = op(primals[0], **names)
    wanted = names.get("compute_v", True)
    values, v = out if wanted else op(primals[0], names.get("UPLO", "L"), True)
    p = v.mH @ tangents[0] @ v
    moved = v @ (p * gaps(values)) if wanted else None
    return out, (real_diagonal(p), moved)


def eig_parts(a: Tensor, da: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values, vectors and P = V⁻¹ dA V."""
    values, v = torch.linalg.eig(a)
    return values, v, torch.linalg.solve(v, da.to(v.dtype) @ v)


def tangent_eig(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """linalg_eig: (values, vectors), the vectors of norm 1."""
    del op, level, kwargs
    values, v, p = eig_parts(primals[0], tangents[0])
    moved = v @ (p * gaps(values))
    along = (v.conj() * moved).sum(-2, keepdim=True).real
    return (values, v), (diagonal(p), moved - v * along)


def tangent_eigvals(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """_linalg_eigvals: needs the vectors for its tangent."""
    del op, level, kwargs
    values, _, p = eig_parts(primals[0], tangents[0])
    return values, diagonal(p)


def tangent_svd(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """_linalg_svd: (U, σ, Vᴴ); columns beyond the rank that A can have turn with the others."""
    del level
    a, da = primals[0], tangents[0]
    names = dict(zip(("full_matrices", "compute_uv"), primals[1:], strict=False)) | kwargs
    out = op(a, **names)
    wanted, full = names.get("compute_uv", True), names.get("full_matrices", False)
    u, s, vh = out if wanted else op(a, **{**names, "full_matrices": False, "compute_uv": True})
    k = s.shape[-1]
    left, right = u[..., :k], vh[..., :k, :].mH
    moved = da @ right
    p = left.mH @ moved
    ds = real_diagonal(p)
    if not wanted:
        return out, (None, ds, None)
    ratio = (gaps_squared(s)).to(p.dtype)
    scale = s.to(p.dtype)
    ps, sp = p * scale.unsqueeze(-2), scale.unsqueeze(-1) * p
    omega, psi = (ps + ps.mH) * ratio, (sp + sp.mH) * ratio
    if p.is_complex():
        turn = diagonal(p).imag / (2 * s)
        turn = torch.diag_embed(torch.complex(torch.zeros_like(turn), turn))
        omega, psi = omega + turn, psi - turn
    du, dv = left @ omega, right @ psi
    if a.shape[-2] > k:
        du = du + (moved - left @ p) / scale.unsqueeze(-2)
    if a.shape[-1] > k:
        dv = dv + (da.mH @ left - right @ p.mH) / scale.unsqueeze(-2)
    if full:
        du, dv = completed(u, du, k), completed(vh.mH, dv, k)
    return out, (du, ds, dv.mH.resolve_conj())


def gaps_squared(s: Tensor) -> Tensor:
    """1/(s_j² − s_i²), and 0 on the diagonal."""
    difference = (s.unsqueeze(-2) - s.unsqueeze(-1)) * (s.unsqueeze(-2) + s.unsqueeze(-1))
    one = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
    return (difference + one).reciprocal() - one


def completed(u: Tensor, du: Tensor, k: int) -> Tensor:
    """Tangents of the columns that complete a basis: they stay orthogonal to the first k."""
    rest = u[..., k:]
    return torch.cat([du, -u[..., :k] @ (du.mH @ rest)], -1) if rest.shape[-1] else du


row("_linalg_eigh", Special(), batch=with_absent(one_matrix), tangent=tangent_eigh)
row("linalg_eig", Special(), batch=one_matrix, tangent=tangent_eig)
row("_linalg_eigvals", Special(), batch=one_matrix, tangent=tangent_eigvals)
row("_linalg_svd", Special(), batch=with_absent(one_matrix), tangent=tangent_svd)
