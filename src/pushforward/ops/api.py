"""Calls of the Python API that C++ would answer by reading a traced value's memory, or by asking one number too many.

`x[i]` with a 0-dim integer tensor is a `select` to torch, which asks `i.item()`: every lane that has another i would
need a run of its own. Here it is an index, which lanes share.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.traced import SPECIAL, Traced

Tensor = torch.Tensor
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def selects(item: Any) -> bool:
    """Whether an item of an index is a traced 0-dim integer."""
    return isinstance(item, Traced) and item.dim() == 0 and item.dtype in _INTEGERS


def plain(item: Any) -> bool:
    """Whether an item of an index is basic: it makes a view."""
    return item is None or item is Ellipsis or isinstance(item, slice) or type(item) is int


def split_index(x: Tensor, index: Any) -> tuple[Any, list[Any]] | None:
    """`x[index]` as a view `x[basic]` and the indices of its dimensions; None if that is not what it is."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(selects(i) for i in items):
        return None
    if not all(selects(i) or plain(i) for i in items):
        return None
    if Ellipsis in [i for i in items if not isinstance(i, Tensor)]:
        k = next(k for k, i in enumerate(items) if i is Ellipsis)
        used = sum(1 for i in items if i is not None and i is not Ellipsis)
        items = (*items[:k], *[slice(None)] * (x.dim() - used), *items[k + 1 :])
    basic, chosen = [], []
    for i in items:
        if selects(i):
            basic.append(slice(None))
            chosen.append(i)
        else:
            basic.append(i)
            if type(i) is not int:
                chosen.append(None)
    return tuple(basic), chosen


def getitem(func: Any, args: Any, kwargs: Any) -> Any:
    """x[…, i, …] with traced numbers i: a view, and one index."""
    del func, kwargs
    x, index = args
    parts = split_index(x, index)
    if parts is None:
        return NotImplemented
    basic, chosen = parts
    while chosen and chosen[-1] is None:
        chosen.pop()
    return torch.ops.aten.index.Tensor(x[basic], chosen)


def setitem(func: Any, args: Any, kwargs: Any) -> Any:
    """x[…, i, …] = value with traced numbers i: a write into a view."""
    del func, kwargs
    x, index, value = args
    parts = split_index(x, index)
    if parts is None:
        return NotImplemented
    basic, chosen = parts
    while chosen and chosen[-1] is None:
        chosen.pop()
    value = value.to(x.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    torch.ops.aten.index_put_.default(x[basic], chosen, value)
    return None


def tensor_split(func: Any, args: Any, kwargs: Any) -> Any:
    """tensor_split at places that a traced tensor holds: Python must know them."""
    names = ("input", "tensor_indices_or_sections", "dim")
    given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
    where = given.get("tensor_indices_or_sections", given.get("indices_or_sections"))
    if not isinstance(where, Traced):
        return NotImplemented
    return func(given["input"], where._level.inspect(where), given.get("dim", 0))


def truth(func: Any, args: Any, kwargs: Any) -> Any:
    """Whether a number is zero: what else it is makes no difference, so that lanes need not agree on it."""
    x = args[0] if args else (kwargs or {}).get("input")
    if not isinstance(x, Traced) or x.dtype is torch.bool or x.numel() != 1:
        return NotImplemented
    return bool((x != 0).item())


SPECIAL[Tensor.__getitem__] = getitem
SPECIAL[Tensor.__setitem__] = setitem
for _truth in (Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero):
    SPECIAL[_truth] = truth
for _split in (torch.tensor_split, Tensor.tensor_split):
    SPECIAL[_split] = tensor_split
