"""Lost derivatives: values that the output depends on, and that no derivative passes.

Each `.detach()`, `.data`, `.item()`, `.numpy()`, `no_grad` of a run is an event with a value. Evaluations at x ± hv
in which the events *give their value at x* differentiate the function as forward and reverse mode see it. If those
differences agree with the derivative that looked wrong, the events are the cause; an event alone is to blame when
letting it move changes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..core.errors import DerivativeLostError
from ..ops.table import entry
from .decisions import moving_kind
from .differences import Differences, extrapolated
from .observe import Call, Observer, in_backward, tensors
from .subject import Subject, moved, real_vector

Tensor = torch.Tensor
EXAMINED = 6


@dataclass
class Event:
    """A value that leaves the derivative."""

    kind: str
    name: str
    source: str
    value: Any


class Events(Observer):
    """Records the events of a run; those held give the value that they had in an earlier run."""

    def __init__(self, earlier: list[Event] | None = None, held: tuple[str, str] | bool = False) -> None:
        super().__init__()
        self.earlier = earlier
        self.held = held  # all, none, or those of a name and line
        self.events: list[Event] = []
        self.moving: set[int] = set()

    def lost(self, call: Call) -> Any:
        """A call that ends the derivative."""
        return self.replaced(call.kind, call.name, call.source, call.run())

    def operator(self, call: Call) -> Any:
        """Operators under the user's `no_grad`, and numbers read by torch itself."""
        if call.name == "_local_scalar_dense":
            out = call.run()
            return self.replaced("number", "reading a number", call.source, out) if isinstance(out, float) else out
        if torch.is_grad_enabled() or in_backward():
            return call.run()
        e = entry(call.function) if call.kind == "operator" else None
        if e is None or not (e.writes or e.out_names):
            out = call.run()
            return out if e is not None and e.is_view else self.replaced("no_grad", call.name, call.source, out)
        targets = [t for t in tensors([call.args[k] for k in e.writes]) if moving_kind(t)]
        before = [t.detach().clone() for t in targets]
        out = call.run()
        for t, b in zip(targets, before, strict=True):
            change = self.replaced("no_grad", call.name, call.source, t.detach() - b)
            t.detach().copy_(b + change)
        return out

    def replaced(self, kind: str, name: str, source: str, value: Any) -> Any:
        """The value of this event: its own, or the one it had at x."""
        k = len(self.events)
        self.events.append(Event(kind, name, source, _kept(value)))
        if self.earlier is None or k >= len(self.earlier):
            return value
        past = self.earlier[k]
        if past.name != name or past.source != source or type(past.value) is not type(_kept(value)):
            return value
        if not _same(past.value, value):
            self.moving.add(k)
        if self.held is True or self.held == (name, source):
            return _given(past.value, value)
        return value


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if hasattr(value, "__array__"):
        return value.copy()
    if isinstance(value, (list, tuple)):
        return type(value)(_kept(v) for v in value)
    return value


def _given(past: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        return past.clone() if moving_kind(value) and past.shape == value.shape else value
    if isinstance(value, (list, tuple)) and len(value) == len(past):
        return type(value)(_given(p, v) for p, v in zip(past, value, strict=True))
    return _kept(past)


def _same(past: Any, value: Any) -> bool:
    if isinstance(value, Tensor):
        return past.shape == value.shape and torch.equal(past, value.detach())
    if hasattr(value, "__array__"):
        import numpy as np

        return bool(np.array_equal(past, value))
    if isinstance(value, (list, tuple)):
        return len(past) == len(value) and all(_same(p, v) for p, v in zip(past, value, strict=True))
    return past == value


@dataclass
class Losses:
    """The events to blame, and the derivative with all events held still."""

    blamed: list[Event]
    held: Differences
    events: int


def losses(subject: Subject, direction: list[Tensor], step: float, origin: list[Tensor] | None) -> Losses | None:
    """The events of a function, and which of them its output depends on; None where there are none that move."""
    point = subject.point if origin is None else origin
    first = Events()
    subject.values(point, first)
    if not first.events:
        return None
    f = {}
    for s in (1.0, -1.0, 0.5, -0.5):
        run = Events(first.events, True)
        f[s] = ([real_vector(o) for o in subject.values(moved(point, direction, s * step), run)], None)
    wide = [(a - b) / (2 * step) for a, b in zip(f[1.0][0], f[-1.0][0], strict=True)]
    near = [(a - b) / step for a, b in zip(f[0.5][0], f[-0.5][0], strict=True)]
    held = extrapolated(subject, wide, near, 4, f, step, 0)
    there = moved(point, direction, step)
    run = Events(first.events)
    free = [real_vector(o) for o in subject.values(there, run)]
    groups: dict[tuple[str, str], Event] = {}
    for k in sorted(run.moving):
        e = first.events[k]
        groups.setdefault((e.name, e.source), e)
    blamed = []
    for key, e in list(groups.items())[:EXAMINED]:
        outs = [real_vector(o) for o in subject.values(there, Events(first.events, key))]
        for a, b, d, t in zip(outs, free, held.values, held.tolerances(1e-6), strict=True):
            if not d.numel():
                continue
            change = (a - b).abs() / abs(step)
            scale = max(float(d.abs().max()), float(change.max()))
            if bool((change > 10 * t + 1e-6 * scale).any()):
                blamed.append(e)
                break
    return Losses(blamed, held, len(first.events))


def is_loss(error: BaseException) -> bool:
    """Whether a mode refused to go on because a derivative would be lost."""
    return isinstance(error, DerivativeLostError) or "on Tensor that requires grad" in str(error)


__all__ = ["Event", "Losses", "is_loss", "losses"]
