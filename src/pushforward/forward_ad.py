"""Dual numbers by hand: `dual_level`, `make_dual`, `unpack_dual`.

with pf.forward_ad.dual_level():
    d = pf.forward_ad.make_dual(x, t)
    y, dy = pf.forward_ad.unpack_dual(d.sin())
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .core.errors import ArgumentError, TransformError
from .core.level import THREAD
from .core.words import instead, is_number, kind
from .forward.level import Dual, DualLevel, wrap_input

Tensor = torch.Tensor


class UnpackedDualTensor(NamedTuple):
    """Primal and tangent of a dual number; the tangent is None where there is none."""

    primal: Tensor
    tangent: Tensor | None


class dual_level:
    """A context in which dual numbers can be made; they are gone, with an error on use, when it closes.

    Example:
        >>> import torch
        >>> from pushforward import forward_ad as fwAD
        >>> with fwAD.dual_level():
        ...     d = fwAD.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        ...     fwAD.unpack_dual(d * d).tangent
        tensor(4.)
    """

    def __enter__(self) -> DualLevel:
        self.level = DualLevel()
        self.level.start()
        return self.level

    def __exit__(self, *_: object) -> None:
        self.level.stop()


def _innermost() -> DualLevel:
    for level in reversed(THREAD.levels):
        if isinstance(level, DualLevel):
            return level
    msg = "make_dual: no dual level is open; write `with pf.forward_ad.dual_level():` around it"
    raise TransformError(msg)


def checked_level(what: str, level: Any) -> DualLevel | None:
    """`level` is None or what `with dual_level() as level` gives."""
    if level is not None and not isinstance(level, DualLevel):
        msg = f"{what}: level is {kind(level)}; it must be None or the level of `with pf.forward_ad.dual_level() as level`"
        raise ArgumentError(msg)
    return level


def make_dual(primal: Tensor, tangent: Tensor, *, level: DualLevel | None = None) -> Tensor:
    """A dual number of the innermost level (or of `level`).

    Args:
        primal: a floating-point or complex tensor.
        tangent: of its shape, dtype and device.
        level: the level that the dual number belongs to; None for the innermost.

    Example:
        >>> import torch, pushforward as pf
        >>> with pf.forward_ad.dual_level():
        ...     d = pf.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        ...     pf.forward_ad.unpack_dual(d.exp()).tangent
        tensor([2.7183, 2.7183])
    """
    level = checked_level("make_dual", level) or _innermost()
    primal, tangent = (x._primal if type(x) is Dual and x._level is level else x for x in (primal, tangent))
    if not isinstance(primal, Tensor) or not isinstance(tangent, Tensor):
        name, other = ("tangent", tangent) if isinstance(primal, Tensor) else ("primal", primal)
        how = f": {instead(other)}" if is_number(other) else ""
        msg = f"make_dual: the {name} is {kind(other)}; primal and tangent must be tensors{how}"
        raise ArgumentError(msg)
    if primal.shape != tangent.shape or primal.dtype != tangent.dtype or primal.device != tangent.device:
        msg = (
            f"make_dual: the primal is {list(primal.shape)} {primal.dtype} on {primal.device}, the tangent "
            f"{list(tangent.shape)} {tangent.dtype} on {tangent.device}; they must agree"
        )
        raise ArgumentError(msg)
    if not (primal.is_floating_point() or primal.is_complex()):
        msg = f"make_dual: the primal is {primal.dtype}; only floating-point and complex tensors have tangents"
        raise ArgumentError(msg)
    return wrap_input(level, primal, tangent)


def unpack_dual(tensor: Tensor, *, level: DualLevel | None = None) -> UnpackedDualTensor:
    """Primal and tangent of a value of the innermost level (or of `level`); a plain tensor has no tangent.

    Example:
        >>> import torch, pushforward as pf
        >>> with pf.forward_ad.dual_level():
        ...     pf.forward_ad.unpack_dual(torch.ones(1))
        UnpackedDualTensor(primal=tensor([1.]), tangent=None)
    """
    if not isinstance(tensor, Tensor):
        msg = f"unpack_dual: tensor must be a tensor, but is {kind(tensor)}"
        raise ArgumentError(msg)
    given = checked_level("unpack_dual", level)
    if type(tensor) is Dual:
        if not tensor._level.alive:
            tensor._escaped(torch.ops.aten.alias.default, (), {})
        if tensor._level is (given or _innermost()):
            return UnpackedDualTensor(tensor._primal, tensor._tangent)
    return UnpackedDualTensor(tensor, None)


__all__ = ["UnpackedDualTensor", "dual_level", "make_dual", "unpack_dual"]
