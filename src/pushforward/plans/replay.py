"""Finding plans, making them, running them."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import torch

from ..core import traced
from ..core.level import THREAD, is_grad_enabled
from ..core.torch_private import NoFunction, autocast_on, graph_task_id, mode_count, no_modes, own_duals, saved_hooks
from ..core.traced import NO_PLAN, TooLarge, Traced
from .describe import add, repeated
from .record import LARGE, TWICE, Unplanned, parts_of, recorded
from .write import C_FUNCTIONS, written

Tensor = torch.Tensor
PLANS: dict[Any, Any] = {}  # by function: its plans by key, or False where it is never planned
SEEN = object()  # a key met once
MOST = 256  # keys of one function: more, and its arguments are no pattern
CHECKED = False  # tests: plan at once, and use the plan's result


def planned(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, long_way: Any, e: Any = None, level: Any = None
) -> Any:
    """The result of a call of torch's API by its plan, or by the long way where that records one; else `NO_PLAN`.

    With an entry of the table it is an operator that has reached `level`, whose handler is the long way.
    """
    below = e is not None
    plans = e.plans if below else PLANS.get(func)
    if plans is False or (plans is None and not below and not plannable(func)):
        return NO_PLAN
    levels = THREAD.levels
    if not levels:
        return NO_PLAN
    top = levels[-1]
    if not top.clear or not top.alive or autocast_on() or own_duals._current_level >= 0:
        return NO_PLAN
    depth = top.depth
    if len(levels) != depth or mode_count() != (depth - 1 if below else depth) or (below and level is not top):
        return NO_PLAN
    grad = is_grad_enabled()
    key: list[Any] = [
        top.stack, len(args), THREAD.order, grad, grad or graph_task_id() == -1, torch.get_default_dtype()
    ]  # fmt: skip
    for v in levels:
        if v.suspended or v.complex or (v.tracked and not (below and v is top)):
            return NO_PLAN  # a graph on values of a level is recorded above it
    leaves: list[Tensor] = []
    values: list[Any] = []
    for a in args:
        if not add(a, key, leaves, values, levels):
            return NO_PLAN
    if kwargs:
        for name, a in kwargs.items():
            key.append(name)
            if not add(a, key, leaves, values, levels):
                return NO_PLAN
    needed = [x.requires_grad for x in leaves]
    recording = False
    if True in needed:
        key.append(tuple(needed))
        recording = grad
    if recording and (below or any(v.open_graph for v in levels) or saved_hooks(False) is not None):
        return NO_PLAN  # the long way knows what is recorded where, and what a hook is shown
    if len(leaves) > 1:
        key.append(leaves[0] is leaves[1] if len(leaves) == 2 else repeated(leaves))
    known = tuple(key)
    plan = None if plans is None else plans.get(known)
    if plan is None or plan is SEEN:
        if plans is None:
            plans = {}
            if below:
                e.plans = plans
            else:
                PLANS[func] = plans
        if (plan is None and len(plans) >= MOST) or any(
            [x.numel() > (TWICE if recording else LARGE) for x in leaves]
        ):
            return NO_PLAN
        if plan is None and not CHECKED:
            plans[known] = SEEN
            return NO_PLAN
        if below and e.op.namespace != "aten":
            plans[known] = False  # an operator of the user's: its rules are code that may depend on anything
            return NO_PLAN
        if below:
            long_way = partial(handled, level, e)
        return first_run(func, args, kwargs, long_way, plans, known, leaves, values, below, recording)
    if plan is False:
        return NO_PLAN
    if below and any(not v._level.tracked and v.requires_grad for v in values):
        return NO_PLAN  # the handler closes the short ways
    if top.most is not None and plan.largest > top.most:
        raise TooLarge
    if recording:
        for v in levels:
            v.saw_grad = True
    for k in plan.hidden:
        levels[k].hidden = True
    try:
        return plan(leaves, values, levels)
    except (RuntimeError, IndexError):
        return NO_PLAN  # the long way says what is wrong


def handled(level: Any, e: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The long way of an operator that has reached a level."""
    return level.handle(e, func, args, kwargs)


def plannable(func: Any) -> bool:
    """Whether a function is torch's own, and not one that only passes through `__torch_function__`."""
    if isinstance(func, C_FUNCTIONS):
        return True
    return isinstance(func, types.FunctionType) and (func.__module__ or "").startswith("torch.")


def first_run(
    func: Any,
    args: Any,
    kwargs: Any,
    long_way: Any,
    plans: dict[Any, Any],
    key: Any,
    leaves: list[Any],
    values: list[Any],
    below: bool,
    recording: bool,
) -> Any:
    """Run the long way, and keep the plan of what it did."""
    plans[key] = False
    out, recorder = recorded(long_way, func, args, kwargs or {}, leaves)
    if recorder is None or (recording and recorder.largest > TWICE):
        return out
    try:
        plan = written(recorder, out, leaves, values)
        again = plan(leaves, values, THREAD.levels) if recording or CHECKED else None
        if recording and needs(again) != needs(out):
            return out
    except (RuntimeError, IndexError):
        if CHECKED:
            raise
        return out
    except Unplanned:
        if not recorder.calls and not below and not plans.keys() - {key}:
            PLANS[func] = False  # no operators: an attribute of the value
        return out
    if CHECKED and not any("empty" in op._schema.name for op, *_ in recorder.calls):  # whose numbers are whatever was there
        same_tensors(again, out)
    plans[key] = plan
    return again if CHECKED else out


def same_tensors(again: Any, out: Any) -> None:
    """Compare the tensors below two results (for tests)."""
    if isinstance(out, Traced):
        for p, q in zip(parts_of(again), parts_of(out), strict=True):
            same_tensors(p, q)
        if (again.shape, again.stride(), again.storage_offset(), again.dtype) != (
            out.shape, out.stride(), out.storage_offset(), out.dtype,
        ):  # fmt: skip
            raise AssertionError((again, out))
    elif isinstance(out, (tuple, list)):
        for p, q in zip(again, out, strict=True):
            same_tensors(p, q)
    elif isinstance(out, Tensor):
        with no_modes():
            torch.testing.assert_close(again.detach(), out.detach(), rtol=0, atol=0, equal_nan=True)
            if again.stride() != out.stride():
                raise AssertionError((again.stride(), out.stride()))
    elif again is not out:
        raise AssertionError((again, out))


def needs(out: Any) -> Any:
    """Which tensors below a result require grad, and which values: those that are recorded above their level."""
    if isinstance(out, Traced):
        with NoFunction():
            own = out.requires_grad
        return [own, *[None if p is None else needs(p) for p in parts_of(out)]]
    if isinstance(out, (tuple, list)):
        return [needs(o) for o in out]
    return isinstance(out, Tensor) and out.requires_grad


traced.PLANNED = planned
