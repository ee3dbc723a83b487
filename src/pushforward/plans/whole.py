"""Whole calls, replayed: a transform of a small function that only computes is a list of operators on its tensors.

Python runs such a function again in every call, and each of its operators passes the interpreters, though nothing but the
numbers can have changed. The second call with one key (see `pure`) records which operators it comes to on plain tensors; it and
the third are run both ways and compared to the last bit; from then on the list is run. No function is replayed that reads
a number, draws, warns or writes into what it was given, and none while somebody listens: a debugger, a profiler, a mode,
a hook on saved tensors, autograd itself.

    def call(tensors):
        [a0] = tensors
        b1 = k4(a0, 1, 0)        # x[0], of all lanes
        b2 = k5(a0, 1, 1)
        ...
        return [b9]
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..batch.report import reports
from ..batch.vmap import flat_inputs, vmap
from ..core import calls, tree
from ..core.calls import OWN_CODE, Asked
from ..core.level import THREAD, graph_task_id
from ..core.opaque import opaque
from ..core.torch_private import (
    autocast_on,
    foreign_transforms,
    function_mode_on,
    functions_on,
    jit_tracing,
    mode_count,
    modes_above_autograd,
    pop_mode,
    push_mode,
    saved_hooks,
)
from ..core.traced import NO_PLAN, NeedsGraph, TooLarge
from .branching import Branching, NewWay
from .call_program import LARGEST, CallRecording, Replayed, written
from .compare import near, prints
from .describe import repeated
from .known import PURE
from .pure import Described, Impure, NotNow
from .record import Unrecorded, unrepeatable_counted
from .ways import Way, cut, explored, way_of

Tensor = torch.Tensor
MOST_KEYS = 64  # of one function: more, and its arguments are no pattern
MOST_FUNCTIONS = 1 << 12
PATIENCE = 16  # calls in vain (their tensors require grad, or are large; other numbers each time): more, and it is not tried again
UNKNOWN = object()  # the key of settings that cannot be told apart
SEEN = object()  # a key met once
CHECKED = False  # tests: record at once, and compare

SETTINGS: dict[Any, Any] = {}  # by a transform and its settings: one object, which keys are made of
_SIMPLE = frozenset({int, bool, str, type(None)})
CALLS: dict[
    int, Any
] = {}  # by identity of a function's code: the code and its plans by key, or False where there are none


def root_of(func: Any) -> Any:
    """The code that a call is remembered by: of the innermost function that is not one of ours; None if there is none."""
    for _ in range(16):
        if type(func) is not types.FunctionType:
            return func if isinstance(func, types.BuiltinFunctionType) and func in PURE else None
        code = func.__code__
        if id(code) not in OWN_CODE:
            return code
        inside = [c for c in (func.__closure__ or ()) if callable(c.cell_contents) and c.cell_contents is not func]
        func = next((c.cell_contents for c in inside), None)
    return None


def listened() -> bool:
    """Whether somebody would notice that a function does not run, or wants to see its operators."""
    if mode_count() or function_mode_on() or not functions_on() or autocast_on() or modes_above_autograd():
        return True
    if sys.gettrace() is not None or sys.getprofile() is not None or saved_hooks(False) is not None:
        return True
    if (
        foreign_transforms()
        or torch.is_anomaly_enabled()
        or jit_tracing() is not None
        or graph_task_id() != -1
        or reports()
    ):
        return True
    if torch.is_inference_mode_enabled():
        return True  # its results are of another kind
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(k) for k in range(6))


@opaque
def replay(asked: Asked, func: Any, args: tuple[Any, ...]) -> Any:
    """The result of a call by its list of operators, or as it is where that is being recorded; else `NO_PLAN`."""
    root = root_of(func)
    if root is None or not THREAD.replay:
        return NO_PLAN
    plans = CALLS.get(id(root))
    if plans is None:
        if len(CALLS) >= MOST_FUNCTIONS:
            CALLS.clear()
        plans = CALLS[id(root)] = (root, {})
        if not CHECKED:
            return NO_PLAN
    root, plans = plans
    if plans is False:
        return NO_PLAN
    kind = kind_of(asked, func, args)
    if plans.get(kind) is False or asked.key is UNKNOWN or listened():
        return NO_PLAN
    if len(plans) >= MOST_KEYS and plans.get(kind[:2]) is False:
        return NO_PLAN
    try:
        known, leaves = key_of(asked, func, args)
    except Impure:
        CALLS[id(root)] = root, False
        return NO_PLAN
    except NotNow:
        return tired(plans, kind)
    plan = plans.get(known)
    if type(plan) is Replayed or type(plan) is Branching:
        if plan.doubts > 0:
            return compared(plan, leaves, asked, func, args, plans, known)
        try:
            return plan(leaves)
        except (RuntimeError, IndexError, ValueError):
            return NO_PLAN  # the function itself says what is wrong
        except NewWay as lost:
            return another_way(plan, leaves, asked, func, args, plans, known, lost.groups)
    if plan is False or (plan is None and len(plans) >= MOST_KEYS):
        return tired(plans, kind)
    if plan is None and plans and not CHECKED:
        plans[known] = SEEN
        return NO_PLAN
    return recorded(plans, known, leaves, asked, func, args)


def tired(plans: Any, kind: Any) -> Any:
    """A call for which there is no plan, though looking for one took time: many, and no plan of use, and no more is looked for."""
    if len(plans) >= MOST_KEYS:
        kind = kind[:2]  # whatever the sizes
    plans[kind] = refusals = plans.get(kind, 0) + 1
    if refusals >= PATIENCE:
        used = [plan for plan in plans.values() if type(plan) in (Replayed, Branching) and plan.used]
        plans[kind] = 0 if used else False
        for plan in used:
            plan.used = False
    return NO_PLAN


def kind_of(asked: Asked, func: Any, args: tuple[Any, ...]) -> Any:
    """What is remembered of a transform of a function on such sizes: that it is not replayed, or how often it was tried in vain."""
    if asked.key is None:
        values = tuple(asked.settings.values())
        kinds = tuple(map(type, values))
        short = (asked.transform, values, kinds) if _SIMPLE.issuperset(kinds) else None  # False is 0 to a dictionary
        asked.key = SETTINGS.get(short) or settings_of(asked, short)
    first = args[0] if args else None
    if type(first) is tuple and first:
        first = first[0]
    return asked.key, id(getattr(func, "__code__", func)), first.shape if type(first) is Tensor and not first.is_nested else None


def settings_of(asked: Asked, short: Any) -> Any:
    """One object for all calls of a transform with these settings, or `UNKNOWN`."""
    settings = Described()
    try:
        settings.add(asked.transform)
        for value in asked.settings.values():
            settings.add(value)
    except (Impure, NotNow):
        return UNKNOWN
    if settings.leaves or settings.has_lists:
        return UNKNOWN  # they may be changed
    if any(isinstance(a, str) for a in tree.leaves(asked.settings.get("argnums"))):
        return UNKNOWN  # which argument has the name is for the signature to say
    if len(SETTINGS) >= MOST_FUNCTIONS:
        SETTINGS.clear()
    made = SETTINGS.setdefault(tuple(settings.key), object())
    if short is not None:
        SETTINGS[short] = made
    return made


def key_of(asked: Asked, func: Any, args: tuple[Any, ...]) -> tuple[Any, list[Tensor]]:
    """What a call depends on, and its tensors."""
    described = Described()
    for a in args:
        described.add(a)
    described.key.append(Asked)
    described.add(func)
    if described.changes_lists and described.has_lists:
        raise Impure
    leaves = described.leaves
    described.key += (
        asked.key,
        len(args),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        repeated(leaves) if len(leaves) > 1 else None,
    )
    return tuple(described.key), leaves


@contextlib.contextmanager
def under(recording: CallRecording) -> Iterator[None]:
    """A recording below all levels; random numbers that are drawn meanwhile will be drawn again."""
    state = torch.get_rng_state()
    push_mode(recording)
    THREAD.recorders += 1
    THREAD.answered = recording.answered
    try:
        with unrepeatable_counted():
            yield
    finally:
        THREAD.answered = None
        THREAD.recorders -= 1
        pop_mode(None)
        if not recording.good:
            torch.set_rng_state(state)


def watched(recording: CallRecording, asked: Asked, func: Any, args: Any) -> Any:
    """What a call returns that is recorded; `Unrecorded` if a list of operators does not stand for it."""
    before = THREAD.unrepeatable
    with under(recording):
        out = asked.again(func, args)
    if not recording.good or before != THREAD.unrepeatable:
        raise Unrecorded
    return out


def recorded(
    plans: Any,
    key: Any,
    leaves: list[Tensor],
    asked: Asked,
    func: Any,
    args: Any,
    like: Branching | None = None,
    groups: list[Tensor] | None = None,
) -> Any:
    """One call, with the recording on, and once more as it is: what is returned has never been watched."""
    plans[key] = False
    plan, recording = None, CallRecording(leaves)
    try:
        if like is not None and like.lanes is not None:
            plan = by_lanes(asked, func, args, like, groups)
        else:
            plan = planned(recording, asked, func, args, like)
    except (Exception, TooLarge, NeedsGraph):  # the run that follows says what is wrong
        pass
    except BaseException:
        plans[key] = like if like is not None else SEEN  # interrupted: nothing was learned
        raise
    if plan is None and like is None and recording.largest <= LARGEST:
        plans[kind_of(asked, func, args)] = False  # it will be the same with other tensors of these sizes
    del recording
    if plan is not None:
        return compared(plan, leaves, asked, func, args, plans, key)
    plans[key] = like if like is not None else False
    return asked.again(func, args)


def planned(
    recording: CallRecording, asked: Asked, func: Any, args: Any, like: Branching | None
) -> Replayed | Branching:
    """The plan of a call; `Unrecorded` if there is none."""
    try:
        out = watched(recording, asked, func, args)
    except Unrecorded:
        if not recording.asked_lanes:
            raise
        return by_lanes(asked, func, args, like, None)
    outs, spec = tree.flat(out)
    return Branching([way_of(recording, out, outs, spec)], None, like) if recording.asked else written(recording, out)


def by_lanes(asked: Asked, func: Any, args: Any, like: Branching | None, groups: list[Tensor] | None) -> Branching:
    """A call in which each lane has answers of its own, by the ways that lanes go: all of them, or groups whose way is not known."""
    if (
        asked.transform is not vmap
        or asked.settings["chunk_size"] is not None
        or asked.settings["divergence"] != "split"
    ):
        raise Unrecorded
    leaves, spec, dims = flat_inputs(func, asked.settings["in_dims"], args, {})
    first, dim = next(((x, d) for x, d in zip(leaves, dims, strict=True) if d is not None), (None, 0))
    known = key_of(asked, func, args)[1]
    place = next((k for k, x in enumerate(known) if x is first), None)
    if place is None or dim is None:
        raise Unrecorded
    orders = [
        tuple(sorted(range(a.dim()), key=lambda k: -a.stride(k))) if isinstance(a, Tensor) else () for a in leaves
    ]

    def record(lanes: Tensor, made: list[CallRecording]) -> Way:
        some = [a if d is None else cut(a, d, o, lanes) for a, d, o in zip(leaves, dims, orders, strict=True)]
        these = tuple(some) if spec is None else tree.unflatten(some, spec)[0]
        made.append(CallRecording(key_of(asked, func, these)[1], lanes.numel()))
        out = watched(made[-1], asked, func, these)
        outs, form = tree.flat(out)
        return way_of(made[-1], out, outs, form)

    return Branching(explored(record, groups or [torch.arange(known[place].shape[dim])]), (place, dim), like)


def compared(plan: Any, leaves: list[Tensor], asked: Asked, func: Any, args: Any, plans: Any, key: Any) -> Any:
    """A call as it is, beside the list of operators: it is believed when it has twice given the same."""
    plans[key], made = False, None
    try:
        made = plan(leaves)
    except NewWay as lost:
        return another_way(plan, leaves, asked, func, args, plans, key, lost.groups)
    except (RuntimeError, IndexError, ValueError):
        pass
    by_lanes = type(plan) is Branching and plan.lanes is not None
    if made is not None and not by_lanes:
        made = prints(made)
    try:
        out = asked.again(func, args)
    except BaseException:
        plans[key] = plan  # nothing was learned about it
        raise
    if made is not None and (near(made, out, plan.lane_dims()) if by_lanes else made == prints(out)):
        plan.doubts -= 1
        if plan.views and not by_lanes:
            plan.views = any([isinstance(o, Tensor) and o._is_view() for o in tree.leaves(out)])
        plans[key] = plan
    return out


def another_way(
    plan: Any, leaves: list[Tensor], asked: Asked, func: Any, args: Any, plans: Any, key: Any, groups: list[Tensor]
) -> Any:
    """A call that goes a way that the plan does not know: it is recorded, unless that happens all the time."""
    if plan.missed():
        plans[key] = False
        return asked.again(func, args)
    return recorded(plans, key, leaves, asked, func, args, plan, groups)


@contextlib.contextmanager
def no_replay() -> Iterator[None]:
    """Meanwhile every call of a transform runs its function, in this thread.

    Else a transform of a small function that only computes repeats the operators of an earlier call with arguments of the same
    layout, without running the function's Python code (see `docs/how-it-works.md`).

    Example:
        >>> import torch, pushforward as pf
        >>> with pf.no_replay():
        ...     pf.vmap(torch.sin)(torch.zeros(2))
        tensor([0., 0.])
    """
    before, THREAD.replay = THREAD.replay, False
    try:
        yield
    finally:
        THREAD.replay = before


calls.REPLAY = replay
