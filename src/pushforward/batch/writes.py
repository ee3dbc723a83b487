"""Writes under `vmap`: in-place and `out=` operators, from their functional operator by schema."""

# Targets are checked to be tensors, which hides from the checker that they are values of the level.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from ..core.captured import described
from ..core.errors import TransformError
from ..core.journal import about_to_write
from ..core.level import THREAD, autograd_on, is_grad_enabled, no_plan
from ..core.source import source_line
from ..core.torch_private import NoDispatch
from ..core.traced import TooLarge, Traced
from ..ops.table import Entry, entry

Tensor = torch.Tensor


def write(
    level: Any,
    e: Entry,
    func: Any,
    args: Any,
    kwargs: Any,
    values: Any,
    flags: Any,
    plain: dict[str, Any],
    mapped: bool,
) -> Any:
    """Run a writing operator and return what torch returns: the written tensors themselves."""
    from .level import Batched

    unrecorded = e.rule("unrecorded")
    if unrecorded is not None and is_grad_enabled():  # the row says that autograd does not see this write
        with unrecorded():
            return write(level, e, func, args, kwargs, values, flags, plain, mapped)
    no_plan()
    targets = flattened([args[k] for k in e.writes] + [kwargs[n] for n in e.out_names if n in kwargs])
    ours = [isinstance(t, Batched) and t._level is level for t in targets]
    if THREAD.attempts:
        for target, own in zip(targets, ours, strict=True):
            if not own:
                about_to_write(target)
            elif level.payload_graphs:
                level.keep_for_attempt(target)
    if level.fixed and any(own and id(root_of(t)) in level.fixed for own, t in zip(ours, targets, strict=True)):
        raise TooLarge
    if level.call is not None and level.call.inputs:
        for target, own in zip(targets, ours, strict=True):
            if own:
                level.call.before_write(root_of(target))
    if e.writes_metadata:
        return change_metadata(level, e, func, args, kwargs)
    if e.random and level.lanes_differ(e, func, values, plain):
        return random_write(level, e, func, args, plain, values, flags, mapped, targets, ours)
    writes = e.rule("writes")
    if writes is not None and not writes(values):  # the row says that with these arguments nothing is written
        made, made_mapped = functional_result(level, e, func, values, flags, plain)
        return stored(level, e, func, targets, made[: -len(targets)] + (None,) * len(targets), made_mapped)
    mapped = mapped or any(o and t._mapped for o, t in zip(ours, targets, strict=True))
    if not mapped:
        grad = is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in flattened(values))
        if grad:
            for target, own in zip(targets, ours, strict=True):
                if own and not target._payload.requires_grad:
                    track(level, target)
            values = [payloads(level, a, v) for a, v in zip(args, values, strict=True)]
            plain = {k: a._payload if isinstance(a, Batched) and a._level is level else a for k, a in kwargs.items()}
        out = func(*values, **plain)
        return returned(func, targets) if returns_written(func) else as_uniform(level, out)
    together = e.rule("together")
    if together is not None and all(not own or one_seen_by_all(level, t) for own, t in zip(ours, targets, strict=True)):
        values = [v[0] if k in e.writes and flags[k] else v for k, v in enumerate(values)]
        func(*together(values, flags), **plain)  # the row says how lanes write the same into what they share
        return returned(func, targets)
    for target, own in zip(targets, ours, strict=True):
        if isinstance(target, Tensor) and not own:
            raise level.captured(func.name(), described(target))
    values = kept_for_reverse(e, targets, values)
    out, out_mapped = functional_result(level, e, func, values, flags, plain)
    return stored(level, e, func, targets, out, out_mapped)


def one_seen_by_all(level: Any, target: Any) -> bool:
    """Whether a mapped value is one tensor spread over the lanes, as for a gradient per lane of what they share."""
    return bool(target._mapped and level.size and target._payload.stride(0) == 0)


def root_of(target: Any) -> Tensor:
    """The payload that a value of the level is a view of, or its own."""
    return target._payload if target._cell is None else target._cell.root[0]


def kept_for_reverse(e: Entry, targets: list[Any], values: Any) -> Any:
    """The arguments, with copies of what is written to where autograd may save it: the write must not reach what it saved."""
    if not is_grad_enabled() or e.functional is torch.ops.aten.copy.default:  # pyright: ignore[reportAttributeAccessIssue]
        return values
    if all(t._cell is None for t in targets if isinstance(t, Tensor) and hasattr(t, "_cell")):
        return values  # a new value takes the place of the old one, see `store`
    if not any(isinstance(v, Tensor) and v.requires_grad for v in flattened(values)):
        return values
    values = list(values)
    for k in e.writes:
        if k < len(values):
            v = values[k]
            values[k] = [x.clone() for x in v] if isinstance(v, (list, tuple)) else v.clone()
    return values


def flattened(values: Any) -> list[Any]:
    """Values with those of lists one by one."""
    return [x for v in values for x in (v if isinstance(v, (list, tuple)) else (v,))]


def payloads(level: Any, value: Any, known: Any) -> Any:
    """The payload, as it is now, of a value of the level or of a list of such; of another value what is known."""
    from .level import Batched

    if isinstance(value, (list, tuple)) and isinstance(known, (list, tuple)):
        return [payloads(level, v, k) for v, k in zip(value, known, strict=True)]
    return value._payload if isinstance(value, Batched) and value._level is level else known


def stored(level: Any, e: Entry, func: Any, targets: list[Any], out: Any, mapped: bool) -> Any:
    """Write the results of a functional operator into the targets; results that are no target are returned as they are."""
    results = list(out) if isinstance(out, (list, tuple)) else [out]
    others: list[Any] = []
    if e.writes and len(results) > len(targets):  # torch's functional forms return the written arguments last
        others, results = results[: -len(targets)], results[-len(targets) :]
    for target, result in zip(targets, results, strict=False):
        store(level, target, result, mapped, fresh=e.functional is not torch.ops.aten.copy.default)
    if returns_written(func):
        return returned(func, targets)
    from .level import wrap

    made = [wrap(level, o, mapped) for o in others]
    return made[0] if len(made) == 1 else tuple(made)


def returns_written(func: Any) -> bool:
    """Whether what a writing operator returns are the written tensors, and not results beside them."""
    return all(r.alias_info is not None for r in func._schema.returns)


def as_uniform(level: Any, out: Any) -> Any:
    """Results that are the same for every lane, as values of the level."""
    from .level import wrap

    return wrap(level, out, False) if isinstance(out, Tensor) else tuple(wrap(level, o, False) for o in out)


def functional_result(level: Any, e: Entry, func: Any, values: Any, flags: Any, kwargs: Any) -> tuple[Any, bool]:
    """What is to be written, in the order of the written arguments."""
    if e.functional is None:
        from .fallback import lane_loop

        return lane_loop(_on_copies(func, e), level, values, flags, kwargs), True
    fe = entry(e.functional)
    kwargs = {k: v for k, v in kwargs.items() if k not in e.out_names}
    named = getattr(flags, "keywords", frozenset()) - set(e.out_names)  # a mapped target is no argument
    if e.out_names and hasattr(flags, "keywords"):
        flags = type(flags)(list(flags), named) if named else list(flags)
    if not any(f is True or (f is not False and any(f)) for f in flags) and not getattr(flags, "keywords", None):
        if e.functional is torch.ops.aten.copy.default:  # which has no reverse formula
            return values[1].to(values[0].dtype).expand(values[0].shape), False
        return e.functional(*values, **kwargs), False
    return level.rule_for(fe)(e.functional, level, values, flags, kwargs), True


class _on_copies:
    """A writing operator without a functional form, run on copies of what it writes."""

    def __init__(self, func: Any, e: Entry) -> None:
        self.func, self.e = func, e

    def name(self) -> str:
        return self.func.name()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        copies = list(args)
        for k in self.e.writes:
            copies[k] = [x.clone() for x in args[k]] if isinstance(args[k], (list, tuple)) else args[k].clone()
        self.func(*copies, **kwargs)
        written = [copies[k] for k in self.e.writes]
        return written[0] if len(written) == 1 else written


def store(level: Any, target: Any, result: Tensor | None, mapped: bool, *, fresh: bool = False) -> None:
    """Copy `result` into a value of the level, which is promoted where need be.

    What autograd has recorded may have been saved for a reverse formula, so there a `fresh` result takes the place of the old value.
    """
    if not isinstance(target, Tensor) or result is None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    if mapped and not target._mapped:  # pyright: ignore[reportAttributeAccessIssue]
        if root_of(target).requires_grad:  # its history stays, though what is written has none
            with autograd_on(), torch.enable_grad():
                level.promote(target)
        else:
            level.promote(target)
    elif is_grad_enabled() and result.requires_grad and not target._payload.requires_grad:  # pyright: ignore[reportAttributeAccessIssue]
        track(level, target)  # pyright: ignore[reportAttributeAccessIssue]
    if depth_of(result) > depth_of(target._payload):
        tie(level, target)
    payload = target._payload
    if target._mapped and result.dim() == payload.dim() - 1 and not mapped:  # pyright: ignore[reportAttributeAccessIssue]
        result = result.unsqueeze(0)  # pyright: ignore[reportAttributeAccessIssue]
    if fresh and is_grad_enabled() and target._cell is None and mapped == target._mapped and alike(result, payload):
        target._payload, target._meta, target._form = result, None, None
        return
    if is_grad_enabled() and (result.requires_grad or payload.requires_grad):
        with autograd_on():  # pyright: ignore[reportAttributeAccessIssue]
            leave_saved(level, target)
            target._payload.copy_(result)
        return
    payload.copy_(result)


def depth_of(payload: Tensor) -> int:
    """The place of the level that a payload is a value of; 0 for a plain tensor."""
    return payload._level.depth if isinstance(payload, Traced) else 0


def tie(level: Any, target: Any) -> None:
    """Make a payload that a short way made known to the levels below, so that values of theirs can be written into it.

    Not that of an argument: it was there before them.
    """
    root, cell = root_of(target), target._cell
    if level.call is not None and any(isinstance(v, Traced) and root_of(v) is root for v in level.call.inputs):
        return
    with autograd_on() if root.requires_grad else nullcontext():
        if cell is None:
            target._payload, target._meta, target._form = root.clone(), None, None
            return
        cell.root = (root.clone(), cell.root[1])
        level.refresh(cell)


def leave_saved(level: Any, target: Any) -> None:
    """Write into a copy: what is there now may have been saved for a reverse formula, for the functional operator did not know."""
    if not target._payload.requires_grad:
        return
    cell = target._cell
    if cell is None:
        target._payload, target._meta, target._form = target._payload.clone(), None, None
        return
    root, mapped = cell.root
    cell.root = (root.clone(), mapped)
    level.refresh(cell)


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether one can stand for the other in a wrapper."""
    return a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()


def track(level: Any, target: Any) -> None:
    """Make autograd see the views of a buffer before the first value that requires grad is written into it."""
    cell = target._cell
    if cell is None:
        return
    with autograd_on():
        root, mapped = cell.root
        cell.root = (root.detach(), mapped)
        level.refresh(cell)


def returned(func: Any, targets: list[Any]) -> Any:
    """What the operator returns: the targets, as many as its schema says."""
    n = len(func._schema.returns)
    return None if n == 0 else targets[0] if n == 1 else tuple(targets[:n])


def change_metadata(level: Any, e: Entry, func: Any, args: Any, kwargs: Any) -> Any:
    """`x.transpose_()` and the like: the wrapper's own sizes change with the payload's."""
    from .level import Batched

    target = args[0]
    if not (isinstance(target, Batched) and target._level is level):
        return func(*args, **kwargs)
    if e.name == "resize_":
        msg = (
            f"vmap: `resize_` at {source_line()} would change the memory of a value that all lanes are kept in. Make a new one: "
            "`x.reshape(-1)[:n].reshape(sizes)` for fewer elements, `x.new_zeros(sizes)` for more."
        )
        raise TransformError(msg)
    view = e.functional
    made = level.handle(entry(view), view, args, kwargs)
    target._payload, target._mapped = made._payload, made._mapped
    target._meta = target._form = None
    target._cell, target._path = made._cell, made._path
    made._cell.add(target)
    with NoDispatch():
        func(*args, **kwargs)
    return target


def random_write(
    level: Any,
    e: Entry,
    func: Any,
    args: Any,
    kwargs: Any,
    values: Any,
    flags: Any,
    mapped: bool,
    targets: Any,
    ours: Any,
) -> Any:
    """In-place draws: what is drawn is copied into the target."""
    from .random import draw_into

    for target, own in zip(targets, ours, strict=True):
        if isinstance(target, Tensor) and not own and (mapped or level.randomness == "different"):
            raise level.captured(func.name(), described(target))
    if not any(ours) and level.randomness == "same":
        out = func(*values, **kwargs)
        return returned(func, targets) if returns_written(func) else as_uniform(level, out)
    if not returns_written(func) or (len(targets) > 1 and e.functional is not None):
        from .random import draw

        return stored(
            level, e, func, targets, *draw(level, entry(e.functional), e.functional, values, flags, kwargs, mapped)
        )
    result, result_mapped = draw_into(level, e, func, values, flags, kwargs)
    store(level, targets[0], result, result_mapped)
    return returned(func, targets)
