"""The short way for small operators under `jvp`: value and tangent where the Python API is called, before dispatch.

Taken only where nothing can be missed: this level on top, at most one `vmap` below it, plain primals, tangents that are plain or
mapped by that `vmap`, nothing that requires grad, no `no_grad` of the user's. The derivatives are those of the table's rows.

Methods of dual numbers come here straight from Python (`register_method`), which saves the way through torch's argument parser.
This module has what all short ways share; `fast_arithmetic` and `fast_moves` have the short ways.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch.level import Batched, BatchLevel
from ..batch.level import wrap as wrap_rows
from ..core import methods
from ..core.facts import register_facts
from ..core.level import THREAD, is_grad_enabled
from ..core.torch_private import (
    NoDispatch,
    autocast_on,
    make_wrapper,
    mode_count,
    saved_hooks,
)
from ..core.traced import HELD, NotFast
from .level import Dual, wrap

Tensor = torch.Tensor
STRIDED = torch.strided


# -- what all short ways share -----------------------------------------------------------------------------------------


def ready(level: Any) -> bool:
    """Whether an operator called now is for this level alone, and gives what its name says."""
    return (
        level.depth == 1
        and level.alive
        and level.clear
        and not level.tracked
        and not level.suspended
        and mode_count() == 1
        and saved_hooks(False) is None
        and is_grad_enabled()
        and not autocast_on()
    )


def compute(level: Any, function: Any, *args: Any, view: bool = False) -> Any:
    """`function(*args)` on payloads with dispatch off, giving (out, tangent); None where the long way must be taken.

    The pair is wrapped, but for a view, which its base wraps.
    """
    if not (level.on_top() and is_grad_enabled() and not level.suspended):
        return None
    below = None
    if level.depth > 1:
        below = THREAD.levels[-2]
        if level.depth > 2 or type(below) is not BatchLevel or below.tracked or not below.alive:
            return None
        below.held = True
        HELD.levels += 1
    guard = NoDispatch()
    try:
        out, tangent = function(*args)
    except NotFast:
        return None
    finally:
        del guard
        if below is not None:
            below.held = False
            HELD.levels -= 1
    if tangent is None or view:
        return (out, tangent) if view else None
    made = wrap(level, out, tangent)
    if below is not None:
        made._loose = True
    return made


def ready_over(level: Any, tangent: Any) -> Any:
    """Level and payload of a mapped tangent, if an operator called now is for `level` alone and they are plain; else None."""
    if type(tangent) is not Batched or level.depth != 2 or level.suspended or not level.on_top() or not is_grad_enabled():
        return None
    below = THREAD.levels[0]
    if type(below) is not BatchLevel or tangent._level is not below or below.tracked or not below.alive:
        return None
    t = tangent._payload
    if not tangent._mapped or type(t) is not Tensor or t.requires_grad or not t.is_floating_point() or not t.is_contiguous():
        return None
    return None if autocast_on() else (below, t)


def like_over(level: Any, out: Tensor, below: Any, rows: Tensor, meta: Any) -> Dual:
    """As `like`, with a mapped tangent."""
    made = like(level, out, wrap_rows(below, rows, True), meta)
    made._loose = True
    return made


def meta_of(x: Dual) -> Any:
    """What the wrapper of a like result is made from, kept with the value; False if results have a layout of their own."""
    p = x._primal
    if type(p) is not Tensor or not p.is_floating_point() or p.layout is not torch.strided or not p.is_contiguous():
        x._meta = False
        return False
    made = (Dual, p.shape, p.stride(), None, None, p.dtype, STRIDED, p.device)
    x._meta = made
    return made


def like(level: Any, out: Tensor, tangent: Tensor | None, meta: Any) -> Dual:
    """A result of the sizes, strides and dtype that `meta` tells."""
    made: Any = make_wrapper(*meta)
    made._primal = out
    made._tangent = tangent
    made._level = level
    made._meta = meta
    made._form = None
    return made


def wrap_plain(level: Any, out: Tensor, tangent: Tensor) -> Dual:
    """A floating-point result of any layout; what its likes are made from is kept at once."""
    if out.is_contiguous():
        return like(level, out, tangent, (Dual, out.shape, out.stride(), None, None, out.dtype, STRIDED, out.device))
    return wrap(level, out, tangent)


_NUMBERS: dict[Any, Tensor] = {}
WIDTHS = {torch.float32: (1 << 24, 3e38), torch.float64: (1 << 53, 1e308)}  # exact integers, and what is not infinite


def number(value: Any, meta: Any) -> Any:
    """A number as a tensor without dimensions, kept: torch makes one in every call, which takes as long as the arithmetic."""
    found = _NUMBERS.get((value, meta[5]))
    return kept_number(value, meta[5]) if found is None else found


def kept_number(value: Any, dtype: torch.dtype) -> Any:
    """Keep a number, unless a tensor of that dtype would be another one (−0 and 0 are one key)."""
    exact, finite = WIDTHS.get(dtype, (0, 0.0))
    if not 0 < abs(value) < (exact if type(value) is int else finite):
        return value
    if len(_NUMBERS) >= 256:
        _NUMBERS.clear()
    with NoDispatch(), torch.inference_mode(False):
        made = _NUMBERS[value, dtype] = torch.tensor(value, dtype=dtype, device="cpu")
    return made


def shape_and_dtype(t: Any) -> tuple[Any, Any]:
    """Logical sizes and dtype of a plain or mapped tangent."""
    if type(t) is Batched:
        return (t._payload.shape[1:] if t._mapped else t._payload.shape), t._payload.dtype
    return t.shape, t.dtype


def plain_dual(x: Any) -> bool:
    """Whether a dual number has a plain primal, and a tangent of a kind the short way knows."""
    t = x._tangent
    if type(x._primal) is not Tensor:
        return False
    return t is None or type(t) is Tensor or (type(t) is Batched and t._mapped and type(t._payload) is Tensor)


def register_method(name: str, short: Any) -> None:
    """Let a method or an operator of dual numbers take a short way."""
    methods.register_method(Dual, name, short)


register_facts(Dual, "_primal", lambda x: x._primal.shape)
