"""`jvp(grad(f))` in the short way: reverse mode on the payloads of dual numbers.

With y + ε ẏ = f(x + ε v), the gradient and its derivative along v are those of two numbers by one variable:

    ∇f(x) = ∂y/∂x        ∇²f(x) v = ∂ẏ/∂x

(what f captured may have tangents too: ẏ has them all). So f runs once on dual numbers, which autograd records on plain
primals and tangents, and two backward passes run without dispatch. Where the function looks at the graph itself, has
a backward of its own, draws or writes, the attempt is given up and the gradient is recorded on the dual numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..batch.gradient import looks_at
from ..core import tree
from ..core.dead import reach_outside
from ..core.errors import REFUSALS
from ..core.level import THREAD, unseen
from ..core.source import code_of
from ..core.torch_private import NoFunction, autocast_on, pop_mode, push_mode
from ..core.traced import NeedsGraph
from ..core.untaken import run_backward
from .level import Constant, Dual, DualLevel, wrap

Tensor = torch.Tensor
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_GIVEN_UP: set[Any] = set()


def payload_level(func: Any, leaves: list[Any]) -> Any:
    """The level whose payloads can be differentiated instead of its values, or None."""
    levels = THREAD.levels
    if len(levels) != 1 or type(levels[0]) is not DualLevel or code_of(func) in _GIVEN_UP:
        return None
    level = levels[0]
    if level.open_graph or level.suspended or not level.on_top(THREAD.recorders) or not torch.is_grad_enabled() or autocast_on():
        return None
    for x in leaves:
        if type(x) is Dual:
            p, t = x._primal, x._tangent
            if x._level is not level or type(p) is not Tensor or not (t is None or type(t) is Tensor):
                return None
            if t is not None and t.is_inference():
                return None
        elif type(x) in _PLAIN and x.layout is torch.strided:
            p = x
        else:
            return None
        if p.is_complex() or p.is_neg() or p.is_inference():
            return None
    return level


def gradient(
    level: Any, leaves: list[Tensor], call: Callable[[list[Any]], tuple[Any, Any]], check: Callable[[Any], Tensor]
) -> tuple[list[Any], Any, Any, bool]:
    """Gradients with their tangents, output, aux, and whether the graph of the payloads is kept.

    `call` gets the new leaves and returns `(output, aux)`; `check` refuses an output that is no scalar.
    """
    with unseen(level):
        pairs = [(x._primal, x._tangent) if type(x) is Dual else (x, None) for x in leaves]
        connected = any(v is not None and v.requires_grad for pair in pairs for v in pair)
        inner = [p.view_as(p) if p.requires_grad else p.detach().requires_grad_() for p, _ in pairs]
    saw_grad, level.saw_grad = level.saw_grad, False
    level.payload_graphs += 1
    try:
        refused = REFUSALS.count
        result, aux = call([wrap(level, p, t) for p, (_, t) in zip(inner, pairs, strict=True)])
        beside = [a._primal for a in tree.flat(aux)[0] if type(a) is Dual]
        if REFUSALS.count != refused or looks_at(inner, beside) or Constant in map(type, beside):
            raise NeedsGraph(level)
        with NoFunction():
            y = check(result)
            value, moved = (y._primal, y._tangent) if type(y) is Dual and y._level is level else (y, None)
            if not value.requires_grad:
                return [None] * len(leaves), result, aux, False
            if type(value) is not Tensor or not (moved is None or type(moved) is Tensor):
                raise NeedsGraph(level)
            moved = moved if moved is not None and moved.requires_grad else None
            known: list[bool] = []
            ends = [value] if moved is None else [value, moved]
            keep = connected or reach_outside(ends, inner, known)
            with unseen(level):
                seed = torch.ones_like(value, requires_grad=False)
        pop_mode(None)
        try:
            slopes = run_backward((value,), (seed,), keep or moved is not None, keep, tuple(inner), known)
            curved = [None] * len(inner)
            if moved is not None:
                curved = run_backward((moved,), (seed,), keep, keep, tuple(inner), known)
        finally:
            push_mode(level)
        return [joined(level, g, t) for g, t in zip(slopes, curved, strict=True)], result, aux, keep
    finally:
        level.payload_graphs -= 1
        level.saw_grad = saw_grad


def joined(level: Any, slope: Any, curved: Any) -> Any:
    """A gradient as a dual number; None where there is none."""
    if slope is None and curved is None:
        return None
    if slope is None:
        with unseen(level):
            slope = torch.zeros_like(curved, requires_grad=False)
    return wrap(level, slope, curved)


def released(level: Any, value: Any) -> Any:
    """An output without the graph of its payloads."""
    if type(value) is not Dual or value._level is not level:
        return value
    p, t = value._primal, value._tangent
    if not (p.requires_grad or (t is not None and t.requires_grad)):
        return value
    with unseen(level):
        return wrap(level, p.detach(), None if t is None else t.detach())


def give_up(func: Any) -> None:
    """Remember that a function needs its graph."""
    code = code_of(func)
    if code is not None:
        _GIVEN_UP.add(code)
