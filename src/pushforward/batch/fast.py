"""The short way for small operators under `vmap`: handled where the Python API is called, before dispatch.

Taken only where nothing can be missed: one level alone on the stack, plain payloads, no value of the level requires grad.
Everything else goes the long way, through dispatch.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.facts import register_facts
from ..core.level import recorded_below
from ..core.methods import register_method
from ..core.torch_private import (
    NoDispatch,
    make_wrapper,
    mode_count,
    saved_hooks,
)
from .level import Batched, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
STRIDED = torch.strided


UNARY = (
    "sin cos tan tanh exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sigmoid relu abs neg reciprocal square erf erfc sinh cosh "
    "asin acos atan asinh acosh atanh sign floor ceil round trunc"
)
BINARY = "add sub mul div true_divide maximum minimum atan2 pow"
OPERATORS = "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__"


def api_functions(names: str, *places: Any) -> list[Any]:
    """The functions of the Python API of these names."""
    return [getattr(place, name) for place in places for name in names.split() if hasattr(place, name)]


def meta_of(x: Batched) -> Any:
    """What the wrapper of a like result is made from, kept with the value; False if it cannot take the short way.

    A ninth entry says that the payload is not contiguous, so that a result has strides of its own (numbers have none).
    """
    p = x._payload
    if type(p) is not Tensor or not x._mapped or not p.is_floating_point():
        return False
    if p.dim() == 1:
        x._meta = made = numbers_like(p)
        return made
    made = (Batched, p.shape[1:], p.stride()[1:], None, None, p.dtype, STRIDED, p.device)
    x._meta = made = made if p.is_contiguous() else (*made, True)
    return made


_NUMBERS: dict[Any, Any] = {}


def numbers_like(p: Tensor) -> Any:
    """What the wrapper of one number a lane is made from, one object for all of a dtype and device."""
    key = p.dtype, p.device
    made = _NUMBERS.get(key)
    if made is None:
        made = _NUMBERS[key] = (Batched, p.shape[:0], (), None, None, p.dtype, STRIDED, p.device)
    return made


def direct(func: Any, *args: Any, held: bool = False) -> Any:
    """Call a function with dispatch to levels off."""
    if held:
        return func(*args)
    guard = NoDispatch()
    try:
        return func(*args)
    finally:
        del guard


def _sum_rows(func: Any, p: Tensor) -> Tensor:
    return func(p, 1) if p.dim() == 2 else func(p.flatten(1), 1)


def unary(func: Any, args: tuple[Any, ...]) -> Any:
    """A function of one real tensor: the result has the sizes, dtype and layout of the argument."""
    x = args[0]
    if len(args) != 1 or type(x) is not Batched:
        return None
    meta = x._meta or meta_of(x)
    level = x._level
    # `level.on_top()` and `wrap`, which are called too often to be called
    if not meta or not level.alive or level.tracked or saved_hooks(False) is not None:
        return None
    if level.held:
        out = func(x._payload)
    elif level.clear and mode_count() == level.depth:
        guard = NoDispatch()
        try:
            out = func(x._payload)
        finally:
            del guard
    else:
        return None
    if len(meta) > 8:
        return wrap(level, out, True)
    made: Any = make_wrapper(*meta)
    made._payload = out
    made._level = level
    made._meta = meta
    made._form = None
    return made


def binary(func: Any, args: tuple[Any, ...]) -> Any:
    """A function of two: mapped values of one size, or one with a number or a smaller constant."""
    if len(args) != 2:
        return None
    first, second = args
    x, y = (first, second) if type(first) is Batched else (second, first)
    if type(x) is not Batched:
        return None
    meta = x._meta or meta_of(x)
    level = x._level
    if not meta or not level.alive or level.tracked or saved_hooks(False) is not None:
        return None
    kind = type(y)
    if kind is Batched:
        other = y._meta or meta_of(y)
        if other is meta:
            same = True
        elif not other or other[5] is not meta[5] or len(other[1]) != len(meta[1]):
            return None
        else:
            same = other[1] == meta[1] and len(other) == 8
        if y._level is not level:
            return None
        first, second = first._payload, second._payload
    else:
        if kind is float or kind is int:
            same = True
        elif kind is Tensor or kind is Parameter:
            if y.dtype is not meta[5] or y.dim() > len(meta[1]) or not recorded_below(level, y):
                return None
            same = y.dim() == 0
        else:
            return None
        first, second = (x._payload, y) if x is first else (y, x._payload)
    if level.held:
        out = func(first, second)
    elif level.clear and mode_count() == level.depth:
        guard = NoDispatch()
        try:
            out = func(first, second)
        finally:
            del guard
    else:
        return None
    if not same or len(meta) > 8:
        return wrap(level, out, True)
    made: Any = make_wrapper(*meta)
    made._payload = out
    made._level = level
    made._meta = meta
    made._form = None
    return made


def total(func: Any, args: tuple[Any, ...]) -> Any:
    """`x.sum()` and `x.sum(d)` of a mapped value; means too."""
    x = args[0]
    if type(x) is not Batched:
        return None
    meta, level = x._meta or meta_of(x), x._level
    if not meta or not meta[1] or not level.on_top():
        return None
    if len(args) == 1:
        return wrap(level, direct(_sum_rows, func, x._payload, held=level.held), True)
    d, rank = args[1], len(meta[1])
    if len(args) != 2 or type(d) is not int or not -rank <= d < rank:
        return None
    return wrap(level, direct(func, x._payload, d + 1 if d >= 0 else d, held=level.held), True)


def repeat(func: Any, args: tuple[Any, ...]) -> Any:
    """`x.repeat(…)` with one int for each dimension."""
    x, *times = args
    if len(times) == 1 and type(times[0]) in (tuple, list, torch.Size):
        times = times[0]
    if type(x) is not Batched or not all([type(n) is int and n >= 0 for n in times]):
        return None
    meta, level = x._meta or meta_of(x), x._level
    if not meta or len(times) != len(meta[1]) or not level.on_top():
        return None
    return wrap(level, direct(func, x._payload, (1, *times), held=level.held), True)


def stack(func: Any, args: tuple[Any, ...]) -> Any:
    """`torch.stack` of mapped values of one size."""
    values = args[0]
    if len(args) != 1 or type(values) not in (list, tuple) or not values:
        return None
    level = None
    payloads = []
    for v in values:
        if type(v) is not Batched or not v._mapped or type(v._payload) is not Tensor:
            return None
        if level is None:
            level = v._level
        elif v._level is not level:
            return None
        payloads.append(v._payload)
    if level is None or not level.on_top():
        return None
    del func
    return wrap(level, direct(torch.stack, payloads, 1, held=level.held), True)


def register() -> None:
    """Fill the table of short ways, and give methods of mapped values theirs."""
    table = Batched._fast
    for name in UNARY.split():
        for func in api_functions(name, torch, Tensor):
            table[func] = unary
        register_method(Batched, name, unary)
    for name in BINARY.split():
        for func in api_functions(name, torch, Tensor):
            table[func] = binary
        register_method(Batched, name, binary)
    methods = {name: binary for name in OPERATORS.split()} | {
        "__neg__": unary, "__abs__": unary, "sum": total, "mean": total, "repeat": repeat,
    }  # fmt: skip
    for name, short in methods.items():
        table[getattr(Tensor, name)] = short
        register_method(Batched, name, short)
    table[torch.sum] = table[torch.mean] = total
    table[torch.stack] = stack


def sizes(x: Batched) -> Any:
    """The sizes of one lane's value."""
    return x._payload.shape[1:] if x._mapped else x._payload.shape


register()
register_facts(Batched, "_payload", sizes)
