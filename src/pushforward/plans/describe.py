"""What the operators behind a call depend on, as a key: structure, sizes, dtypes, levels, and every other argument by value.

A tensor counts by its sizes, strides, dtype, device and whether it requires grad, never by its numbers: a call that reads numbers is
not planned at all (see `record`). No argument's part of a key begins as another kind's does, so that two calls with one key are alike.

A traced value counts by its *form*, one object for all values that are alike down to the plain tensors, which is kept with the value:
whatever replaces a payload forgets it.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch.level import Batched
from ..core.traced import UNPLANNED, Traced
from ..forward.level import Dual

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
STRIDED = torch.strided
_BY_VALUE = frozenset(
    {int, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format, torch.layout}
)


class Form:
    """What is the same for many traced values; with `parts`, the forms of the traced values among what it is made of."""

    __slots__ = ("parts",)

    def __init__(self, parts: Any) -> None:
        self.parts = parts


_FORMS: dict[Any, Form] = {}
MOST_FORMS = 1 << 14


def form_with(key: Any, parts: Any = None) -> Form:
    """The form of this description: always the same object."""
    form = _FORMS.get(key)
    if form is None:
        if len(_FORMS) >= MOST_FORMS:
            _FORMS.clear()
        form = _FORMS[key] = Form(parts)
    return form


def plain(p: Tensor) -> Any:
    """A plain tensor in the description of a form; None if it cannot be planned."""
    dtype = p.dtype
    if dtype.is_complex or p.layout is not STRIDED or p.is_neg():
        return None
    return p.shape, p.stride(), dtype, p.device


def form_of(a: Any, leaves: list[Tensor], values: list[Any], levels: list[Any]) -> Form | None:
    """The form of a traced value, its tensors added to `leaves`; None if it cannot be planned."""
    level = a._level
    depth = level.depth
    if depth > len(levels) or levels[depth - 1] is not level:
        return None
    values.append(a)
    form = a._form
    if form is UNPLANNED:
        return None
    if type(a) is Batched:
        p = a._payload
        if type(p) is Tensor:
            leaves.append(p)
            if form is None:
                known = plain(p)
                if known is None:
                    return None
                form = a._form = form_with((Batched, depth if a._mapped else -depth, known))
            return form
        if not isinstance(p, Traced):
            return None
        part = form_of(p, leaves, values, levels)
        if part is None:
            return None
        if form is None or form.parts is not part:
            form = a._form = form_with((Batched, depth if a._mapped else -depth, part), part)
        return form
    p, t = a._primal, a._tangent
    first = part_of(p, leaves, values, levels)
    second = None if t is None else part_of(t, leaves, values, levels)
    if first is None or (second is None and t is not None):
        return None
    if form is None or first is not PLAIN or (second is not PLAIN and second is not None):
        parts: Any = [plain(x) if q is PLAIN else q for x, q in ((p, first), (t, second))]  # pyright: ignore[reportArgumentType]
        if parts[0] is None or (parts[1] is None and t is not None):
            return None
        form = a._form = form_with((Dual, depth, *parts))
    return form


PLAIN = object()


def part_of(p: Any, leaves: list[Tensor], values: list[Any], levels: list[Any]) -> Any:
    """What a form knows a primal or a tangent by."""
    if type(p) is Tensor or type(p) is Parameter:
        leaves.append(p)
        return PLAIN
    return form_of(p, leaves, values, levels) if isinstance(p, Traced) else None


def add(a: Any, key: list[Any], leaves: list[Tensor], values: list[Any], levels: list[Any]) -> bool:
    """Add one argument to a key, its tensors to `leaves` and its traced values to `values`; False if it cannot be planned.

    Which of the leaves require grad is for the caller to add.
    """
    kind = type(a)
    if kind is Batched or kind is Dual:
        form = form_of(a, leaves, values, levels)
        key.append(form)
        return form is not None
    if kind is Tensor or kind is Parameter:
        if a.dtype.is_complex or a.layout is not STRIDED or a.is_neg():
            return False
        key += (a.shape, a.stride(), a.dtype, a.device)
        leaves.append(a)
        return True
    if kind in _BY_VALUE:
        key.append(a)
        return True
    if kind is float or kind is bool:  # 1, 1.0 and True are equal, as are 0.0 and -0.0, and nan is not even itself
        key.append(kind)
        key.append(a if a and a == a else str(a))
        return True
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
