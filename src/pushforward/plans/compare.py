"""Whether two results of a call are the same: to the last bit, or but for the order of sums."""

from __future__ import annotations

from typing import Any

import torch

from ..core import tree
from .ways import same_value
from .write import SMALL

Tensor = torch.Tensor


def near(a: Any, b: Any, dims: list[int | None]) -> bool:
    """Whether two results are the same, but for the last bits: other numbers of lanes are summed in another order."""
    (xs, one), (ys, two) = tree.flat(a), tree.flat(b)
    return one == two and all(close(x, y, d) for x, y, d in zip(xs, ys, dims, strict=True))


def close(x: Any, y: Any, lanes: int | None = None) -> bool:
    """Whether two leaves of results are the same but for the last bits, in each lane."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return same_value(x, y)
    if (x.shape, x.stride(), x.dtype, x.requires_grad) != (y.shape, y.stride(), y.dtype, y.requires_grad):
        return False
    if not x.is_floating_point() or not x.numel():
        return torch.equal(x, y)
    finite = y.isfinite()
    if not torch.where(finite, x.isfinite(), (x == y) | (x.isnan() & y.isnan())).all():
        return False
    sizes = y.where(finite, 0).abs()
    others = [d for d in range(y.dim()) if d != lanes]
    largest = sizes.amax(others, keepdim=True) if others else sizes
    eps = torch.finfo(x.dtype).eps
    room = (256 if eps < 1e-4 else 8) * eps * largest + 4 * eps * largest.amax()
    return bool(((x - y).where(finite, 0).abs() <= room).all())


def prints(out: Any) -> Any:
    """A result by its structure, layouts and numbers: all bits of a small tensor, sums over a large one."""
    leaves, spec = tree.flat(out)
    return spec, [printed(x) if isinstance(x, Tensor) else (type(x), repr(x)) for x in leaves]


def printed(x: Tensor) -> Any:
    """What a tensor is known by, so that it need not be kept."""
    about = x.shape, x.stride(), x.dtype, x.requires_grad
    numbers = x.detach()
    if x.numel() <= SMALL:
        return *about, numbers.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy().tobytes()
    parts = (numbers, numbers[::2], numbers[..., ::3])  # no copies: what is compared may be the most of the memory
    if not x.is_floating_point():
        return *about, *[part.sum().item() for part in parts]
    return *about, *[
        repr(s.item()) for part in parts for s in (part.sum(), torch.linalg.vector_norm(part))
    ]  # nan is nan
