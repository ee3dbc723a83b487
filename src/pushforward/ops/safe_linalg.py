"""The determinant above autograd.

Torch's own backward of det divides by det, or by its singular values, so that what it gives for a singular matrix
cannot be differentiated again. As soon as a second differentiation is running, of either mode, det is the polynomial
of `linalg_det`.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.level import THREAD
from ..core.traced import SPECIAL
from .linalg_det import determinant
from .safe import safe

Tensor = torch.Tensor


def same_as_det(a: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.linalg.det` with every derivative right."""
    made = determinant(a)
    return made if out is None else out.copy_(made)


def twice(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """The polynomial for traced values, where more than one differentiation is running."""
    del func
    return same_as_det(*args, **(kwargs or {})) if THREAD.order > 1 and torch.is_grad_enabled() else NotImplemented


safe(torch.det, torch.linalg.det, Tensor.det)(same_as_det)
for _function in (torch.det, torch.linalg.det, Tensor.det):
    SPECIAL[_function] = twice
