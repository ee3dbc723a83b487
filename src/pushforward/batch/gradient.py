"""`vmap(grad(f))` in the short way: lanes do not mix, so the gradients of all lanes are the gradient of the sum over lanes.

The graph is then recorded by autograd on plain payloads, and the backward pass runs without dispatch. Where the function looks at
the graph itself (hooks, `.grad_fn`, `torch.autograd.grad`, checkpointing), the attempt is given up and the function runs again with a
graph on the mapped values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core import transposing as _transposing  # noqa: F401  (what the user's calls of the engine mean)
from ..core import tree
from ..core.dead import reach_outside
from ..core.errors import REFUSALS
from ..core.fresh import give_back
from ..core.level import THREAD, unseen
from ..core.source import code_of
from ..core.torch_private import NoFunction, nodes_made, pop_mode, push_mode
from ..core.traced import SPECIAL, NeedsGraph
from ..core.untaken import run_backward
from .level import Batched, BatchLevel, wrap
from .settle import refresh_all

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_GIVEN_UP: set[Any] = set()


class LanesTogether(NeedsGraph):
    """A branch that some lanes do not take may be what made a NaN: a graph of each lane's own values can tell."""


def lanes_together(level: Any) -> None:
    """Give up where a NaN is left."""
    raise LanesTogether(level)


def payload_level(func: Any, leaves: list[Any]) -> Any:
    """The level whose payloads can be differentiated instead of its values, or None."""
    levels = THREAD.levels
    if len(levels) != 1 or code_of(func) in _GIVEN_UP:
        return None
    level = levels[0]
    if type(level) is not BatchLevel:
        return None
    for x in leaves:
        if type(x) is Batched:
            p = x._payload
            if x._level is not level or not x._mapped or x._cell is not None or type(p) is not Tensor:
                return None
        elif (type(x) is Tensor or type(x) is Parameter) and x.layout is torch.strided:
            p = x
        else:
            return None
        if p.is_conj() or p.is_neg() or p.is_inference():
            return None
    return level if level.on_top(THREAD.recorders) and torch.is_grad_enabled() else None


def gradient(
    level: Any, leaves: list[Tensor], call: Callable[[list[Any]], tuple[Any, Any]], check: Callable[[Any], Tensor]
) -> tuple[list[Any], Any, Any, bool]:
    """Gradients by mapped leaves, output, aux, and whether the graph of the payloads is kept.

    `call` gets the new leaves and returns `(output, aux)`; `check` refuses an output that is no scalar.
    """
    with unseen(level):  # a value that all lanes share gets a derivative for each: seen B times, not copied
        payloads = [x._payload if type(x) is Batched else x.unsqueeze(0).expand(level.size, *x.shape) for x in leaves]
        connected = any(p.requires_grad for p in payloads)
        inner = [p.view_as(p) if p.requires_grad else p.detach().requires_grad_() for p in payloads]
    saw_grad, level.saw_grad = level.saw_grad, False
    level.payload_graphs += 1
    began, nodes = level, nodes_made()
    try:
        values = [wrap(level, p, True) for p in inner]
        refused = REFUSALS.count
        result, aux = call(values)
        level = level.newest()  # lanes may have left
        if REFUSALS.count != refused or looks_at(inner, [v._payload for v in tree.flat(aux)[0] if type(v) is Batched]):
            raise NeedsGraph(level)
        with NoFunction():
            y = check(result)
            refresh_all([y])
            scores = y._payload if type(y) is Batched and y._level is level and y._mapped else None
            if scores is None or not scores.requires_grad:
                written_back(began, leaves, values, inner, False)
                return [None] * len(leaves), result, aux, False
            known: list[bool] = []
            keep = connected or reach_outside([scores], inner, known)
            with unseen(level):
                seed = torch.ones_like(scores)
        pop_mode(None)
        try:
            grads = run_backward((scores,), (seed,), keep, keep, tuple(inner), known, lambda: lanes_together(level), nodes)
        finally:
            push_mode(level)
        written_back(began, leaves, values, inner, keep)
        return [None if g is None else wrap(began, g, True) for g in grads], result, aux, keep
    finally:
        level = level.newest()
        level.payload_graphs -= 1
        level.saw_grad = saw_grad


def written_back(level: Any, leaves: list[Any], values: list[Any], inner: list[Tensor], keep: bool) -> None:
    """Write into the arguments what the function wrote into the values in their place."""
    for x, value, p in zip(leaves, values, inner, strict=True):
        root = value._payload if value._cell is None else value._cell.root[0]
        if root is not p and level.successor is None:
            give_back(x, wrap(level, root if keep else root.detach(), True), keep)


def released(level: Any, value: Any) -> Any:
    """An output without the graph of its payload."""
    if type(value) is Batched and value._level.newest() is level.newest() and value._payload.requires_grad:
        with unseen(level):
            plain = value._payload.detach()
        return wrap(value._level, plain, value._mapped)
    return value


def give_up(func: Any) -> None:
    """Remember that a function looks at its graph."""
    code = code_of(func)
    if code is not None:
        _GIVEN_UP.add(code)


def looks_at(inputs: list[Tensor], others: list[Any]) -> bool:
    """Whether one of some plain tensors shares memory with an input: a write to it would be one to the argument."""
    if not others:
        return False
    known = {p.untyped_storage()._cdata for p in inputs}
    return any(type(o) is Tensor and o.layout is torch.strided and o.untyped_storage()._cdata in known for o in others)


def _watched(previous: Any) -> Any:
    def special(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        for level in THREAD.levels:
            if level.payload_graphs or level.hidden:
                raise NeedsGraph(level)
        return previous(func, args, kwargs) if previous is not None else NotImplemented

    return special


def _requires_grad(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """`x.requires_grad`: true where the payload is recorded in place of the value."""
    del kwargs
    x = args[0]
    level = x._level
    return func(x) or ((level.hidden or level.payload_graphs > 0) and x._below().requires_grad)


def watch() -> None:
    """Give up an attempt where the graph of a mapped value is looked at."""
    looks = [
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        Tensor.retain_grad,
        Tensor.backward,
        Tensor.requires_grad_,
        torch.autograd.grad,
        torch.autograd.backward,
    ]
    looks += [getattr(Tensor, name).__get__ for name in ("grad_fn", "is_leaf", "grad", "_version", "output_nr")]
    looks += [getattr(Tensor, name).__set__ for name in ("requires_grad", "grad")]
    for func in looks:
        SPECIAL[func] = _watched(SPECIAL.get(func))
    SPECIAL[Tensor.requires_grad.__get__] = _requires_grad  # type: ignore[attr-defined]


watch()
