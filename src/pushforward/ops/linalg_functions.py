"""Functions of matrices: pseudo-inverse, least squares, exponential; cross product.

With I the identity of the fitting size

    dA⁺ = −A⁺ dA A⁺ + A⁺A⁺ᴴ dAᴴ (I − AA⁺) + (I − A⁺A) dAᴴ A⁺ᴴA⁺          (where the rank does not change)
    X = A⁺ B:   dX = A⁺ dB + dA⁺ B
    exp [[A, dA], [0, A]] = [[exp A, d exp A], [0, exp A]]
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Bilinear, Special
from .linalg import Tensor, line_up, listed, plus
from .table import row


def pinv_tangent(a: Tensor, p: Tensor, da: Tensor) -> Tensor:
    """d(A⁺), the products bracketed so that the small side comes first."""
    m, n = a.shape[-2:]
    dah = da.mH
    moved = -(p @ (da @ p))
    if m > 0 and n > 0:
        u = p @ (p.mH @ dah)
        v = (dah @ p.mH) @ p
        moved = moved + (u - (u @ a) @ p) + (v - p @ (a @ v))
    return moved


def tangent_pinv(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """linalg_pinv; the tolerances are locally constant."""
    del level
    p = op(*primals, **kwargs)
    da = tangents[0]
    return p, None if da is None else pinv_tangent(primals[0], p, da)


def batch_pinv(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """linalg_pinv with tolerances for each matrix."""
    names = [k for k in ("atol", "rtol") if isinstance(kwargs.get(k), Tensor)]
    keywords = getattr(mapped, "keywords", ())
    given = [args[0], *[kwargs[k] for k in names]]
    flags = [mapped[0], *[k in keywords for k in names]]
    given = line_up(given, flags, (2, *[0] * len(names)), level.size)
    if not mapped[0]:
        given[0] = given[0].expand(level.size, *given[0].shape)
    return op(given[0], *args[1:], **{**kwargs, **dict(zip(names, given[1:], strict=True))})


def lstsq_vector(a: Tensor, am: bool, b: Tensor, bm: bool) -> bool:
    """Whether the right-hand side is a vector (or a stack of them), by the logical sizes."""
    rank_a, rank_b = a.dim() - int(am), b.dim() - int(bm)
    return rank_b == rank_a - 1 and tuple(a.shape[int(am) : -1]) == tuple(b.shape[int(bm) :])


def batch_lstsq(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """linalg_lstsq: (solution, residuals, rank, singular values); what a driver leaves out is `[0]` in each lane."""
    (a, b), (am, bm) = args[:2], mapped[:2]
    size = level.size
    vector = lstsq_vector(a, am, b, bm)
    b = b.unsqueeze(-1) if vector else b
    a, b = line_up([a, b], [am, bm], (2, 2), size, spread=True)
    x, residuals, rank, values = op(a, b, *args[2:], **kwargs)
    m, n = a.shape[-2:]
    driver = kwargs.get("driver", args[3] if len(args) > 3 else None) or "gelsy"
    if m > n and driver != "gelsy" and size:
        full = listed((rank == n).reshape(size, -1).all(-1))
        if not full[level.choose(full)]:
            residuals = residuals.new_empty(0)
        elif residuals.shape[0] != size:  # torch leaves all of them out as soon as one matrix lacks rank
            residuals = (a @ x - b).abs().square().sum(-2)
    x = x.squeeze(-1) if vector else x
    return x, *[o.unsqueeze(0).expand(size, 0) if o.shape == (0,) else o for o in (residuals, rank, values)]


def tangent_lstsq(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """linalg_lstsq: the solution and the residuals (squared lengths of the columns of A X − B)."""
    del level
    a, b = primals[:2]
    da, db = tangents[:2]
    out = op(*primals, **kwargs)
    x, residuals = out[:2]
    vector = lstsq_vector(a, False, b, False)
    b, db, x = (t.unsqueeze(-1) if vector and t is not None else t for t in (b, db, x))
    rcond = kwargs.get("rcond", primals[2] if len(primals) > 2 else None)
    p = torch.linalg.pinv(a, rtol=rcond) if rcond is not None and rcond > 0 else torch.linalg.pinv(a)
    dx: Any = None if db is None else p @ db
    if da is not None:
        dx = plus(dx, pinv_tangent(a, p, da) @ b)  # pyright: ignore[reportOperatorIssue]
    dresiduals = None
    if residuals.numel():
        error = a @ x - b
        moved = plus(plus(a @ dx, None if da is None else da @ x), None if db is None else -db)
        dresiduals = 2 * (error.conj() * moved).sum(-2).real if error.is_complex() else 2 * (error * moved).sum(-2)
    return out, (dx.squeeze(-1) if vector else dx, dresiduals, None, None)


def batch_matrix_exp(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """linalg_matrix_exp: the operator views its stack as one dimension."""
    del level, mapped, kwargs
    return op(args[0].contiguous())


def tangent_matrix_exp(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """linalg_matrix_exp: the exponential of the block matrix holds value and tangent."""
    del level, kwargs
    a, da = primals[0], tangents[0]
    n = a.shape[-1]
    upper = torch.cat([a, da], -1)
    lower = torch.cat([torch.zeros_like(a), a], -1)
    big = op(torch.cat([upper, lower], -2))
    return big[..., :n, :n], big[..., :n, n:]


def batch_cross(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """linalg_cross: both arguments have one rank; the dimension is counted behind the mapped one."""
    a, b = args
    rank = a.dim() - int(mapped[0])
    if rank != b.dim() - int(mapped[1]):
        msg = "linalg.cross: inputs must have the same number of dimensions."
        raise RuntimeError(msg)
    dim = kwargs.get("dim", -1)
    if not -rank <= dim < rank:
        msg = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        raise IndexError(msg)
    a, b = (x if m else x.unsqueeze(0) for x, m in zip((a, b), mapped, strict=False))
    return op(a, b, dim=dim % rank + 1)


row("linalg_pinv", Special(), batch=batch_pinv, tangent=tangent_pinv)
row("linalg_lstsq", Special(), batch=batch_lstsq, tangent=tangent_lstsq)
row("linalg_matrix_exp", Special(), batch=batch_matrix_exp, tangent=tangent_matrix_exp)
row("linalg_cross", Bilinear(), batch=batch_cross)
