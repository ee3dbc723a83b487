"""Short ways of products under `jvp`: matrices, vectors, layers; see `fast`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..core.level import recorded_below
from ..core.torch_private import NoDispatch
from .fast import ready, register_method, wrap_plain
from .fast_arithmetic import general, register_overloads
from .level import Dual

Tensor = torch.Tensor
Parameter = torch.nn.Parameter


def of_matmul(func: Any, x: Any, dx: Any, y: Any, dy: Any, out: Tensor) -> Tensor:
    """The operator itself with each factor's tangent."""
    del out
    if dx is None:
        return func(x, dy)
    return func(dx, y) if dy is None else func(dx, y) + func(x, dy)


def operands(args: tuple[Any, ...]) -> Any:
    """(level, primals, tangents) of plain operands, or None."""
    level, primals, tangents = None, [], []
    for v in args:
        kind = type(v)
        if kind is Dual:
            if level is not None and v._level is not level:
                return None
            level, p, t = v._level, v._primal, v._tangent
            if type(p) is not Tensor or (t is not None and type(t) is not Tensor):
                return None
            primals.append(p)
            tangents.append(t)
        elif v is None or kind is Tensor or kind is Parameter:
            primals.append(v)
            tangents.append(None)
        else:
            return None
    if level is None or not ready(level):
        return None
    for v in args:
        if v is not None and type(v) is not Dual and v.requires_grad and not recorded_below(level, v):
            return None
    return level, primals, tangents


def linear(func: Any, args: tuple[Any, ...]) -> Any:
    """`F.linear`: x Wᵀ + b."""
    found = operands(args)
    if found is None:
        return None
    level, primals, (dx, dw, *rest) = found
    if dx is None and dw is None:
        return None
    x, w, db = primals[0], primals[1], rest[0] if rest else None
    guard = NoDispatch()
    try:
        out = func(*primals)
        t = func(x, dw, db) if dx is None else func(dx, w, db)
        if dx is not None and dw is not None:
            t = t.add_(func(x, dw))
    finally:
        del guard
    return wrap_plain(level, out, t)


def product(func: Any, args: tuple[Any, ...]) -> Any:
    """A product of two matrices or vectors."""
    if len(args) != 2:
        return None
    a, b = args
    if type(b) is Dual and type(a) is Tensor:
        level, p, t = b._level, b._primal, b._tangent
        plain = type(p) is Tensor and type(t) is Tensor and ready(level)
        if plain and (not a.requires_grad or recorded_below(level, a)):
            guard = NoDispatch()
            try:
                out, t = func(a, p), func(a, t)
            finally:
                del guard
            return wrap_plain(level, out, t)
    found = operands(args)
    if found is None:
        return mapped_product(func, args)
    level, (a, b), (da, db) = found
    if da is None and db is None:
        return None
    guard = NoDispatch()
    try:
        out = func(a, b)
        t = func(a, db) if da is None else func(da, b)
        if da is not None and db is not None:
            t = t.add_(func(a, db))
    finally:
        del guard
    return wrap_plain(level, out, t)


mapped_product = general(of_matmul)


def reversed_product(func: Any, args: tuple[Any, ...]) -> Any:
    """`plain @ dual`, which comes to the dual number first."""
    del func
    return product(torch.matmul, (args[1], args[0]))


def register() -> None:
    """Fill the table of short ways."""
    table = Dual._fast
    table[F.linear] = linear
    for func in (torch.matmul, torch.mv, torch.mm, torch.dot):
        table[func] = product
    for name in ("matmul", "mv", "mm", "dot", "__matmul__", "__rmatmul__"):
        table[getattr(Tensor, name)] = product
        register_method(name, reversed_product if name == "__rmatmul__" else product)
    register_overloads({"mv": "default", "mm": "default", "dot": "default"})


register()
