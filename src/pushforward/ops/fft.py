"""Fourier transforms: linear (over the real numbers for the half-spectrum ones), along given dimensions.

The tangent is the transform of the tangent. Under `vmap` the dimensions shift by one; for no lanes at all the
transform, which refuses empty data, is asked for its sizes with one lane.
"""

from __future__ import annotations

from typing import Any

from .kinds import Linear
from .linalg import Tensor
from .table import row


def batch_transform(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """_fft_r2c, _fft_c2r, _fft_c2c: (x, dims, …)."""
    del mapped
    x, dims, rest = args[0], args[1], args[2:]
    rank = x.dim() - 1
    dims = [d % rank + 1 for d in dims]
    if level.size == 0:
        return op(x.new_zeros(1, *x.shape[1:]), dims, *rest, **kwargs)[:0]
    return op(x, dims, *rest, **kwargs)


row("_fft_r2c _fft_c2r _fft_c2c", Linear(), batch=batch_transform)
