"""What the operators behind a call depend on, as a key: structure, sizes, dtypes, levels, and every other argument by value.

A tensor counts by its sizes, strides, dtype, device and whether it requires grad, never by its numbers: a call that reads numbers is
not planned at all (see `record`). No argument's part of a key begins as another kind's does, so that two calls with one key are alike.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch.level import Batched
from ..forward.level import Dual

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
STRIDED = torch.strided
_BY_VALUE = frozenset(
    {int, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format, torch.layout}
)


def add(a: Any, key: list[Any], leaves: list[Tensor], values: list[Any], levels: list[Any]) -> bool:
    """Add one argument to a key, its tensors to `leaves` and its traced values to `values`; False if it cannot be planned."""
    kind = type(a)
    if kind is Batched:
        level = a._level
        depth = level.depth
        if depth > len(levels) or levels[depth - 1] is not level:
            return False
        key += (Batched, depth if a._mapped else -depth)
        values.append(a)
        p = a._payload
        if type(p) is Tensor:
            dtype = p.dtype
            if dtype.is_complex or p.layout is not STRIDED or p.is_neg():
                return False
            key += (p.shape, p.stride(), dtype, p.requires_grad, p.device)
            leaves.append(p)
            return True
        return add(p, key, leaves, values, levels)
    if kind is Tensor or kind is Parameter:
        if a.dtype.is_complex or a.layout is not STRIDED or a.is_neg():
            return False
        key += (a.shape, a.stride(), a.dtype, a.requires_grad, a.device)
        leaves.append(a)
        return True
    if kind in _BY_VALUE:
        key.append(a)
        return True
    if kind is float or kind is bool:  # 1, 1.0 and True are equal, as are 0.0 and -0.0, and nan is not even itself
        key.append(kind)
        key.append(a if a and a == a else str(a))
        return True
    if kind is Dual:
        level = a._level
        depth = level.depth
        if depth > len(levels) or levels[depth - 1] is not level:
            return False
        tangent = a._tangent
        key += (Dual, depth, tangent is None)
        values.append(a)
        return add(a._primal, key, leaves, values, levels) and (
            tangent is None or add(tangent, key, leaves, values, levels)
        )
    if kind is tuple or kind is list or kind is torch.Size:
        key.append(kind)
        key.append(len(a))
        return all([add(x, key, leaves, values, levels) for x in a])
    if kind is slice:
        key.append(slice)
        return all([add(x, key, leaves, values, levels) for x in (a.start, a.stop, a.step)])
    return False


def repeated(leaves: list[Tensor]) -> tuple[int, ...]:
    """Which tensors are the same object: for each where it is first; empty if all differ."""
    first: dict[int, int] = {}
    where = [first.setdefault(id(x), k) for k, x in enumerate(leaves)]
    return () if len(first) == len(leaves) else tuple(where)
