"""Lanes as samples, channels or features: where the mapped dimension goes in operators that have a batch already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
Rule = Callable[..., Any]


def in_front(x: Tensor, mapped: bool, size: int) -> Tensor:
    """`x` with the mapped dimension in front, spread over the lanes if it had none."""
    return x if mapped else x.unsqueeze(0).expand(size, *x.shape)


def all_in_front(args: list[Any], mapped: Any, size: int) -> list[Any]:
    """Every tensor among `args` with the mapped dimension in front."""
    return [in_front(a, m, size) if isinstance(a, Tensor) else a for a, m in zip(args, mapped, strict=True)]


def behind(x: Tensor, mapped: bool, rank: int) -> Tensor:
    """`x` lined up with values `[lanes, *rank dimensions]` by new dimensions behind the mapped one."""
    if not mapped:
        return x
    return x.reshape(x.shape[0], *[1] * (rank - x.dim() + 1), *x.shape[1:])


def merged(x: Tensor) -> Tensor:
    """`[lanes, N, …]` as `[lanes · N, …]`."""
    return x.flatten(0, 1)


def parted(x: Tensor, size: int, n: int) -> Tensor:
    """`[lanes · n, …]` as `[lanes, n, …]`."""
    return x.reshape(size, n, *x.shape[1:])


def merged_at(x: Tensor, dim: int) -> Tensor:
    """`[lanes, …, n at dim, …]` with the lanes joined to the logical dimension `dim`: `[…, lanes · n, …]`."""
    return x.movedim(0, dim).flatten(dim, dim + 1)


def parted_at(x: Tensor, dim: int, size: int) -> Tensor:
    """The inverse of `merged_at`."""
    n = x.shape[dim] // size if size else 0
    return x.reshape(*x.shape[:dim], size, n, *x.shape[dim + 1 :]).movedim(dim, 0)


def empty_result(op: Any, values: list[Any], flags: Any, kwargs: dict[str, Any]) -> Any:
    """The result for no lanes at all: shapes are learnt from one lane of ones, or of zeros where they are integers."""
    padded = []
    for v, f in zip(values, flags, strict=True):
        if f is True:
            padded.append(stand_in(v))
        elif f is False or not any(f):
            padded.append(v)
        else:
            padded.append([stand_in(x) if m else x for x, m in zip(v, f, strict=True)])
    mapped = getattr(flags, "keywords", ())
    kw = {k: stand_in(v) if k in mapped else v for k, v in kwargs.items()}
    out = op(*padded, **kw)
    if isinstance(out, Tensor):
        return out.new_empty((0, *out.shape))
    if isinstance(out, (list, tuple)):
        return type(out)(o.new_empty((0, *o.shape)) if isinstance(o, Tensor) else o for o in out)
    return out


def stand_in(x: Tensor) -> Tensor:
    """A lane where there is none."""
    shape = x.shape[1:]
    return x.new_ones(shape) if x.is_floating_point() or x.is_complex() else x.new_zeros(shape)


def some_lanes(rule: Rule) -> Rule:
    """`rule`, spared the case of no lanes at all, which kernels of fixed geometry refuse."""

    @functools.wraps(rule)
    def guarded(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        return rule(op, level, args, mapped, kwargs) if level.size else empty_result(op, args, mapped, kwargs)

    return guarded


def over_samples(rank: int) -> Rule:
    """A batching rule for operators on `[N, …]` of `rank` dimensions (one less without N) that treat the samples alike.

    The lanes join N, or stand for it. A size argument called `input_size` counts N too.
    """

    @some_lanes
    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        size = level.size
        moved = [a.contiguous() if isinstance(a, Tensor) else a for a in all_in_front(args, mapped, size)]
        first = next(a for a in moved if isinstance(a, Tensor))
        if first.dim() - 1 not in (rank, rank - 1):
            msg = f"{op.name()}: expected {rank - 1} or {rank} dimensions, but got {first.dim() - 1}"
            raise RuntimeError(msg)
        n, join = first.shape[1], first.dim() - 1 == rank
        if join:
            moved = [merged(a) if isinstance(a, Tensor) else a for a in moved]
            for k, arg in enumerate(op._schema.arguments[: len(moved)]):
                if arg.name == "input_size":
                    moved[k] = [size * moved[k][0], *moved[k][1:]]
        out = op(*moved, **kwargs)
        if not join:
            return out
        return (
            parted(out, size, n)
            if isinstance(out, Tensor)
            else tuple(parted(o, size, n) if isinstance(o, Tensor) else o for o in out)
        )

    return rule


@some_lanes
def as_it_is(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """A batching rule for operators that work on the last dimensions and leave any others alone."""
    return op(*all_in_front(args, mapped, level.size), **kwargs)
