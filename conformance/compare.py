"""Equal within a tolerance, or where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Tensor = torch.Tensor


@dataclass(frozen=True)
class Tolerance:
    """Relative, and absolute in units of the largest finite value expected."""

    relative: float
    absolute: float


# By precision, then by where the expected value comes from: a loop or autograd, first differences, second ones.
TOLERANCES = {
    torch.float64: {
        "exact": Tolerance(1e-6, 1e-7),
        "differences": Tolerance(1e-3, 1e-4),
        "second differences": Tolerance(1e-2, 1e-3),
    },
    torch.float32: {
        "exact": Tolerance(1e-3, 1e-4),
        "differences": Tolerance(1e-2, 1e-2),
        "second differences": Tolerance(5e-2, 2e-2),
    },
}
TOLERANCES[torch.complex128] = TOLERANCES[torch.float64]


def is_real_or_complex(x: Any) -> bool:
    """Whether `x` is a tensor that can have a derivative."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def difference(got: Any, expected: Any, tolerance: Tolerance) -> str | None:
    """None where `got` is `expected`, else the first place where it is not."""
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, expected {len(theirs)}"
    for k, (a, e) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(a, Tensor):
            return f"result {k} is a {type(a).__name__}"
        if a.shape != e.shape or a.dtype != e.dtype:
            return f"result {k} is {a.dtype}{list(a.shape)}, expected {e.dtype}{list(e.shape)}"
        a, e = a.detach().resolve_conj().resolve_neg(), e.detach().resolve_conj().resolve_neg()
        scale = 1.0
        if is_real_or_complex(e):
            sizes = e.abs()
            sizes = sizes[torch.isfinite(sizes)]
            scale = max(1.0, float(sizes.max())) if sizes.numel() else 1.0
        close = torch.isclose(a, e, rtol=tolerance.relative, atol=tolerance.absolute * scale, equal_nan=True)
        if not bool(close.all()):
            place = tuple((~close).nonzero()[0].tolist())
            values = f"{a[place].item()!r}, expected {e[place].item()!r}"
            return f"result {k}: {int((~close).sum())} of {close.numel()} values differ, at {list(place)} {values}"
    return None
