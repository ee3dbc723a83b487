"""Determinants: det, slogdet, logdet.

    d det A = tr(adj(A) dA),        d log|det A| = Re tr(A⁻¹ dA),        d sign = i Im tr(A⁻¹ dA) · sign

det is a polynomial, so all its derivatives exist everywhere, singular matrices included; those of slogdet exist where
A is invertible. `determinant` is det in a form that can be differentiated to any order anywhere:

* Up to 3 × 3 it is written out; beyond, Bird's recursion F ← μ(F) A uses products and sums alone (R. S. Bird, Inf.
  Process. Lett. 111, 2011).
* A larger A is first brought to its singular values, M = Uᴴ A V with constant U, V. Small ones are lifted, W = M + D,
  so that W is well conditioned, and det A = det(UVᴴ) det W det(I − D W⁻¹). Where D is zero the last matrix has rows of
  the identity, so that only the block of lifted values counts. It has K = order + 1 rows: only the K smallest values
  are lifted; fewer than K derivatives lose no digits to the others, and where more than K values are zero, so are all
  derivatives up to order K.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.fresh import stopped
from ..core.level import THREAD
from .kinds import Special
from .linalg import Tensor, diagonal, identity, recorded
from .linalg_lu import factored, lu_tangent
from .table import row

SMALL = 0.05  # a singular value below this share of the largest is lifted
WRITTEN = 3  # up to this size the determinant is written out


def mu(f: Tensor) -> Tensor:
    """The part above the diagonal, and on it minus the sum of the diagonal below."""
    n = f.shape[-1]
    below = torch.ones(n, n, dtype=f.dtype, device=f.device).tril(-1)
    return f.triu(1) - torch.diag_embed((diagonal(f).unsqueeze(-2) @ below).squeeze(-2))


def polynomial(a: Tensor) -> Tensor:
    """The determinant by products and sums."""
    n, f = a.shape[-1], a
    if n == 1:
        return a[..., 0, 0]
    if n == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    if n == 3:
        return (a[..., 0, :] * torch.linalg.cross(a[..., 1, :], a[..., 2, :])).sum(-1)
    for _ in range(n - 1):
        f = mu(f) @ a
    return f[..., 0, 0] if n % 2 else -f[..., 0, 0]


def polynomial_tangent(a: Tensor, da: Tensor) -> tuple[Tensor, Tensor]:
    """`polynomial` and its tangent: dF ← μ(dF) A + μ(F) dA."""
    n, f, df = a.shape[-1], a, da
    for _ in range(n - 1):
        m = mu(f)
        f, df = m @ a, mu(df) @ a + m @ da
    sign = 1 if n % 2 else -1
    return sign * f[..., 0, 0], sign * df[..., 0, 0]


def product(x: Tensor) -> Tensor:
    """The product of the last dimension by halves: differentiable to any order."""
    n = x.shape[-1]
    while n > 1:
        half = n // 2
        joined = x[..., :half] * x[..., half : 2 * half]
        x = torch.cat([joined, x[..., 2 * half :]], -1) if n % 2 else joined
        n -= half
    return x[..., 0]


def parity(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """The sign of the permutation that the pivots make."""
    steps = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return (1 - 2 * ((pivots != steps).sum(-1) % 2)).to(dtype)


def lifted(a: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Constants of a point: a factor, Uᴴ, V, and the lift of the singular values.

    The factor is det(UVᴴ), and 0 where more than k singular values are.
    """
    u, s, vh = torch.linalg.svd(stopped(a))
    top = s[..., :1]
    nothing = s <= 10 * s.shape[-1] * torch.finfo(s.dtype).eps * top
    small = torch.cat([nothing[..., :-k], s[..., -k:] <= SMALL * top], -1)
    lift = torch.where(small, torch.where(top == 0, 1, top), 0).to(a.dtype)
    factor = torch.ops.aten._linalg_det(u @ vh)[0] * ~nothing[..., :-k].any(-1)
    return factor, u.mH, vh.mH, lift


def block_size(n: int) -> int:
    """How many singular values may be lifted."""
    return min(n, max(WRITTEN, THREAD.order + 1))


def determinant(a: Tensor) -> Tensor:
    """det of square matrices `[*, n, n]`, with every derivative right, at singular matrices too."""
    n = a.shape[-1] if a.dim() > 1 else 0
    if n == 0 or a.shape[-2] != n:
        return torch.ops.aten._linalg_det(a)[0]
    if n <= WRITTEN:
        return polynomial(a)
    k = block_size(n)
    factor, uh, v, lift = lifted(a, k)
    lu, pivots = torch.linalg.lu_factor_ex(uh @ a @ v + torch.diag_embed(lift))[:2]
    unit = identity(n, a)[:, -k:].expand(*a.shape[:-1], k)
    inverse = torch.linalg.lu_solve(lu, pivots, unit)[..., -k:, :]
    rest = identity(k, a) - lift[..., -k:].unsqueeze(-1) * inverse
    return factor * parity(pivots, a.dtype) * product(diagonal(lu)) * polynomial(rest)


def determinant_tangent(a: Tensor, da: Tensor) -> tuple[Tensor, Tensor]:
    """`determinant` and its tangent."""
    n = a.shape[-1]
    if n <= WRITTEN:
        return polynomial_tangent(a, da)
    k = block_size(n)
    factor, uh, v, lift = lifted(a, k)
    lu, pivots = torch.linalg.lu_factor_ex(uh @ a @ v + torch.diag_embed(lift))[:2]
    inverse = torch.linalg.lu_solve(lu, pivots, identity(n, a).expand(a.shape))
    by, rows = inverse @ (uh @ da @ v), lift[..., -k:].unsqueeze(-1)
    moved = by[..., -k:, :] @ inverse[..., -k:]
    rest, drest = polynomial_tangent(identity(k, a) - rows * inverse[..., -k:, -k:], rows * moved)
    whole = factor * parity(pivots, a.dtype) * product(diagonal(lu))
    return whole * rest, whole * (diagonal(by).sum(-1) * rest + drest)


def turned(a: Tensor) -> bool:
    """Whether det and slogdet factorise Aᵀ: torch does for a real contiguous matrix, and its backward relies on it."""
    return not a.is_complex() and a.is_contiguous()


def batch_factor_of_turned(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """_linalg_det, _linalg_slogdet: the payload must be turned exactly where the logical value is."""
    del level, mapped, kwargs
    a, dense = args[0], 1
    for n, s in zip(reversed(a.shape[1:]), reversed(a.stride()[1:]), strict=True):
        if n != 1 and s != dense:
            return op(a)
        dense *= n
    return op(a.contiguous())


def tangent_det(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """_linalg_det: (det, LU, pivots).

    Differentiated once, tr(adj(A) dA) comes from LU, a zero pivot moved by the rounding error; else from `determinant`.
    """
    del level, kwargs
    a, da = primals[0], tangents[0]
    det, lu, pivots = op(a)
    if a.shape[-1] == 0:
        return (det, lu, pivots), (torch.zeros_like(det), torch.zeros_like(lu), None)
    flip = turned(a)
    dlu = lu_tangent(*factored(a.mT if flip else a, lu, pivots), da.mT if flip else da)
    if THREAD.order > 1 or recorded(a, da):
        det, ddet = determinant_tangent(a, da)
        return (det, lu, pivots), (ddet, dlu, None)
    pivot, largest = diagonal(lu), a.abs().amax((-2, -1))
    eps = torch.finfo(a.dtype).eps * torch.where(largest == 0, 1, largest).to(a.dtype).unsqueeze(-1)
    moved = torch.where(pivot == 0, eps, torch.zeros_like(eps))
    x = torch.linalg.lu_solve(lu + torch.diag_embed(moved), pivots, da, adjoint=flip)
    near = product(pivot + moved) * parity(pivots, a.dtype)
    return (det, lu, pivots), (near * diagonal(x).sum(-1), dlu, None)


def tangent_slogdet(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """_linalg_slogdet: (sign, log|det|, LU, pivots)."""
    del level, kwargs
    a, da = primals[0], tangents[0]
    out = op(a)
    sign, _, lu, pivots = out
    flip = turned(a)
    factors, moved = factored(a.mT if flip else a, lu, pivots), da.mT if flip else da
    trace = diagonal(torch.linalg.lu_solve(*factors, moved)).sum(-1)
    dlu = lu_tangent(*factors, moved)
    if a.is_complex():
        return out, (sign * torch.complex(torch.zeros_like(trace.imag), trace.imag), trace.real, dlu, None)
    return out, (None, trace, dlu, None)


row("_linalg_det", Special(), batch=batch_factor_of_turned, tangent=tangent_det)
row("_linalg_slogdet", Special(), batch=batch_factor_of_turned, tangent=tangent_slogdet)
