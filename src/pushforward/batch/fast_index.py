"""Short ways of basic indexing under `vmap`: `x[2]`, `x[1:]`, `x[:, None, ..., 0]`, as views that know their base.

As in `batch.fast`. A view is made in one step; how it is made again from its base, should that change, is a path of
view operators (`core.cell`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.cell import Cell
from ..core.methods import register_method
from ..core.torch_private import (
    NoDispatch,
    make_wrapper,
    mode_count,
    saved_hooks,
)
from .fast import STRIDED, direct, meta_of, numbers_like
from .level import Batched

Tensor = torch.Tensor
SELECT = torch.ops.aten.select.int
SLICE = torch.ops.aten.slice.Tensor
UNSQUEEZE = torch.ops.aten.unsqueeze.default
NO_WORDS: dict[str, Any] = {}
BOUND = frozenset({int, type(None)})
ALL = slice(None)


def item(func: Any, args: tuple[Any, ...]) -> Any:
    """`x[k]` with an int: `level.wrap_view`, of which sizes and strides are known."""
    del func
    x, k = args
    if type(x) is not Batched:
        return None
    kind = type(k)
    if kind is not int:
        items: Any = k if kind is tuple else (k,)
        return basic(x, items) if kind is slice or kind is tuple or k is None or k is ... else None
    meta = x._meta or meta_of(x)
    level = x._level
    if not meta or not meta[1] or not level.alive or level.tracked or saved_hooks(False) is not None:
        return None
    n = meta[1][0]
    if not -n <= k < n:
        return None  # the long way raises the error
    if level.held:
        out = x._payload.select(1, k)
    elif level.clear and mode_count() == level.depth:
        guard = NoDispatch()
        try:
            out = x._payload.select(1, k)
        finally:
            del guard
    else:
        return None
    cell = x._cell
    if cell is None:
        cell = x._cell = Cell(x, (x._payload, True))
    sizes = meta[1][1:]
    offset = out.storage_offset() - cell.root[0].storage_offset()
    made: Any = make_wrapper(Batched, sizes, meta[2][1:], offset or None, None, meta[5], STRIDED, meta[7])
    made._payload = out
    made._level = level
    made._meta = None if sizes else numbers_like(out)
    made._form = None
    made._cell = cell
    made._path = (x._path, (SELECT, (0, k), NO_WORDS, None))
    cell.add(made)
    return made


def basic(x: Batched, index: tuple[Any, ...]) -> Any:
    """`x[index]` with ints, slices, None and `...`, if it makes a view."""
    meta, level = x._meta or meta_of(x), x._level
    if not meta or not level.on_top():
        return None
    sizes = meta[1]
    taken = sum([type(k) is int or type(k) is slice for k in index])
    path: Any = x._path
    dim = source = 0  # of the view so far, and of `x`
    rest = len(sizes) - taken  # dimensions that `...` stands for
    if rest < 0:
        return None
    for k in index:
        if k is None:
            path = path, (UNSQUEEZE, (dim,), NO_WORDS, None)
            dim += 1
        elif k is ...:
            if rest < 0:
                return None  # a second one
            dim, source, rest = dim + rest, source + rest, -1
        elif type(k) is int:
            if not -sizes[source] <= k < sizes[source]:
                return None
            path = path, (SELECT, (dim, k), NO_WORDS, None)
            source += 1
        elif type(k) is slice:
            if not (type(k.start) in BOUND and type(k.stop) in BOUND and type(k.step) in BOUND) or (k.step or 1) < 1:
                return None
            if k != ALL:
                path = path, (SLICE, (dim, k.start, k.stop, 1 if k.step is None else k.step), NO_WORDS, None)
            dim, source = dim + 1, source + 1
        else:
            return None
    if path is x._path:
        return None
    out = direct(Tensor.__getitem__, x._payload, (ALL, *index), held=level.held)
    made = level.wrap_view(x, path[1], out, True)
    made._path = path
    return made


def register() -> None:
    """Fill the table of short ways."""
    Batched._fast[Tensor.__getitem__] = item
    register_method(Batched, "__getitem__", item)


register()
