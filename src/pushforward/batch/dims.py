"""Dimensions that an operator is told are those of one lane: one too many is an error, and not the mapped dimension.

A rule gets payloads, which have one dimension more than the lane, and counts dimensions by remainder. So what torch
checks for one lane is checked here before any rule runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ops.table import Entry
from .shapes import CHECKS, Lane

Tensor = torch.Tensor
Rule = Callable[[Any, Any, list[Any], Any, dict[str, Any]], Any]
NAMES = frozenset({"dim", "dims", "dim0", "dim1", "dim2", "dimension"})
INTS = frozenset({"int", "Optional[int]", "List[int]", "Optional[List[int]]"})
OF_OTHERS = frozenset({"linalg_cross", "slice_inverse", "cosine_similarity"})  # not of the first argument as it is
ONE_MORE = frozenset({"stack", "unsqueeze", "unsqueeze_copy", "diag_embed"})
OF_SOME = frozenset({"select", "unbind", "split", "split_with_sizes"})  # a tensor without dimensions has none to take


def places_of(e: Entry) -> list[int]:
    """Which arguments are dimensions of the first one."""
    arguments = e.op._schema.arguments
    if e.op.namespace != "aten" or "backward" in e.name or e.name in OF_OTHERS or not arguments:
        return []
    if str(arguments[0].type) not in ("Tensor", "List[Tensor]"):
        return []
    return [k for k, a in enumerate(arguments) if a.name in NAMES and str(a.type) in INTS]


def rank_of(x: Any, mapped: Any) -> int:
    """The rank of one lane; of a list, that of its largest element."""
    if isinstance(x, Tensor):
        return x.dim() - bool(mapped)
    return max((v.dim() - bool(m) for v, m in zip(x, mapped, strict=True)), default=0)


def checked(e: Entry, rule: Rule) -> Rule:
    """`rule`, for dimensions that one lane has."""
    places, more = places_of(e), int(e.name in ONE_MORE)
    some = e.name in OF_SOME
    special, fitting = SPECIAL_CHECKS.get(e.name), CHECKS.get(e.name)
    if fitting is not None:
        rule = fitted(fitting, rule)
    if not places and special is None:
        return rule

    def guarded(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        rank = rank_of(args[0], mapped[0])
        if special is not None:
            special(rank, args)
        if some and not rank:
            msg = f"{op.name()} cannot be applied to a tensor without dimensions"
            raise IndexError(msg)
        span = max(rank + more, 1)
        for k in places:
            if k < len(args):
                d = args[k]
                for n in (d,) if type(d) is int else d or ():
                    if not -span <= n < span:
                        msg = f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {n})"
                        raise IndexError(msg)
        return rule(op, level, args, mapped, kwargs)

    return guarded


def fitted(check: Callable[[Lane], None], rule: Rule) -> Rule:
    """`rule`, for shapes that one lane may have."""

    def guarded(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        check(Lane(op, args, mapped, kwargs))
        return rule(op, level, args, mapped, kwargs)

    return guarded


def check_matrix(rank: int, args: list[Any]) -> None:
    """tril, triu."""
    del args
    if rank < 2:
        msg = f"expected a tensor with at least 2 dimensions, but got {rank}"
        raise RuntimeError(msg)


def check_expand(rank: int, args: list[Any]) -> None:
    """New dimensions of `expand` have sizes."""
    sizes = args[1]
    if len(sizes) < rank or -1 in list(sizes[: len(sizes) - rank]):
        msg = f"expand: the sizes {list(sizes)} do not fit a tensor of {rank} dimensions; a new dimension cannot be -1"
        raise RuntimeError(msg)


def check_pad(rank: int, args: list[Any]) -> None:
    """Each padded dimension is one of the lane's."""
    if len(args[1]) > 2 * rank:
        msg = f"pad: {len(args[1])} numbers were given, two for each dimension, but there are {rank} dimensions"
        raise RuntimeError(msg)


SPECIAL_CHECKS: dict[str, Callable[[int, list[Any]], None]] = {
    "tril": check_matrix,
    "triu": check_matrix,
    "expand": check_expand,
    "constant_pad_nd": check_pad,
}
