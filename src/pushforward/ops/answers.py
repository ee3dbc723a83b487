"""Python's questions of tensors: `.item()`, `bool(x)`, `equal`.

The lanes that give another answer split off (see `batch.lanes`).

A number that Python has seen has no derivative: a level of dual numbers says so once per line.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Constant, Decomposed, Special
from .lanes import in_front
from .table import row

Tensor = torch.Tensor


def batch_item(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The answer of the largest group of lanes."""
    del op, mapped, kwargs
    x = args[0]
    return level.agree(x if x.dim() == 1 else x.reshape(level.size))


def tangent_item(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The primal's number; the level says that the tangent is lost."""
    del tangents, kwargs
    level.lose(".item(), float() or the like")
    return op(primals[0]), None


def batch_equal(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> bool:
    """equal: sizes and all elements."""
    del op, kwargs
    x, y = args
    if (x.shape[1:] if mapped[0] else x.shape) != (y.shape[1:] if mapped[1] else y.shape):
        return False
    same = in_front(x, mapped[0], level.size) == in_front(y, mapped[1], level.size)
    return bool(level.agree(same.flatten(1).all(1) if same.dim() > 1 else same))


def tangent_equal(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """equal of the primals: nothing that could have been differentiated."""
    del level, tangents
    return op(*primals, **kwargs), None


def batch_assert(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """An assertion holds if it does in every lane that the run is for; the functional form hands its last argument on."""
    del kwargs
    token = op((args[0] != 0).all(), *args[1:])
    return in_front(token, False, level.size) if isinstance(token, Tensor) and not mapped[-1] else token


def batch_left_aligned(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> bool:
    """_nested_tensor_from_mask_left_aligned: whether no row of the mask has data behind a place without."""
    del op, kwargs
    mask = in_front(args[1], mapped[1], level.size).bool()
    aligned = ~(mask[..., 1:] & ~mask[..., :-1]).flatten(1).any(1)
    return bool(level.agree(aligned, empty=True))


row("_nested_tensor_from_mask_left_aligned", Special(), batch=batch_left_aligned)
row("_local_scalar_dense", Special(), batch=batch_item, tangent=tangent_item)
row("equal", Special(), batch=batch_equal, tangent=tangent_equal)
row("_assert_async _functional_assert_async", Constant(), batch=batch_assert)
row("allclose", Decomposed(lambda x, y, *how, **kw: bool(torch.isclose(x, y, *how, **kw).all())))
row("is_nonzero", Decomposed(lambda x: bool((x != 0).item())))
