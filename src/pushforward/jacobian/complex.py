"""Complex numbers in Jacobians: rows by reverse mode, and functions that have no complex derivative.

The derivative by a complex input is a matrix of complex numbers only if it is linear in them, D f(i v) = i D f(v): only if the
function is holomorphic. One random direction tells. The derivative by real inputs always is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.errors import ArgumentError
from ..core.level import THREAD
from ..core.looking import payloads, visible
from ..core.torch_private import BelowAutograd, NoDispatch
from ..core.words import name_of
from .basis import random_direction

Tensor = torch.Tensor


def is_checked(leaves: list[Any]) -> bool:
    """Whether there is a complex input, and its numbers may be looked at."""
    if not any([x.is_complex() for x in leaves]) or not visible(leaves, wait=True):
        return False
    THREAD.unrepeatable += 1
    return True


def turned(leaves: list[Any]) -> list[Tensor]:
    """A random direction along the imaginary axis of the complex inputs; the real ones stay."""
    return [r * 1j if x.is_complex() else torch.zeros_like(r) for x, r in zip(leaves, real_parts(leaves), strict=True)]


def real_parts(leaves: list[Any]) -> list[Tensor]:
    """Random real numbers in the sizes of some tensors, of their precision."""
    return [random_direction([x], x.dtype.to_real())[0] for x in leaves]


def check_columns(what: str, func: Any, path: str, columns: Tensor, direction: list[Tensor], moved: Tensor) -> None:
    """Compare `moved`, the tangent of one output along `turned` directions, with what the columns say, `[n, *output]`.

    Raises:
        ArgumentError: they differ, so that the columns are not the derivative.
    """
    along = torch.cat([d.imag.reshape(-1) if d.is_complex() else d.reshape(-1) for d in direction]).to(columns.dtype)
    terms = along.reshape(-1, *[1] * (columns.dim() - 1)) * columns
    said, scale = terms.sum(0) * 1j, terms.abs().sum(0) + moved.abs()
    refuse_where(differ(moved, said, scale), what, func, path)


def check_rows(what: str, func: Any, path: str, pulled: Callable[..., Any], outs: list[Any], leaves: list[Any]) -> None:
    """As `check_columns`, by reverse mode: Jᴴ(i u) = i Jᴴ u, and real outputs depend on no complex input.

    Raises:
        ArgumentError: it is otherwise.
    """
    seeds = real_parts(outs)
    parts = {"complex": [r + 0j if o.is_complex() else torch.zeros_like(r) for o, r in zip(outs, seeds, strict=True)]}
    parts["turned"] = [r * 1j if r.is_complex() else r for r in parts["complex"]]
    parts["real"] = [torch.zeros_like(r) + 0j if o.is_complex() else r for o, r in zip(outs, seeds, strict=True)]
    rows = {name: pulled(*part) for name, part in parts.items()}
    for x, g, h, real in zip(leaves, rows["complex"], rows["turned"], rows["real"], strict=True):
        if x.is_complex():
            refuse_where(differ(h, g * 1j, g.abs() + h.abs()), what, func, path)
            refuse_where(differ(real, torch.zeros_like(real), torch.ones_like(real.abs())), what, func, path)


def differ(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Where finite numbers differ by more than rounding."""
    found = (a - b).abs()
    return (found > scale * torch.finfo(found.dtype).eps ** 0.5) & found.isfinite()


def refuse_where(bad: Tensor, what: str, func: Any, path: str) -> None:
    """`ArgumentError` if there is a place where it is bad, in any lane."""
    with NoDispatch(), BelowAutograd():
        if not any([bool(p.any()) for p in payloads(bad)]):
            return
    name = name_of(func)
    msg = (
        f"{what}({name}): {path} is complex, and {name} has no complex derivative there (it uses conj, abs, real or the like), so no "
        f"matrix of complex numbers is its Jacobian. Take it by real and imaginary parts, {what}(lambda r: "
        f"{name}(torch.view_as_complex(r)))(torch.view_as_real(x)), or use jvp, vjp, or grad of a real output."
    )
    raise ArgumentError(msg)


def row_puller(pulled: Callable[..., Any], outs: list[Any], leaves: list[Any]) -> Callable[..., Any]:
    """A function from rows of the basis of the outputs to rows of the Jacobian.

    A cotangent u gives Re(conj(J) u) by real inputs, conj(J) u by complex ones: two cotangents put a complex row together.
    """
    if not any([o.is_complex() for o in outs]):
        return pulled

    def rows(*cotangents: Tensor) -> tuple[Tensor, ...]:
        real = pulled(*cotangents)
        if all([x.is_complex() for x in leaves]):
            return tuple([g.conj() for g in real])
        imag = pulled(*[c * 1j if c.is_complex() else torch.zeros_like(c) for c in cotangents])
        return tuple(
            [g.conj() if x.is_complex() else torch.complex(g, h) for g, h, x in zip(real, imag, leaves, strict=True)]
        )

    return rows


def of_dtype(block: Tensor, out: Any, leaf: Any) -> Tensor:
    """A block of a matrix that is complex because of others: real for real numbers by real numbers."""
    return block.real if block.is_complex() and not (out.is_complex() or leaf.is_complex()) else block
