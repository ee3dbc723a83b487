"""Linear algebra: what the families of matrix operators share.

Every operator works on stacks of matrices `[*, m, n]`, so batching lines up the stacks: the mapped dimension in
front, then the logical stack dimensions, then the matrix (core rank 2), the vector or the pivots (core rank 1).
Operators that do not broadcast their stacks get them spread first.

Tangents are functions of the primals alone. A factor that the operator hands out for its backward pass (LU, pivots)
is used only where the levels below know its tangent and autograd does not record; else it is computed again by an
operator that autograd can differentiate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.level import THREAD
from ..core.traced import Traced

Tensor = torch.Tensor
Rule = Callable[[Any, Any, list[Any], Any, dict[str, Any]], Any]


# -- batching -------------------------------------------------------------------------------------------------------


def stack_shape(x: Tensor, mapped: bool, core: int) -> tuple[int, ...]:
    """The logical stack dimensions of an argument; of too low a rank it must not borrow the mapped one."""
    own = x.dim() - int(mapped)
    if own < core:
        msg = f"expected a tensor with {core} or more dimensions, but got {own}"
        raise RuntimeError(msg)
    return tuple(x.shape[int(mapped) : x.dim() - core])


def line_up(args: list[Any], mapped: Any, cores: tuple[int, ...], size: int, *, spread: bool = False) -> list[Any]:
    """The tensor arguments with their stacks lined up behind the mapped dimension.

    `cores[k]` is the core rank of the k-th argument. With `spread` each gets the whole stack and the mapped one.
    """
    given = list(zip(args, mapped, cores, strict=False))
    stacks = [stack_shape(x, m, c) for x, m, c in given if isinstance(x, Tensor)]
    full = torch.broadcast_shapes(*stacks)
    out = list(args)
    for k, (x, m, c) in enumerate(given):
        if not isinstance(x, Tensor):
            continue
        own = stack_shape(x, m, c)
        shape = x.shape[x.dim() - c :]
        if m and len(own) < len(full):
            x = x.reshape(size, *[1] * (len(full) - len(own)), *own, *shape)
        if spread:
            x = x.expand(size, *full, *shape)
        out[k] = x
    return out


def stacked(*cores: int, spread: bool = False) -> Rule:
    """The batching of an operator that loops over stacks of its tensor arguments, which come first."""

    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        return op(*line_up(args, mapped, cores, level.size, spread=spread), **kwargs)

    return rule


one_matrix = stacked(2)


def with_absent(rule: Rule) -> Rule:
    """`rule` for operators that return an empty `[0]` for a factor not asked for: each lane has its own."""

    def filled(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        out = rule(op, level, args, mapped, kwargs)
        return tuple(o.unsqueeze(0).expand(level.size, 0) if o.shape == (0,) else o for o in out)

    return filled


def fold(b: Tensor, *, left: bool = True) -> Tensor:
    """`[B, *, n, k]` as `[*, n, k B]` (rows for `left=False`): the lanes as more right-hand sides of one matrix."""
    return b.movedim(0, -1).flatten(-2) if left else b.movedim(0, -2).flatten(-3, -2)


def unfold(x: Tensor, size: int, *, left: bool = True) -> Tensor:
    """The inverse of `fold`."""
    if left:
        return x.unflatten(-1, (x.shape[-1] // size if size else 0, size)).movedim(-1, 0)
    return x.unflatten(-2, (x.shape[-2] // size if size else 0, size)).movedim(-2, 0)


def spread_stacks(args: list[Tensor], cores: tuple[int, ...]) -> list[Tensor]:
    """Unmapped arguments with their stacks broadcast against each other."""
    full = torch.broadcast_shapes(*[stack_shape(x, False, c) for x, c in zip(args, cores, strict=True)])
    return [x.expand(*full, *x.shape[x.dim() - c :]) for x, c in zip(args, cores, strict=True)]


# -- tangents -------------------------------------------------------------------------------------------------------


def recorded(*values: Any) -> bool:
    """Whether autograd records what is computed from these values, at whatever level below."""
    for x in values:
        if not isinstance(x, Tensor):
            continue
        if x.requires_grad:
            return True
        if isinstance(x, Traced):
            parts = (getattr(x, name, None) for name in ("_payload", "_primal", "_tangent"))
            if recorded(*[p for p in parts if p is not None]):
                return True
    return False


def listed(x: Tensor) -> Any:
    """`x.tolist()`, of a traced value of a level below too."""
    THREAD.unrepeatable += 1
    return x._level.inspect(x) if isinstance(x, Traced) else x.tolist()


def plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Sum of two tangents, None being zero."""
    if a is None:
        return b
    return a if b is None else a + b


def diagonal(x: Tensor) -> Tensor:
    """The diagonals of a stack of matrices."""
    return x.diagonal(dim1=-2, dim2=-1)


def identity(n: int, like: Tensor, m: int | None = None) -> Tensor:
    """The `[n, m]` identity in the dtype of `like`."""
    return torch.eye(n, n if m is None else m, dtype=like.dtype, device=like.device)


def solve_tri(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unit: bool = False) -> Tensor:
    """a⁻¹ b, or b a⁻¹, for a triangular a."""
    return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)


def triangle(x: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    """The triangle that a triangular solver reads."""
    if upper:
        return x.triu(1 if unit else 0)
    return x.tril(-1 if unit else 0)
