"""Numbers looked at: whether gradients are finite, whether a mask is true anywhere.

Not while a program is recorded, not on another device than the CPU (it would be waited for), and never as a question
that lanes could answer differently: the payloads are read, with all their lanes.
"""

from __future__ import annotations

from typing import Any

import torch

from .level import THREAD, Level
from .torch_private import BelowAutograd, NoDispatch, jit_tracing, mode_at, mode_count, modes_above_autograd
from .traced import Traced

Tensor = torch.Tensor
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
SMALL = 1 << 16  # elements


def visible(values: Any, *, wait: bool = False) -> bool:
    """Whether the numbers of some values can be looked at, without waiting (but with `wait`) and without anybody recording it."""
    for k in range(THREAD.recorders, mode_count()):
        if not isinstance(mode_at(k), Level):
            return False
    if modes_above_autograd() or jit_tracing():
        return False
    for x in values:
        while isinstance(x, Traced):
            x = x._below()  # pyright: ignore[reportAttributeAccessIssue]
        if type(x) not in _PLAIN or not (x.is_cpu or (wait and not x.is_meta)):
            return False
    return True


def small(values: Any) -> bool:
    """Whether gradients take so little memory that the graph may be kept until all are there."""
    total = 0
    for x in values:
        total += x.numel()
    return total <= SMALL


def payloads(x: Any) -> list[Any]:
    """The plain tensors of a value: of a dual number its primal's and its tangent's."""
    if not isinstance(x, Traced):
        return [x]
    tangent = getattr(x, "_tangent", None)
    below = payloads(x._below())  # pyright: ignore[reportAttributeAccessIssue]
    return below if tangent is None else below + payloads(tangent)


def finite(grads: Any) -> bool:
    """Whether there is no NaN in gradients, nor in what a level knows of their derivatives."""
    for g in grads:
        if g is None:
            continue
        if type(g) is Tensor and g.layout is torch.strided and not mode_count() and not g.requires_grad:
            total = g.sum().item()
            if total - total != 0 and g.isnan().any().item():
                return False
            continue
        with NoDispatch(), BelowAutograd():
            for p in payloads(g):
                if p.layout is torch.strided and not p._is_zerotensor() and p.isnan().any().item():
                    return False
    return True


def kept(mask: Any, looking: bool) -> Any:
    """A mask, or None where it can be seen that it has no dead element."""
    if mask is None or not looking:
        return mask
    if type(mask) is Tensor and mask.device.type == "cpu":
        with NoDispatch():
            return mask if mask.any().item() else None
    if not visible((mask,)):
        return mask
    with NoDispatch():
        return mask if any(bool(p.any()) for p in payloads(mask)) else None
