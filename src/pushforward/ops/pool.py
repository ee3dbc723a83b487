"""Pooling. Averages are linear; a maximum picks elements, so its tangent is the tangent at the indices that it returns.

All of them treat samples (and channels) alike: the lanes join the samples, or stand for them where there are none.
With ties the element that torch's kernel picks takes the whole derivative, in both modes.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Linear, Special
from .lanes import over_samples
from .table import row

Tensor = torch.Tensor


def at_indices(spatial: int) -> Any:
    """The tangent of (maximum, indices) over the last `spatial` dimensions; indices count the flattened ones."""

    def rule(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        out, indices = op(*primals, **kwargs)
        if tangents[0] is None:
            return (out, indices), (None, None)
        flat = tangents[0].flatten(-spatial)
        return (out, indices), (flat.gather(-1, indices.flatten(-spatial)).reshape(out.shape), None)

    return rule


def first_only(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Linear in the gradient; of the other arguments only sizes and indices matter."""
    del level
    out = op(*primals, **kwargs)
    return out, None if tangents[0] is None else op(tangents[0], *primals[1:], **kwargs)


for _d in (2, 3):
    row(f"avg_pool{_d}d _adaptive_avg_pool{_d}d", Linear(), batch=over_samples(_d + 2))
    row(
        f"avg_pool{_d}d_backward _adaptive_avg_pool{_d}d_backward",
        Special(),
        batch=over_samples(_d + 2),
        tangent=first_only,
    )
    row(
        f"max_pool{_d}d_with_indices adaptive_max_pool{_d}d fractional_max_pool{_d}d",
        Special(),
        batch=over_samples(_d + 2),
        tangent=at_indices(_d),
    )
    row(
        f"max_pool{_d}d_with_indices_backward adaptive_max_pool{_d}d_backward fractional_max_pool{_d}d_backward",
        Special(),
        batch=over_samples(_d + 2),
        tangent=first_only,
    )
    row(f"max_unpool{_d}d", Special(), batch=over_samples(_d + 2), tangent=first_only)
