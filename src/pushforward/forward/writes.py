"""Writes under `jvp`: in-place and `out=` operators, from their functional operator by schema."""

from __future__ import annotations

from typing import Any

import torch

from ..core.captured import described
from ..core.errors import CapturedWriteError
from ..core.journal import about_to_write
from ..core.level import THREAD, autograd_on, is_grad_enabled, no_plan, user_stopped_gradient
from ..core.source import source_line
from ..core.torch_private import NoDispatch
from ..ops.table import Entry, entry

Tensor = torch.Tensor


def write(
    level: Any, e: Entry, func: Any, args: Any, kwargs: Any, primals: Any, tangents: Any, plain: Any, moving: bool
) -> Any:
    """Run a writing operator on primals, and write the tangents it gives."""
    from .level import Dual, wrap

    unrecorded = e.rule("unrecorded")
    if unrecorded is not None and is_grad_enabled():  # the row says that no derivative sees this write
        with unrecorded():
            return write(level, e, func, args, kwargs, primals, tangents, plain, moving)
    no_plan()
    if e.writes_metadata:
        return change_metadata(level, e, func, args, kwargs)
    targets = [args[k] for k in e.writes] + [kwargs[n] for n in e.out_names if n in kwargs]
    flat: list[Any] = []
    for t in targets:
        flat += list(t) if isinstance(t, (list, tuple)) else [t]
    ours = [isinstance(t, Dual) and t._level is level for t in flat]
    if THREAD.attempts:
        for target, own in zip(flat, ours, strict=True):
            about_to_write(level.input_of(target) if own else target)
    for target, own in zip(flat, ours, strict=True):
        if own and (target._cell.loose if target._cell is not None else target._loose):
            level.tie(target)
            primals, plain = payloads_again(level, args, kwargs)
    stale = any(o and t._tangent is not None for o, t in zip(ours, flat, strict=True))
    if not (moving or stale) or level.suspended or user_stopped_gradient():
        return in_place(level, func, args, kwargs, primals, plain, targets, flat, ours)
    for target, own in zip(flat, ours, strict=True):
        if isinstance(target, Tensor) and not own and e.name not in KEEPS_STATISTICS and _differentiable(target):
            raise level.captured(func.name(), described(target))
    outs, out_tangents = functional_result(level, e, func, primals, tangents, plain, moving)
    others: list[Any] = []
    if e.writes and len(outs) > len(flat):  # torch's functional forms return the written arguments last
        n = len(outs) - len(flat)
        others = [wrap(level, o, t) for o, t in zip(outs[:n], out_tangents[:n], strict=True)]
        outs, out_tangents = outs[n:], out_tangents[n:]
    for target, own, out, t in zip(flat, ours, outs, out_tangents, strict=False):
        if own:
            store(level, target, out, t, fresh=e.functional is not torch.ops.aten.copy.default)
        elif isinstance(target, Tensor):
            target.copy_(out)
    if returns_written(func):
        return returned(func, targets)
    return others[0] if len(others) == 1 else tuple(others)


def returns_written(func: Any) -> bool:
    """Whether what a writing operator returns are the written tensors, and not results beside them."""
    return all(r.alias_info is not None for r in func._schema.returns)


def payloads_again(level: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Primals of the arguments, read after a target has changed."""
    primals = [
        level.unwrap_list(a)[0] if isinstance(a, (list, tuple)) and a else level.unwrap_list([a])[0][0] for a in args
    ]
    return primals, level.unwrap_kwargs(kwargs)[0]


KEEPS_STATISTICS = frozenset({"_native_batch_norm_legit", "native_batch_norm", "_batch_norm_with_update"})


def _differentiable(target: Tensor) -> bool:
    return target.is_floating_point() or target.is_complex()


def in_place(
    level: Any, func: Any, args: Any, kwargs: Any, primals: Any, plain: Any, targets: Any, flat: Any, ours: Any
) -> Any:
    """A write of values without tangents: the operator itself, on the primals."""
    from .level import Dual, wrap

    if is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in primals):
        for target, own in zip(flat, ours, strict=True):
            if own and target._cell is not None and not target._primal.requires_grad:
                track(level, target)
        primals = [
            a._primal if isinstance(a, Dual) and a._level is level else v for a, v in zip(args, primals, strict=True)
        ]
        plain = {k: a._primal if isinstance(a, Dual) and a._level is level else a for k, a in kwargs.items()}
    out = func(*primals, **plain)
    if returns_written(func):
        return returned(func, targets)
    return wrap(level, out, None) if isinstance(out, Tensor) else tuple(wrap(level, o, None) for o in out)


def functional_result(
    level: Any, e: Entry, func: Any, primals: Any, tangents: Any, plain: Any, moving: bool
) -> tuple[list[Any], list[Any]]:
    """The values and tangents to be written, in the order of the written arguments."""
    op = e.functional
    if op is None:
        msg = f"jvp: `{func.name()}` writes in place and torch has no functional form of it"
        raise level.captured(msg, "itself")
    plain = {k: v for k, v in plain.items() if k not in e.out_names}
    if e.out_names and hasattr(tangents, "keywords"):
        for name in e.out_names:
            tangents.keywords.pop(name, None)
        moving = any(t is not None for t in tangents) or bool(tangents.keywords)
    if moving or op is torch.ops.aten.copy.default:
        out, tangent = level.rule_for(entry(op))(op, level, primals, tangents, plain)
    else:
        out, tangent = op(*primals, **plain), None
    if not isinstance(out, (list, tuple)):
        return [out], [tangent]
    tangent = tangent if tangent is not None else [None] * len(out)
    return list(out), list(tangent)


def store(level: Any, target: Any, out: Tensor, tangent: Tensor | None, *, fresh: bool = False) -> None:
    """Copy a value and its tangent into a dual number of the level.

    What autograd has recorded may have been saved for a reverse formula, so a `fresh` result takes the place of the old value.

    A tangent may be shared with other values (that of x + 1 is that of x), so it is replaced, never written into, until the
    cell owns one.
    """
    cell = target._cell
    moves = tangent is not None or target._tangent is not None
    if cell is not None and moves and (target._tangent is None or cell.borrowed):
        level.give_tangent(target)
    recorded = is_grad_enabled() and (
        out.requires_grad or target._primal.requires_grad or (tangent is not None and tangent.requires_grad)
    )
    if recorded and cell is not None and not target._primal.requires_grad:
        track(level, target)
    if fresh and cell is None and is_grad_enabled() and alike(out, target._primal):
        target._primal, target._tangent, target._meta, target._form = out, tangent, None, None
    elif recorded:
        with autograd_on():
            leave_saved(level, target)
            _copy_both(target, out, tangent, cell is not None)
    else:
        _copy_both(target, out, tangent, cell is not None)


def leave_saved(level: Any, target: Any) -> None:
    """Write into copies: what is there now may have been saved by the tangents of operators, which eager autograd does not know.

    They save tangents too; one that the cell does not own is replaced anyway. The caller's own tensor is written into, as it must.
    """
    cell = target._cell
    if cell is None:  # no view looks at it, and the caller has no hold of it
        target._primal, target._meta, target._form = target._primal.clone(), None, None
        return
    root, tangent = cell.root
    if root.requires_grad or level.input_of(target) is None:
        root = root.clone()
    cell.root = (root, None if tangent is None else tangent.clone())
    level.refresh(cell)


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether one can stand for the other in a wrapper."""
    return a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()


def _copy_both(target: Any, out: Tensor, tangent: Tensor | None, shared: bool) -> None:
    if shared and tangent is not None and target._tangent is None:
        msg = (
            f"jvp: at {source_line()} a value with a derivative is written into a detached view, which shares its memory with a "
            "value that has a derivative of its own. Write into a copy: `.detach().clone()`."
        )
        raise CapturedWriteError(msg)
    target._primal.copy_(out)
    if not shared:
        target._tangent, target._form = tangent, None
    elif tangent is not None:
        target._tangent.copy_(tangent)
    elif target._tangent is not None:
        target._tangent.zero_()


def track(level: Any, target: Any) -> None:
    """Make autograd see the views of a buffer before the first value that requires grad is written into it."""
    cell = target._cell
    with autograd_on():
        root, tangent = cell.root
        cell.root = (
            root.detach(),
            None if tangent is None else tangent.detach() if not tangent.requires_grad else tangent,
        )
        level.refresh(cell)


def returned(func: Any, targets: list[Any]) -> Any:
    """What the operator returns: the targets, as many as its schema says."""
    n = len(func._schema.returns)
    return None if n == 0 else targets[0] if n == 1 else tuple(targets[:n])


def change_metadata(level: Any, e: Entry, func: Any, args: Any, kwargs: Any) -> Any:
    """`x.transpose_()` and the like: the wrapper's own sizes change with the primal's."""
    from .level import Dual

    target = args[0]
    if not (isinstance(target, Dual) and target._level is level):
        return func(*args, **kwargs)
    made = level.handle(entry(e.functional), e.functional, args, kwargs)
    target._primal, target._tangent = made._primal, made._tangent
    target._cell, target._path = made._cell, made._path
    target._meta = target._form = None
    made._cell.add(target)
    with NoDispatch():
        func(*args, **kwargs)
    return target
