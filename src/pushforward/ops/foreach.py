"""The `_foreach_*` operators of optimizers: one operator on each of many tensors, so one row of the table each.

    _foreach_add.List(xs, ys, alpha) = [add(x, y, alpha) for x, y in zip(xs, ys)]

A list of tensors or numbers goes element by element; anything else is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kinds import Decomposed
from .table import ROWS, row

Tensor = torch.Tensor

SAME_NAME = (
    "abs acos add asin atan ceil clamp_max clamp_min copysign cos cosh div erf erfc exp expm1 floor frac lerp lgamma "
    "log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh "
    "trunc clone"
)


def each(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """`function` on the k-th of every list, for each k."""

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(args[0], (list, tuple)):  # ScalarAndTensor: a number to powers
            return [function(args[0], x, **kwargs) for x in args[1]]
        count = len(args[0])
        rows = [a if isinstance(a, (list, tuple)) else [a] * count for a in args]
        return [function(*column, **kwargs) for column in zip(*rows, strict=True)]

    return run


def with_factors(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., list[Any]]:
    """addcmul, addcdiv: x + value · product(a, b); the values may be one tensor."""
    run = each(lambda x, a, b, value=1: x + value * product(a, b))

    def spread(xs: Any, first: Any, second: Any, values: Any = 1) -> list[Any]:
        return run(xs, first, second, list(values.unbind()) if isinstance(values, Tensor) and values.dim() else values)

    return spread


def norm(x: Tensor, p: Any = 2, dtype: Any = None) -> Tensor:
    """The vector norm of one of them."""
    return torch.linalg.vector_norm(x, p, dtype=dtype)


def powers(x: Tensor, p: Any = 2, dtype: Any = None) -> Tensor:
    """The sum of powers of the size of one of them."""
    return torch.ops.aten.linalg__powsum(x, p, dtype=dtype)


def copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The source in the sizes and dtype of the target."""
    del non_blocking
    return torch.ops.aten.copy(x, source)


def maximum(x: Tensor, y: Any) -> Tensor:
    """maximum, also of a number."""
    return torch.maximum(x, y) if isinstance(y, Tensor) else x.clamp_min(y)


def minimum(x: Tensor, y: Any) -> Tensor:
    """minimum, also of a number."""
    return torch.minimum(x, y) if isinstance(y, Tensor) else x.clamp_max(y)


row("_foreach_maximum", Decomposed(each(maximum)))
row("_foreach_minimum", Decomposed(each(minimum)))
for name in SAME_NAME.split():
    if hasattr(torch.ops.aten, f"_foreach_{name}") and f"_foreach_{name}" not in ROWS:
        row(f"_foreach_{name}", Decomposed(each(getattr(torch.ops.aten, name))))
row("_foreach_addcmul", Decomposed(with_factors(torch.mul)))
row("_foreach_addcdiv", Decomposed(with_factors(torch.div)))
row("_foreach_mm", Decomposed(each(torch.mm)))
row("_foreach_norm", Decomposed(each(norm)))
row("_foreach_max", Decomposed(each(torch.max)))
row("_foreach_powsum", Decomposed(each(powers)))
row("_foreach_zero", Decomposed(each(torch.zeros_like)))
row("_foreach_copy", Decomposed(each(copied)))
