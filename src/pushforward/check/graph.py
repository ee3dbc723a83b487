"""What no operator alone shows: values overwritten after they were saved, hooks, and what torch does not see.

Forward: intermediate values at x ± hv, operator by operator, against the tangents of a run on dual numbers; the first
that differs. Reverse: at each node of the graph ⟨what arrives, ẏ⟩ = Σ ⟨what it passes on, ẋ⟩, with tangents from
the same values. Both keep intermediate values; a budget bounds them, and a large function is walked in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..forward.level import Dual
from ..ops.table import entry
from .decisions import exact, moving_kind
from .observe import Call, Observer, innermost_jvp, tensors
from .subject import Subject, moved, real_vector

Tensor = torch.Tensor
BUDGET = 256 * 2**20  # bytes of intermediate values kept at a time
CHUNKS = 6
MOST = 45  # evaluations after which no further chunk is begun
WEIGHED = 1e-5  # relative difference of a node's inner products that counts
Key = tuple[str, str, int]


class Keyed(Observer):
    """Operators by name, line and how often they came there: the same key in a plain run and in one on dual numbers."""

    def __init__(self, skip: int = 0, budget: int = BUDGET) -> None:
        super().__init__()
        self.counts: dict[tuple[str, str], int] = {}
        self.order: list[Key] = []
        self.skip, self.budget = skip, budget
        self.full = False
        self.reached = skip

    def key(self, call: Call) -> Key:
        """The key of this call."""
        pair = call.name, call.source
        n = self.counts[pair] = self.counts.get(pair, -1) + 1
        made = (*pair, n)
        self.order.append(made)
        return made

    def wants(self, size: int) -> bool:
        """Whether the results of the last call are within this chunk."""
        if len(self.order) <= self.skip or self.full:
            return False
        self.budget -= size
        self.full = self.budget < 0
        self.reached = len(self.order)
        return True

    def next_chunk(self) -> int:
        """Where the next chunk begins: it overlaps by half, for a node is weighed with its neighbours."""
        return max(self.skip + 1, self.skip + (self.reached - self.skip) // 2)


class Marks(Keyed):
    """Fingerprints of operators' results: a key means the same operator in two runs where these are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[Key, int] = {}

    def operator(self, call: Call) -> Any:
        """Run and mark."""
        key = self.key(call)
        out = call.run()
        with self.aside():
            self.marks[key] = exact([o for o in tensors(out) if moving_kind(o)])
        return out


class Values(Keyed):
    """Keeps the results of operators."""

    def __init__(self, skip: int = 0) -> None:
        super().__init__(skip)
        self.found: dict[Key, list[Tensor]] = {}

    def operator(self, call: Call) -> Any:
        """Run and keep."""
        key = self.key(call)
        out = call.run()
        results = [o for o in tensors(out) if moving_kind(o)]
        if results and self.wants(sum(o.numel() * 8 for o in results)):
            with self.aside():
                self.found[key] = [real_vector(o).clone() for o in results]
        return out


class Tangents(Keyed):
    """Keeps the tangents of operators' results, in a run on dual numbers."""

    def __init__(self, skip: int = 0) -> None:
        super().__init__(skip)
        self.found: dict[Key, list[Tensor]] = {}
        self.marks: dict[Key, int] = {}

    def operator(self, call: Call) -> Any:
        """Run and keep."""
        key = self.key(call)
        out = call.run()
        results = [o for o in tensors(out) if moving_kind(o)]
        if results and self.wants(sum(o.numel() * 8 for o in results)):
            level = innermost_jvp()
            with self.aside():
                self.found[key] = [tangent_of(o, level).clone() for o in results]
                self.marks[key] = exact([o._primal if type(o) is Dual else o for o in results])
        return out


def tangent_of(o: Tensor, level: Any) -> Tensor:
    """The tangent of a dual number of `level`, zeros for anything else."""
    if type(o) is Dual and o._level is level:
        return torch.zeros_like(o._primal) if o._tangent is None else o._tangent.detach()
    return torch.zeros(o.shape, dtype=o.dtype)


@dataclass
class Place:
    """An operator found at fault, by its effect."""

    operator: str
    source: str
    function: Any
    relative: float
    message: str


def first_forward(subject: Subject, direction: list[Tensor], step: float, origin: list[Tensor] | None) -> Place | None:
    """The first operator whose tangent is not the derivative of its value along the direction."""
    point = subject.point if origin is None else origin
    skip, at = 0, Marks()
    subject.values(point, at)
    for _ in range(CHUNKS):
        if subject.calls > MOST:
            break
        below, above, pushed = Values(skip), Values(skip), Tangents(skip)
        subject.values(moved(point, direction, -step), below)
        subject.values(moved(point, direction, step), above)
        subject.push(direction, pushed, point)
        for key in pushed.order:
            if key not in pushed.found or key not in above.found or key not in below.found:
                continue
            if at.marks.get(key) != pushed.marks[key]:
                continue
            for t, a, b in zip(pushed.found[key], above.found[key], below.found[key], strict=False):
                t = real_vector(t)
                if t.shape != a.shape or a.shape != b.shape or not t.numel():
                    continue
                d = (a - b) / (2 * step)
                size = max(float(d.abs().max()), float(t.abs().max()))
                noise = 1e-15 * float(a.abs().max()) / step
                off = float((d - t).abs().max())
                if size > 0 and off > 1e-4 * size + 100 * noise:
                    return Place(key[0], key[1], None, off / size, "")
        if not above.full:
            return None
        skip = above.next_chunk()
    return None


class Graph(Keyed):
    """The nodes of autograd's graph by operator, and hooks that weigh what passes through them."""

    def __init__(
        self,
        tangents: dict[Key, list[Slope]],
        marks: dict[Key, int],
        direction: list[Tensor],
        cotangents: list[Tensor],
    ) -> None:
        super().__init__()
        self.marks = marks
        self.tangents, self.direction, self.cotangents = tangents, direction, cotangents
        self.pending: tuple[Key, list[Tensor], Call] | None = None
        self.nodes: dict[Any, dict[int, Slope]] = {}
        self.owners: dict[Any, tuple[Key, Any]] = {}
        self.arrived: dict[tuple[Any, int], float] = {}
        self.sizes: dict[tuple[Any, int], float] = {}
        self.bad: list[tuple[Key, Any, float, str]] = []
        self.saved: dict[Key, tuple[int, set[int]]] = {}
        self.writes: list[tuple[int, str, str, set[int]]] = []
        self.cut: Key | None = None  # the first result that moves with the inputs and carries no gradient

    def operator(self, call: Call) -> Any:
        """Note the node of the previous operator, then run this one."""
        self.settle()
        key = self.key(call)
        out = call.run()
        results = [o for o in tensors(out) if moving_kind(o)]
        with self.aside():
            if exact(results) != self.marks.get(key):
                self.tangents.pop(key, None)
        self.pending = (key, results, call)
        place = len(self.order)
        storages = {
            t.untyped_storage().data_ptr()
            for t in tensors([*call.args, out])
            if t.layout is torch.strided and t.numel()
        }
        self.saved[key] = (place, storages)
        if call.kind == "operator":
            e = entry(call.function)
            if e.writes:
                targets = {t.untyped_storage().data_ptr() for t in tensors([call.args[k] for k in e.writes])}
                self.writes.append((place, call.name, call.source, targets))
        return out

    def settle(self) -> None:
        """Map the nodes that autograd made for the last operator to its tangents."""
        if self.pending is None:
            return
        key, results, call = self.pending
        self.pending = None
        found = self.tangents.get(key)
        for k, o in enumerate(results):
            fn = o.grad_fn
            if fn is None:
                if (
                    found is not None
                    and not o.requires_grad
                    and k < len(found)
                    and bool((found[k].value.abs() > found[k].noise).any())
                ):
                    self.cut = self.cut or key
                continue
            self.owners.setdefault(fn, (key, call.function if call.kind == "function" else None))
            if found is not None and k < len(found) and found[k].numel() == real_vector(o).numel():
                self.nodes.setdefault(fn, {})[o.output_nr] = found[k]

    def graph(self, inputs: list[Tensor], outs: list[Tensor]) -> None:
        """Hang a hook on each known node."""
        self.settle()
        leaves = {id(x): t for x, t in zip(inputs, self.direction, strict=True)}
        for o, u in zip(outs, self.cotangents, strict=True):
            if o.grad_fn is not None:
                self.arrives(o.grad_fn, o.output_nr, u)

        def tangent(fn: Any, nr: int) -> Slope | None:
            variable = getattr(fn, "variable", None)
            if variable is not None:
                return Slope(real_vector(leaves.get(id(variable), torch.zeros_like(variable))), 0.0)
            return self.nodes.get(fn, {}).get(nr)

        for fn in list(self.owners):

            def hook(given: Any, received: Any, fn: Any = fn) -> None:
                with torch.no_grad():
                    self.weigh(fn, given, received, tangent)

            fn.register_hook(hook)

    def arrives(self, fn: Any, nr: int, g: Tensor) -> None:
        """Add what a consumer passes on to a value."""
        t = self.nodes.get(fn, {}).get(nr)
        if t is not None and t.numel() == real_vector(g).numel():
            part, size = products(g, t)
            place = fn, nr
            self.arrived[place] = self.arrived.get(place, 0.0) + part
            self.sizes[place] = self.sizes.get(place, 0.0) + size

    def weigh(self, fn: Any, given: Any, received: Any, tangent: Any) -> None:
        """The two inner products of one node."""
        known = self.nodes.get(fn, {})
        left, size = 0.0, 0.0
        for nr, g in enumerate(received):
            if g is None:
                continue
            t = known.get(nr)
            if t is None or t.numel() != real_vector(g).numel():
                left = float("nan")
                continue
            part, weight = products(g, t)
            left, size = left + part, size + weight
            expected = self.arrived.get((fn, nr))
            if expected is not None and abs(expected - part) > WEIGHED * (self.sizes[fn, nr] + weight):
                key, function = self.owners[fn]
                self.bad.append((key, function, abs(expected - part) / (self.sizes[fn, nr] + weight), "hook"))
        right, complete = 0.0, True
        for (source, nr), g in zip(fn.next_functions, given, strict=False):
            if g is None or source is None:
                continue
            t = tangent(source, nr)
            if t is None or t.numel() != real_vector(g).numel():
                complete = False
            else:
                part, weight = products(g, t)
                right, size = right + part, size + weight
            self.arrives(source, nr, g)
        if complete and left == left and abs(left - right) > WEIGHED * size:
            key, function = self.owners[fn]
            self.bad.append((key, function, abs(left - right) / size, "node"))


class Slope(NamedTuple):
    """A tangent by differences, and the size of its rounding."""

    value: Tensor
    noise: float

    def numel(self) -> int:
        """The number of its entries."""
        return self.value.numel()


def slope(above: Tensor, below: Tensor, step: float) -> Slope:
    """The central difference of an intermediate value."""
    top = float(above.abs().max()) if above.numel() else 0.0
    return Slope((above - below) / (2 * step), 4e-16 * top / step)


def products(a: Tensor, b: Slope) -> tuple[float, float]:
    """⟨a, b⟩, and the sum of the sizes of its terms, in which rounding has the weight that it takes to be ignored."""
    g = real_vector(a)
    p = g * b.value
    return float(p.sum()), float(p.abs().sum()) + float(g.abs().sum()) * b.noise / WEIGHED


def first_reverse(
    subject: Subject, direction: list[Tensor], cotangents: list[Tensor], step: float, origin: list[Tensor] | None
) -> Place | None:
    """The first node, in the order of the backward pass, that does not pass on what it should."""
    point = subject.point if origin is None else origin
    skip, at = 0, Marks()
    subject.values(point, at)
    for _ in range(CHUNKS):
        if subject.calls > MOST:
            break
        below, above = Values(skip), Values(skip)
        subject.values(moved(point, direction, -step), below)
        subject.values(moved(point, direction, step), above)
        tangents = {
            key: [slope(a, b, step) for a, b in zip(found, below.found[key], strict=False) if a.shape == b.shape]
            for key, found in above.found.items()
            if key in below.found
        }
        graph = Graph(tangents, at.marks, direction, cotangents)
        subject.pull(cotangents, graph, point)
        if graph.bad:
            return described(graph, *graph.bad[0])
        if graph.cut is not None:
            name, source, _ = graph.cut
            text = (
                f"the result of `{name}` moves with the inputs but carries no gradient: the derivative was cut before "
                "(a `.detach()` inside a backward, once_differentiable, a result marked as not differentiable)"
            )
            return Place(name, source, None, 1.0, text)
        if not above.full:
            return None
        skip = above.next_chunk()
    return None


def described(graph: Graph, key: Key, function: Any, relative: float, how: str) -> Place:
    """Words for a node at fault."""
    name, source, _ = key
    if how == "hook":
        return Place(
            name, source, function, relative, f"a hook on the result of `{name}` changes the gradient that passes it"
        )
    place, storages = graph.saved[key]
    for later, writer, line, targets in graph.writes:
        if later > place and targets & storages:
            text = (
                f"`{writer}` overwrites in place a value that the backward of `{name}` at {source} uses, and "
                "autograd is not told "
                "(a write through `.data`, or a value kept outside of save_for_backward)"
            )
            return Place(writer, line, function, relative, text)
    text = (
        f"`{name}` passes back a wrong gradient in this graph, though alone its rule is right: its backward uses "
        "something that "
        "changed since, or a hook changes it"
    )
    return Place(name, source, function, relative, text)
