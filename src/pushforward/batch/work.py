"""The runs of a call of `vmap`: one for all lanes; more where lanes disagree, differ in size, or come in chunks.

A run is one call of the function for some lanes. Lanes that leave a run wait for one of their own; results go back in
lane order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.journal import about_to_write
from ..core.source import source_line
from ..core.words import name_of
from .lanes import Split, Waiting, plainly
from .level import Batched, BatchLevel, wrap_input
from .ragged import Ragged, Rows
from .repeat import Repeats
from .report import CallReport, reports
from .settle import settle, stale

Tensor = torch.Tensor


class First(int):
    """An out_dim: the value in the first lane, for what is known to be the same in all."""

    def __repr__(self) -> str:
        return "FIRST"


FIRST = First(-(10**9))
NUMBERS = (bool, int, float, complex)


class Settings(NamedTuple):
    """What was said to `vmap`."""

    func: Any
    out_dims: Any
    randomness: str
    chunk_size: int | None
    divergence: str
    seed: int | None
    open_graph: bool = False  # the function looks at the graph of its values: record it on them


def describe(value: Any) -> str:
    """A short word for the structure of a pytree."""
    return tree.words(tree.flat(value)[1]) if not isinstance(value, (int, type(None))) else repr(value)


def run(settings: Settings, leaves: list[Any], spec: Any, dims: list[Any], size: int) -> Any:
    """Run all lanes and put the results together."""
    call = Call(settings, leaves, spec, dims, size)
    groups = None if spec is None and settings.chunk_size is None else first_groups(call)
    if groups is not None:
        return run_groups(call, groups)
    level = BatchLevel(size, settings.randomness)
    try:
        flat, out_spec = call.run_level(level, call.payloads)
    except BaseException:
        call.finish_repeats()
        raise
    if level.successor is None and not reports():
        return finish(settings, [placed(size, o, m) for o, m in flat], out_spec, flat)
    return run_groups(call, [], (level, flat, out_spec))


def first_groups(call: Call) -> list[Tensor] | None:
    """The lanes of each run to begin with: those of one size, at most `chunk_size` at a time; None: all in one."""
    ragged = [p for p in call.payloads if type(p) is Rows]
    chunk = call.settings.chunk_size
    if not ragged and (chunk is None or chunk >= call.size):
        return None
    by_shape: dict[Any, list[int]] = {}
    for lane, shapes in enumerate(zip(*[[r.shape for r in rows.rows] for rows in ragged], strict=True)):
        by_shape.setdefault(shapes, []).append(lane)
    with plainly():
        groups = [torch.tensor(lanes) for lanes in by_shape.values()] if ragged else [torch.arange(call.size)]
        if chunk is not None:
            groups = [part for group in groups for part in group.split(chunk)]
    return groups


class Call:
    """One call of a mapped function."""

    repeats: Repeats | None = None  # made when something must be the same in every run: draws, warnings
    writes: dict[int, Any] | None = None  # inputs that were written into: their values before
    report: CallReport | None = None
    inputs: Any = ()  # of the run that is going on

    def __init__(self, settings: Settings, leaves: list[Any], spec: Any, dims: list[Any], size: int) -> None:
        self.settings, self.spec, self.dims, self.size = settings, spec, dims, size
        self.payloads = [
            leaf if d is None or d == 0 else leaf.movedim(d, 0) for leaf, d in zip(leaves, dims, strict=True)
        ]

    @property
    def func(self) -> Any:
        """The function."""
        return self.settings.func

    def run_level(self, level: BatchLevel, payloads: list[Any]) -> tuple[list[Any], Any]:
        """One run: every output leaf comes back as (payload, mapped)."""
        level.call, level.func, level.open_graph = self, self.settings.func, self.settings.open_graph
        level.settings = self.settings
        if self.settings.divergence != "split":
            level.divergence = self.settings.divergence
        level.start()
        try:
            inputs = [p if d is None else wrap_input(level, p) for p, d in zip(payloads, self.dims, strict=True)]
            self.inputs = inputs
            if self.spec is None:
                out = self.settings.func(*inputs)
            else:
                args, kwargs = tree.unflatten(inputs, self.spec)
                out = self.settings.func(*args, **kwargs)
            if type(out) is Batched or type(out) is Tensor:
                outs, spec = [out], None
            else:
                outs, spec = tree.flat(out)
        except Exception as error:
            self.name_lanes(level, error)
            raise
        finally:
            level.stop()
            self.inputs = ()  # they know their level, which knows this call
        if self.writes:
            self.write_back(level, inputs)
        return [taken_out(level, o) for o in outs], spec

    def name_lanes(self, level: BatchLevel, error: Exception) -> None:
        """Say for which lanes an error was raised, if not for all."""
        level = level.newest()
        if level.lanes is None or len(level.lanes) == self.size:
            return
        lanes = level.lanes.tolist()
        listing = ", ".join(map(str, lanes[:8])) + (f", … ({len(lanes)} lanes)" if len(lanes) > 8 else "")
        error.add_note(
            f"vmap({name_of(self.func)}): raised for {'lane' if len(lanes) == 1 else 'lanes'} {listing} of {self.size}"
        )

    def part(self, lanes: Tensor) -> list[Any]:
        """The inputs of some lanes, as they were before any run."""
        out = []
        for k, (p, d) in enumerate(zip(self.payloads, self.dims, strict=True)):
            if d is None:
                out.append(p)
                continue
            if self.writes is not None:
                p = self.writes.get(k, p)
            if type(p) is Rows:
                out.append(torch.stack([p[i] for i in lanes.tolist()]))
            elif consecutive(lanes):
                out.append(p[int(lanes[0]) : int(lanes[-1]) + 1])
            else:
                out.append(p.index_select(0, lanes.to(p.device)))
        return out

    def before_write(self, root: Any) -> None:
        """Keep what an input was before its payload is written into: another run may need it."""
        for k, value in enumerate(self.inputs):
            if self.dims[k] is None or (self.writes is not None and k in self.writes):
                continue
            own = value._payload if value._cell is None else value._cell.root[0]
            if own is root:
                self.writes = {} if self.writes is None else self.writes
                p = self.payloads[k]
                about_to_write(p)
                self.writes[k] = Rows([row.clone() for row in p.rows], p.ragged) if type(p) is Rows else p.clone()

    def write_back(self, level: Any, inputs: list[Any]) -> None:
        """Give the caller's tensors what a run wrote into their lanes."""
        lanes = lanes_of(level.newest(), self.size)
        for k in self.writes or ():
            value, target = inputs[k], self.payloads[k]
            if value._payload is target:
                continue
            if stale(value):
                settle(value)
            payload = value._payload
            if type(target) is Rows:
                for i, lane in enumerate(lanes.tolist()):
                    target[lane].copy_(payload[i])
            elif not share_memory(payload, target):  # else it is a slice of it, where the numbers are already
                target.index_copy_(0, lanes.to(target.device), payload)

    def note_split(self, sizes: list[int]) -> None:
        """Keep what the report will say; from now on warnings of this run are remembered."""
        self.repeating().watch_warnings()
        if self.report is None and reports():
            self.report = CallReport(name_of(self.func), self.size)
        if self.report is not None:
            self.report.splits.append(Split(source_line(), tuple(sizes)))

    def repeating(self) -> Repeats:
        """What must be the same in every run."""
        if self.repeats is None:
            self.repeats = Repeats(self.settings.seed, self.size)
        return self.repeats

    def begin(self, level: Any, waiting: Waiting) -> None:
        """A run of some lanes begins: the first of its lanes, or one of lanes that have left an earlier run."""
        if waiting.repeats is None and self.repeats is not None and self.settings.randomness == "same":
            self.repeats.begin(level, waiting)  # one draw for all lanes, also those of another size or chunk
        elif waiting.repeats is None:
            self.finish_repeats()
            self.repeats = Repeats(self.settings.seed, waiting.lanes.numel(), waiting.lanes)
            self.repeats.level = level
        else:
            waiting.repeats.begin(level, waiting)

    def finish_repeats(self) -> None:
        """No more runs of the lanes of this first run."""
        if self.repeats is not None:
            self.repeats.end()


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two plain tensors look at one storage."""
    return type(a) is Tensor and type(b) is Tensor and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def lanes_of(level: Any, size: int) -> Tensor:
    """Which lanes of the call those of a level are."""
    with plainly():
        return torch.arange(size) if level.lanes is None else level.lanes


def consecutive(lanes: Tensor) -> bool:
    """Whether lanes, which come in rising order, are a slice."""
    n = lanes.numel()
    return n > 0 and int(lanes[-1]) - int(lanes[0]) == n - 1


class Done(NamedTuple):
    """A run that has ended: its lanes, their results (stacked), the structure of these, and what it returned."""

    lanes: Tensor
    rows: list[Any]
    spec: Any
    shared: list[Any]


def run_groups(call: Call, groups: list[Tensor], first: Any = None) -> Any:
    """Run group by group, and the lanes that leave runs, until every lane has its result."""
    done: list[Done] = []
    pending = [Waiting(group) for group in groups]
    runs: list[int] = []

    def ended(level: Any, flat: list[Any], spec: Any) -> None:
        newest = level.newest()
        lanes = lanes_of(newest, call.size)
        done.append(Done(lanes, [placed(newest.size, o, m) for o, m in flat], spec, flat))
        runs.append(level.size)
        pending[:0] = level.queue
        while level is not None:  # levels of one run know each other; values that escaped need not keep the call alive
            level.call, level.first, level = None, None, level.successor

    try:
        if first is not None:
            ended(*first)
        while pending:
            waiting = pending.pop(0)
            level = BatchLevel(waiting.lanes.numel(), call.settings.randomness)
            level.lanes, level.prefix = waiting.lanes, waiting.asked
            call.begin(level, waiting)
            ended(level, *call.run_level(level, call.part(waiting.lanes)))
    finally:
        call.finish_repeats()
    if reports():
        report = call.report or CallReport(name_of(call.func), call.size)
        report.runs, report.groups = runs, [d.lanes.numel() for d in done]
        reports()[-1].add(report)
    return joined(call, done)


def joined(call: Call, done: list[Done]) -> Any:
    """The results of all runs in lane order."""
    spec = done[0].spec
    done = list(done)
    for k, d in enumerate(done[1:], 1):
        if {spec, d.spec} == {None, tree.LEAF}:  # a tensor, and a number
            spec = tree.LEAF
        elif d.spec != spec:
            if spec is not None and d.spec is not None:
                places = tree.flat_like(tree.unflatten([*range(d.spec.num_leaves)], d.spec), spec)
                if places is not None:  # keys of dicts in another order
                    done[k] = d._replace(rows=[d.rows[j] for j in places], shared=[d.shared[j] for j in places])
                    continue
            msg = (
                f"vmap({name_of(call.func)}): the lanes returned different structures: lane "
                f"{int(done[0].lanes[0])} returned "
                f"{tree.words(spec)}, lane {int(d.lanes[0])} returned {tree.words(d.spec)}"
            )
            raise ArgumentError(msg)
    counts = [d.lanes.numel() for d in done]
    with plainly():
        order = None
        if not all([int(before.lanes[-1]) < int(after.lanes[0]) for before, after in pairwise(done)]):
            lanes = torch.cat([d.lanes for d in done])
            order = torch.empty_like(lanes).index_copy_(0, lanes, torch.arange(call.size))
    outs = [in_order(column, counts, order) for column in zip(*[d.rows for d in done], strict=True)]
    shared = [shared_by_all([d.shared[k] for d in done]) for k in range(len(outs))]
    return finish(call.settings, outs, spec, shared)


def in_order(column: Any, counts: list[int], order: Tensor | None) -> Any:
    """One output of all runs in lane order: stacked if the shapes agree, else ragged; numbers as a tensor.

    `order` says where each lane is among those of the runs, one after another; None: they are in order.
    """
    tensors = [isinstance(c, Tensor) for c in column]
    if all(tensors) and all([c.shape[1:] == column[0].shape[1:] for c in column]):
        whole = torch.cat(column) if len(column) > 1 else column[0]
        return whole if order is None else whole.index_select(0, order.to(whole.device))
    if not any(tensors) and all(type(v) is type(column[0]) and v == column[0] for v in column):
        return column[0]
    spread = [v[k] if t else v for v, t, n in zip(column, tensors, counts, strict=True) for k in range(n)]
    values = spread if order is None else [spread[k] for k in order.tolist()]
    if all([isinstance(v, Tensor) for v in values]):
        return Ragged(values)
    if not any(tensors):
        return torch.tensor(values) if all([isinstance(v, NUMBERS) for v in values]) else values
    if not all([isinstance(v, (Tensor, *NUMBERS)) for v in values]):
        return values
    like = next(c for c, t in zip(column, tensors, strict=True) if t)
    dtype = like.dtype
    for v in values:
        dtype = torch.result_type(torch.empty((), dtype=dtype), v if not isinstance(v, Tensor) else torch.empty((), dtype=v.dtype))
    values = [v.to(dtype) if isinstance(v, Tensor) else torch.tensor(v, dtype=dtype, device=like.device) for v in values]
    return torch.stack(values) if all([v.shape == values[0].shape for v in values]) else Ragged(values)


def taken_out(level: BatchLevel, o: Any) -> tuple[Any, bool | None]:
    """An output leaf as (payload, mapped); mapped is None for what is no tensor."""
    if type(o) is Batched:
        if stale(o) and o._level.newest() is level.newest():
            settle(o)
        if o._level is level.newest():
            return o._payload, o._mapped
    return (o, False) if isinstance(o, Tensor) else (o, None)


def placed(size: int, o: Any, m: bool | None) -> Any:
    """An output with the mapped dimension in front, for every tensor."""
    if m is None or m:
        return o
    return o.unsqueeze(0).expand(size, *o.shape)


def shared_by_all(parts: list[Any]) -> Any:
    """An output of several runs as (value, mapped): what all runs share, if they do."""
    first, mapped = parts[0]
    if mapped is None or not all(m is False and o.shape == first.shape for o, m in parts):
        return first, True
    same = all(o is first or type(o) is not Tensor or type(first) is not Tensor or equal(o, first) for o, _ in parts)
    return first, not same


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two plain tensors hold the same numbers."""
    with plainly():
        return bool(torch.equal(a, b))


def finish(settings: Settings, outs: list[Any], spec: Any, flat: list[Any]) -> Any:
    """Move the mapped dimension to `out_dims` and put the outputs together; `flat` has what the function returned."""
    out_dims = settings.out_dims
    if spec is None:
        o = outs[0]
        if type(out_dims) is not int:
            out_dims = spread_out_dims(settings, o, [o])[0]
        return moved(settings, o, out_dims, flat[0])
    value = tree.unflatten(outs, spec)
    if type(out_dims) is int:
        dims = [out_dims] * len(outs)
    else:
        dims = spread_out_dims(
            settings, tree.unflatten([None if isinstance(o, Ragged) else o for o in outs], spec), outs
        )
    if all(d == 0 for d in dims):
        return value
    return tree.unflatten([moved(settings, o, d, own) for o, d, own in zip(outs, dims, flat, strict=True)], spec)


def moved(settings: Settings, o: Any, d: Any, own: tuple[Any, Any]) -> Any:
    """One output with the mapped dimension at `d`; `own` is the value that the function returned, and whether it is mapped."""
    if isinstance(o, Ragged) and d != 0:
        msg = (
            f"vmap({name_of(settings.func)}, out_dims={settings.out_dims!r}): an output differs in "
            f"shape between lanes, so its out_dim must be 0"
        )
        raise ArgumentError(msg)
    if not isinstance(o, Tensor):
        return o
    if d is FIRST:
        return own[0] if own[1] is False else o[0] if o.shape[0] else o.new_zeros(o.shape[1:])
    if d is None:
        if own[1]:
            msg = (
                f"vmap({name_of(settings.func)}, out_dims={settings.out_dims!r}): an output of shape {list(o.shape[1:])} "
                f"differs between lanes, so its out_dim cannot be None"
            )
            raise ArgumentError(msg)
        return own[0]
    if d == 0:
        return o
    if not -o.dim() <= d < o.dim():
        msg = (
            f"vmap({name_of(settings.func)}, out_dims={settings.out_dims!r}): out_dim {d} is out of range "
            f"for an output of shape "
            f"{list(o.shape[1:])} per lane"
        )
        raise ArgumentError(msg)
    return o.movedim(0, d)


def spread_out_dims(settings: Settings, value: Any, outs: list[Any]) -> list[Any]:
    """One out_dim for each output leaf."""
    dims = settings.out_dims
    if isinstance(dims, (tuple, list)) and len(dims) == 1 and isinstance(value, Tensor) and isinstance(dims[0], (int, type(None))):
        return [dims[0]]
    spread = tree.broadcast_prefix(dims, value, is_leaf=lambda d: d is None or isinstance(d, int))
    if spread is None or len(spread) != len(outs):
        msg = (
            f"vmap({name_of(settings.func)}, out_dims={dims!r}): out_dims does not match the structure of "
            f"the output; it has "
            f"{describe(dims)}, the output has {describe(value)}"
        )
        raise ArgumentError(msg)
    return spread
