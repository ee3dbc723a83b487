"""The ways a function takes: recordings of a call in which each question of an `if` or a `while` is a step, with its answer.

Lanes that disagree go ways of their own, with any number of lanes on each. So a way is recorded twice, with different numbers of
lanes; the sizes that differ are written as multiples of that number, and all else must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .call_program import CallRecording, Disagreed, container, ends_of, passed, shared
from .record import Ref, Unrecorded
from .steps import Multiple, Step
from .write import agree

Tensor = torch.Tensor
MOST = 16  # ways in one call
MOST_STEPS = 1 << 12  # in all recordings of one call


class Way(NamedTuple):
    """One way through a function: its steps, what it returns, and where its values have their lanes."""

    steps: list[Step]
    ends: list[str | None]  # the variables that it returns; None for what is no tensor
    outs: list[Any]  # of tensors `(lanes' dimension, other sizes, dtype)` or `(sizes, dtype)`, else values
    spec: Any
    many: Any
    inputs: int
    constants: dict[str, Tensor]
    dims: dict[str, Any]  # see `lane_dim`
    largest: int
    shares: bool  # memory with what was given, or among its results

    def answers(self) -> tuple[bool | None, ...]:
        """What the questions were answered."""
        return tuple([step.answer for step in self.steps if step.func is None])


def way_of(recording: CallRecording, out: Any, leaves: list[Any], spec: Any) -> Way:
    """A recording of a call that returned `out`."""
    if recording.in_place:
        raise Unrecorded  # values that are taken along are copies
    ends = ends_of(recording, leaves)
    outs = [(tuple(o.shape), o.dtype) if isinstance(o, Tensor) else o for o in leaves]
    return Way(
        passed(recording.steps),
        ends,
        outs,
        spec,
        container(out),
        recording.inputs,
        recording.constants,
        {},
        recording.largest,
        shared(recording, leaves),
    )


def merged(a: Way, first: CallRecording, b: Way, second: CallRecording) -> Way:
    """One way, of two recordings of it with different numbers of lanes."""
    assert first.lanes is not None
    assert second.lanes is not None
    numbers = first.lanes, second.lanes
    alike = (
        len(a.steps) == len(b.steps)
        and a.ends == b.ends
        and a.spec == b.spec
        and a.constants.keys() == b.constants.keys()
        and first.layouts.keys() == second.layouts.keys()
        and [*map(bits, a.constants.values())] == [*map(bits, b.constants.values())]
    )
    if not alike:
        raise Unrecorded
    steps = []
    for s, t in zip(a.steps, b.steps, strict=True):
        if s.func is not t.func or s.made != t.made or s.answer is not t.answer or s.kwargs.keys() != t.kwargs.keys():
            raise Unrecorded
        steps.append(
            s.changed(
                unified(s.args, t.args, *numbers), {k: unified(v, t.kwargs[k], *numbers) for k, v in s.kwargs.items()}
            )
        )
    dims = {name: lane_dim(*first.layouts[name], second.layouts[name][0], *numbers) for name in first.layouts}
    outs = []
    for end, s, t in zip(a.ends, a.outs, b.outs, strict=True):
        if end is None:
            if not same_value(s, t):
                raise Unrecorded
            outs.append(s)
            continue
        found = lane_dim(s[0], (0,) * len(s[0]), t[0], *numbers)
        if not found or s[1] is not t[1]:
            raise Unrecorded
        d = found[0]
        outs.append((d, s[0][:d] + s[0][d + 1 :], s[1]))
    return a._replace(steps=steps, dims=dims, outs=outs)


def bits(x: Tensor) -> Any:
    """What a small tensor is known by, to the last bit."""
    flat = x.detach().clone(memory_format=torch.contiguous_format).view(-1)
    return x.dtype, x.shape, x.stride(), flat.view(torch.uint8).numpy().tobytes()


def same_value(s: Any, t: Any) -> bool:
    """Whether two results that are no tensors are the same: 0.0 is not -0.0, nor 1 True."""
    return type(s) is type(t) and repr(s) == repr(t)


def with_shared_constants(ways: list[Way]) -> list[Way]:
    """The ways, with one name for one constant: each recording counts its own."""
    names: dict[Any, str] = {}
    made = []
    for way in ways:
        new = {name: names.setdefault(bits(x), f"k{len(names)}") for name, x in way.constants.items()}
        if any([a != b for a, b in new.items()]):
            way = way._replace(
                steps=[step.changed(renamed(step.args, new), renamed(step.kwargs, new)) for step in way.steps],
                ends=[end if end is None else new.get(end, end) for end in way.ends],
                constants={new[name]: x for name, x in way.constants.items()},
            )
        made.append(way)
    return made


def renamed(a: Any, new: dict[str, str]) -> Any:
    """An argument with other names for some tensors."""
    if isinstance(a, Ref):
        return a._replace(name=new.get(a.name, a.name))
    if isinstance(a, dict):
        return {k: renamed(v, new) for k, v in a.items()}
    return [renamed(x, new) for x in a] if isinstance(a, list) else a


def lane_dim(shape: Any, stride: Any, other: Any, lanes: int, others: int) -> Any:
    """The dimension of the lanes, and the order of all in memory; None: there are no lanes; False: it is not so simple."""
    if len(shape) != len(other):
        return False
    found = [d for d, (n, m) in enumerate(zip(shape, other, strict=True)) if n != m]
    if not found:
        return None
    if len(found) > 1 or shape[found[0]] != lanes or other[found[0]] != others:
        return False
    return found[0], tuple(sorted(range(len(shape)), key=lambda k: -stride[k]))


def cut(x: Tensor, dim: int, order: tuple[int, ...], places: Tensor) -> Tensor:
    """Some lanes of a value, whose dimensions lie in memory as before."""
    if order == tuple(range(len(order))):
        return x.index_select(dim, places)
    return x.permute(order).index_select(order.index(dim), places).permute([order.index(k) for k in range(len(order))])


def unified(a: Any, b: Any, lanes: int, others: int) -> Any:
    """An argument in two recordings, with sizes that differ as multiples of the number of lanes."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [unified(x, y, lanes, others) for x, y in zip(a, b, strict=True)]
    if agree(a, b):
        return a
    if type(a) is int and type(b) is int and a % lanes == 0 and a // lanes * others == b:
        return Multiple(a // lanes, lanes)
    raise Unrecorded


def explored(record: Callable[[Tensor, list[CallRecording]], Way], groups: list[Tensor]) -> list[Way]:
    """The ways that groups of lanes go; `record` records that of some lanes, and adds the recording to a list."""
    ways: list[Way] = []
    pending = list(groups)
    steps = 0
    while pending:
        lanes = pending.pop()
        if len(ways) + len(pending) >= MOST or steps >= MOST_STEPS:
            raise Unrecorded
        made: list[CallRecording] = []
        try:
            a, b = [record(some, made) for some in two_numbers(lanes)]
            ways.append(merged(a, made[0], b, made[1]))
        except Disagreed as split:
            pending += [lanes[places] for places in split.groups]
        steps += sum(len(recording.steps) for recording in made)
    return ways


def two_numbers(lanes: Tensor) -> tuple[Tensor, Tensor]:
    """These lanes, and another number of them; at least two, for sizes of one are special."""
    n = lanes.numel()
    if n == 1:
        return lanes.expand(2), lanes.expand(3)
    return lanes, lanes[: (n + 1) // 2] if n > 2 else lanes[[0, 1, 0]]
