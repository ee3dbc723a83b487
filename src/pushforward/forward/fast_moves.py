"""Short ways under `jvp` for what is linear in one tensor or in a list: moving, summing, joining, choosing, looking at a part.

The tangent is the function itself on the tangent. A view is made from the views of primal and tangent, and knows its base.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..core.cell import Cell
from ..core.level import recorded_below
from ..core.torch_private import NoDispatch, make_wrapper
from .fast import (
    STRIDED,
    compute,
    like,
    meta_of,
    number,
    plain_dual,
    ready,
    register_method,
    wrap_plain,
)
from .level import Dual, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
SELECT = torch.ops.aten.select.int

# Results have memory of their own, whatever the arguments; `roll` with nothing to roll copies too.
MOVES = "roll flip cumsum repeat sum mean neg"
SAME_SIZE = {getattr(place, name) for place in (torch, Tensor) for name in ("roll", "flip", "cumsum", "neg")}
SAME_SIZE.add(Tensor.__neg__)
# Views, where memory is contiguous (`reshape` and `flatten`), or always.
VIEWS = "view reshape flatten transpose permute unsqueeze squeeze expand t"
COMPARISONS = "eq ne lt le gt ge"
INDICES = frozenset({int, slice, type(None), type(Ellipsis)})


def without_tensors(values: Any) -> bool:
    """Whether no argument is a tensor."""
    for v in values:  # noqa: SIM110  (a generator takes longer than all of this)
        if isinstance(v, Tensor):
            return False
    return True


# -- results of their own ----------------------------------------------------------------------------------------------


def moved(func: Any, p: Tensor, t: Any) -> tuple[Any, Any]:
    """A linear function on value and tangent."""
    return func(p), func(t)


def moving(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that is linear in its first argument."""
    x = args[0]
    if type(x) is not Dual:
        return None
    p, t, level = x._primal, x._tangent, x._level
    if type(p) is not Tensor or type(t) is not Tensor or not ready(level):
        return None
    meta = x._meta or meta_of(x)
    if not (meta or p.is_floating_point()):
        return None
    rest = args[1:]
    if rest and not without_tensors(rest):
        return None
    if kwargs and ("dtype" in kwargs or not without_tensors(kwargs.values())):
        return None
    guard = NoDispatch()
    try:
        out, t = (func(p, *rest, **kwargs), func(t, *rest, **kwargs)) if kwargs else (func(p, *rest), func(t, *rest))
    finally:
        del guard
    return like(level, out, t, meta) if meta and func in SAME_SIZE else wrap_plain(level, out, t)


def total(func: Any, args: tuple[Any, ...]) -> Any:
    """`x.sum()`."""
    x = args[0]
    if len(args) != 1 or type(x) is not Dual or x._tangent is None or not plain_dual(x):
        return None
    if not x._primal.is_floating_point():
        return None
    return compute(x._level, moved, func, x._primal, x._tangent)


def stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.stack`: of plain values; or of dual numbers, all with tangents."""
    values = args[0]
    made = joining(func, args, kwargs)
    if made is not None or kwargs or len(args) != 1 or type(values) not in (list, tuple) or not values or type(values[0]) is not Dual:
        return made
    level = values[0]._level
    for v in values:
        if type(v) is not Dual or v._level is not level or v._tangent is None or not plain_dual(v):
            return None
    del func
    return compute(level, _stacks, [v._primal for v in values], [v._tangent for v in values])


def _stacks(ps: list[Tensor], ts: list[Any]) -> tuple[Any, Any]:
    return torch.stack(ps), torch.stack(ts)


def joining(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.cat` and `torch.stack` of plain values, some of them with tangents."""
    values = args[0]
    if type(values) not in (list, tuple) or (kwargs and not without_tensors(kwargs.values())):
        return None
    level, missing, primals, tangents = None, False, [], []
    for v in values:
        if type(v) is Dual:
            p, t = v._primal, v._tangent
            if type(p) is not Tensor or (v._level is not level and level is not None):
                return None
            level = v._level
        else:
            p, t = v, None
            if type(p) is not Tensor:
                return None
        if t is None:
            missing = True
        elif type(t) is not Tensor:
            return None
        primals.append(p)
        tangents.append(t)
    if level is None or not ready(level):
        return None
    if missing:
        if all(t is None for t in tangents):
            return None
        if not all(type(v) is Dual or recorded_below(level, v) for v in values):
            return None
    guard = NoDispatch()
    try:
        if missing:
            tangents = [torch.zeros_like(p) if t is None else t for p, t in zip(primals, tangents, strict=True)]
        out, t = func(primals, *args[1:], **kwargs), func(tangents, *args[1:], **kwargs)
    finally:
        del guard
    return wrap_plain(level, out, t)


# -- choices -----------------------------------------------------------------------------------------------------------


def comparison(func: Any, args: tuple[Any, ...]) -> Any:
    """A comparison with a number, or of two values of one dtype: it has no tangent."""
    x, y = args
    if type(x) is not Dual:
        return None
    p, level = x._primal, x._level
    kind = type(y)
    if kind is Dual:
        q = y._primal
        if y._level is not level or type(q) is not Tensor:
            return None
    elif kind is float or kind is int:
        meta = x._meta or meta_of(x) if type(p) is Tensor else None
        q = number(y, meta) if meta else y
    elif kind is Tensor and not y.requires_grad:
        q = y
    else:
        return None
    if type(p) is not Tensor or x._tangent is None or not ready(level):
        return None
    guard = NoDispatch()
    try:
        out = func(p, q)
    finally:
        del guard
    return wrap(level, out, None)


def choice(func: Any, args: tuple[Any, ...]) -> Any:
    """`torch.where` of values of one size and dtype, or a number."""
    if len(args) != 3:
        return None
    condition, *values = args
    level, meta = None, None
    if type(condition) is Dual and condition._tangent is None:
        level, condition = condition._level, condition._primal
    if type(condition) is not Tensor:
        return None
    primals, tangents = [], []
    for v in values:
        kind = type(v)
        if kind is Dual:
            if level is None:
                level = v._level
            own = v._meta or meta_of(v)
            if v._level is not level or type(v._primal) is not Tensor or type(v._tangent) is not Tensor or not own:
                return None
            if meta is not None and own is not meta and (own[1] != meta[1] or own[5] is not meta[5]):
                return None
            meta = own
            primals.append(v._primal)
            tangents.append(v._tangent)
        elif kind is float or kind is int:
            primals.append(v)
            tangents.append(None)
        else:
            return None
    if meta is None or condition.shape != meta[1] or not condition.is_contiguous() or not ready(level):
        return None
    guard = NoDispatch()
    try:
        # A kept number has the dtype of the values; what is no kept number has that of Python's.
        x, y = (number(v, meta) if t is None else v for v, t in zip(primals, tangents, strict=True))
        out = torch.where(condition, x, y)
        dx, dy = (out.new_zeros(()) if t is None else t for t in tangents)
        t = torch.where(condition, dx, dy)
    finally:
        del guard
    del func
    return like(level, out, t, meta)


# -- views -------------------------------------------------------------------------------------------------------------


def item(func: Any, args: tuple[Any, ...]) -> Any:
    """`x[k]` with an int, slices, None and …, as a view that knows its base."""
    del func
    x, k = args
    if type(x) is not Dual:
        return None
    p, t, level = x._primal, x._tangent, x._level
    kind = type(k)
    if kind is int:
        if type(p) is not Tensor or p.dim() < 1 or not -p.shape[0] <= k < p.shape[0]:
            return None
        step = (SELECT, (0, k), {}, None)
    elif kind is slice or (kind is tuple and all(type(i) in INDICES for i in k)):
        step = (operator.getitem, (k,), {}, None)
    else:
        return None
    if type(p) is Tensor and type(t) is Tensor and ready(level):
        return None if unlike_real(x) else seen(x, step, operator.getitem, k)
    if kind is not int or t is None or not plain_dual(x) or unlike_real(x):
        return None
    pair = compute(level, both_items, p, t, k, view=True)
    return None if pair is None else level.wrap_view(x, step, *pair)


def unlike_real(x: Dual) -> bool:
    """Whether a value is complex, an integer, or lazily negated."""
    return not (x._meta or x._primal.is_floating_point()) or x._primal.is_neg()


def both_items(p: Tensor, t: Any, k: int) -> tuple[Any, Any]:
    """The same item of value and tangent."""
    return p[k], t[k]


def seen(x: Dual, step: Any, view: Any, *rest: Any) -> Dual:
    """A view of a plain value: that of its primal and that of its tangent."""
    guard = NoDispatch()
    try:
        p, t = view(x._primal, *rest), view(x._tangent, *rest)
    finally:
        del guard
    return known_view(x, step, p, t)


def known_view(x: Dual, step: Any, p: Tensor, t: Tensor) -> Dual:
    """The pair as a view of `x`."""
    cell = x._cell
    if cell is None:
        cell = x._cell = Cell(x, (x._primal, x._tangent), loose=x._loose)
    offset = p.storage_offset() - cell.root[0].storage_offset()
    made: Any = make_wrapper(Dual, p.shape, p.stride(), offset, None, p.dtype, STRIDED, p.device)
    made._primal, made._tangent, made._level, made._meta, made._form = p, t, x._level, None, None
    made._cell, made._path = cell, (x._path, step)
    cell.add(made)
    return made


def viewing(func: Any, args: tuple[Any, ...]) -> Any:
    """A function that gives a view of its first argument."""
    x, *rest = args
    if type(x) is not Dual or type(x._primal) is not Tensor or type(x._tangent) is not Tensor:
        return None
    if not (ready(x._level) and without_tensors(rest)) or unlike_real(x):
        return None
    if func not in OF_CONTIGUOUS:
        return seen(x, (func, tuple(rest), {}, None), func, *rest)
    if not (x._primal.is_contiguous() and x._tangent.is_contiguous()):
        return None
    guard = NoDispatch()
    try:
        p, t = func(x._primal, *rest), func(x._tangent, *rest)
    finally:
        del guard
    return x if p is x._primal else known_view(x, (Tensor.view, (p.shape,), {}, None), p, t)


OF_CONTIGUOUS = {
    getattr(place, name) for place in (torch, Tensor) for name in ("view", "reshape", "flatten") if hasattr(place, name)
}


def unbound(func: Any, args: tuple[Any, ...]) -> Any:
    """The parts of a value along its first dimension, one by one."""
    x = args[0]
    if len(args) != 1 or type(x) is not Dual or type(x._tangent) is not Tensor or type(x._primal) is not Tensor:
        return None
    if x._primal.dim() < 1 or not (x._primal.is_floating_point() and ready(x._level)):
        return None
    parts = [item(Tensor.__getitem__, (x, k)) for k in range(x._primal.shape[0])]
    return None if any(p is None for p in parts) else iter(parts) if func is Tensor.__iter__ else tuple(parts)


def register() -> None:
    """Fill the table of short ways."""
    table, named = Dual._fast, Dual._named
    for name in MOVES.split():
        for place in (torch, Tensor):
            if hasattr(place, name):
                named[getattr(place, name)] = moving
    named[Tensor.__neg__] = named[torch.Tensor.negative] = moving
    for func in (torch.sum, Tensor.sum):
        table[func] = total
    for name in VIEWS.split():
        for place in (torch, Tensor):
            if hasattr(place, name):
                table[getattr(place, name)] = viewing
    for name in COMPARISONS.split():
        for place in (torch, Tensor):
            table[getattr(place, name)] = comparison
    table[Tensor.__getitem__] = item
    table[Tensor.unbind] = table[torch.unbind] = table[Tensor.__iter__] = unbound
    named[torch.stack], table[torch.where] = stack, choice
    for func in (torch.cat, torch.concat, torch.hstack, torch.vstack):
        named[func] = joining
    register_method("__getitem__", item)
    register_method("__neg__", lambda func, args: moving(func, args, {}))


register()
