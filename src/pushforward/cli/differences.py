"""Central differences: the referee of a Jacobian.

(f(x + h e_i) - f(x - h e_i)) / 2h errs by h² f'''/6 from truncation and by eps |f| / h from rounding; the two are
balanced at h = eps^(1/3), which leaves about ten digits in float64 and four in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .progress import track


def steps(point: Tensor, leaves: Sequence[slice], dtype: torch.dtype | None = None) -> Tensor:
    """The step for each entry of `point` [n], from the size of the entry; `dtype`: what the function computes in, if not that of it.

    An entry that is tiny or zero among larger ones of its leaf takes a hundredth of their size; a leaf of zeros
    takes 1.

    >>> steps(torch.tensor([8.0, 0.0], dtype=torch.float64), [slice(0, 2)])
    tensor([4.8...e-05, 4.8...e-07], dtype=torch.float64)
    """
    scale = point.abs().clone()
    for place in leaves:
        largest = scale[place].max() if scale[place].numel() else scale.new_zeros(())
        floor = 0.01 * largest if largest > 0 else torch.ones_like(largest)
        scale[place] = scale[place].clamp(min=floor)
    return scale * torch.finfo(dtype or point.dtype).eps ** (1 / 3)


def central_differences(
    function: Callable[[Tensor], Tensor],
    point: Tensor,
    leaves: Sequence[slice],
    columns: Sequence[int],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Columns of the Jacobian of `function` at `point` [n], each by two evaluations; gives [m, len(columns)].

    `dtype` is what the function computes in, if that is coarser than `point`.

    >>> x = torch.tensor([2.0, 3.0], dtype=torch.float64)
    >>> central_differences(lambda x: x**2, x, [slice(0, 2)], [0, 1])
    tensor([[4.0000, 0.0000],
            [0.0000, 6.0000]], dtype=torch.float64)
    """
    sizes = steps(point, leaves, dtype)
    found: list[Tensor] = []
    for column in track(columns, "central differences", len(columns)):
        above, below = point.clone(), point.clone()
        above[column] += sizes[column]
        below[column] -= sizes[column]
        with torch.no_grad():
            change = function(above) - function(below)
        # The step that was taken differs from the one asked for by the rounding of the sum.
        found.append(change / (above[column] - below[column]))
    return torch.stack(found, dim=1)
