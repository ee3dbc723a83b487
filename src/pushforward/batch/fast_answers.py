"""Short ways of Python's questions under `vmap`: comparisons, and `bool(x)`, `x.item()` and the like of one number a lane.

As in `batch.fast`; lanes that answer otherwise leave the run as they do by the long way (`batch.lanes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .fast import api_functions, direct
from .fast_layers import plain_mapped
from .level import Batched, wrap

Tensor = torch.Tensor
COMPARISONS = "gt lt ge le eq ne greater less greater_equal less_equal not_equal"
OPERATORS = "__gt__ __lt__ __ge__ __le__ __eq__ __ne__"


def compare(func: Any, args: tuple[Any, ...]) -> Any:
    """A mapped value of floating-point numbers beside a number, or beside another of its rank and dtype."""
    if len(args) != 2:
        return None
    x, y = args
    p = plain_mapped(x)
    if p is None or not p.is_floating_point():
        return None
    if type(y) is Batched:
        q = plain_mapped(y)
        if q is None or y._level is not x._level or q.dim() != p.dim() or q.dtype is not p.dtype:
            return None
        y = q
    elif type(y) is not float and type(y) is not int:
        return None
    return wrap(x._level, direct(func, p, y, held=x._level.held), True)


def answer(kind: Callable[[Any], Any]) -> Any:
    """The number in the group of lanes that goes on, as Python's `kind`."""

    def short(func: Any, args: tuple[Any, ...]) -> Any:
        del func
        p = plain_mapped(args[0])
        if p is None or p.dim() != 1 or p.is_complex() or not p.numel():
            return None
        return kind(args[0]._level.agree(p))

    return short


def truth(func: Any, args: tuple[Any, ...]) -> Any:
    """Whether the number is not zero, in the group of lanes that goes on."""
    del func
    p = plain_mapped(args[0])
    if p is None or p.dim() != 1 or p.is_complex() or not p.numel():
        return None
    return args[0]._level.agree(p if p.dtype is torch.bool else direct(torch.ne, p, 0, held=args[0]._level.held))


def register() -> None:
    """Fill the table of short ways."""
    table = Batched._fast
    for func in api_functions(COMPARISONS, torch, Tensor) + api_functions(OPERATORS, Tensor):
        table[func] = compare
    table[Tensor.__bool__] = truth
    table[Tensor.__int__] = answer(int)
    table[Tensor.__float__] = answer(float)
    table[Tensor.item] = answer(lambda value: value)


register()
