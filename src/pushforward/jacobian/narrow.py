"""Functions that narrow inside, as 2000 → 10 → 2000: J = J₂ J₁ through the narrowest place of the program.

The function is traced to a graph of operators. Every path from the inputs to the outputs passes a set of values with
the fewest numbers k: a minimum vertex cut, each value weighted by its elements, found as a maximum flow (Ford, Fulkerson
1956; Dinic 1970). J₁ takes k reverse passes through the first part, J₂ k forward passes through the second. A second cut
could not help: what lies before the cut is done in k passes already, and no other cut has fewer numbers.

A traced program does not know the user's `detach`, `no_grad` or `torch.autograd.Function`, so a plan compares one
random product with the function itself, the first time; `jacobian` every time. The product goes through the two
factors: to read the whole matrix again would take as long as to write it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.fx.node import map_arg

from .passes import Passes, one_hot
from .problem import Problem

Tensor = torch.Tensor
Node = Any
INFINITE = float("inf")

# A cut is worth the tracing when it has so many fewer numbers than inputs and outputs.
NARROW_ENOUGH = 0.25


class Flow:
    """A network of edges with capacities, and its maximum flow by blocking flows (Dinic)."""

    def __init__(self, size: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(size)]
        self.to: list[int] = []
        self.left: list[float] = []

    def add(self, a: int, b: int, capacity: float) -> None:
        """An edge, and its reverse without capacity."""
        for start, end, amount in ((a, b, capacity), (b, a, 0.0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.left.append(amount)

    def reachable(self, source: int) -> list[int]:
        """Distance from the source over edges with capacity left, −1 where there is no way."""
        distance = [-1] * len(self.edges)
        distance[source] = 0
        queue = deque([source])
        while queue:
            a = queue.popleft()
            for e in self.edges[a]:
                if self.left[e] > 0 and distance[self.to[e]] < 0:
                    distance[self.to[e]] = distance[a] + 1
                    queue.append(self.to[e])
        return distance

    def maximum(self, source: int, sink: int, stop: float) -> float:
        """Send as much as possible; give up at `stop`."""
        total = 0.0
        while total < stop:
            distance = self.reachable(source)
            if distance[sink] < 0:
                return total
            following = [0] * len(self.edges)
            while (sent := self.path(source, sink, distance, following)) > 0:
                total += sent
                if total >= stop:
                    return total
        return total

    def path(self, source: int, sink: int, distance: list[int], following: list[int]) -> float:
        """Send along one shortest path; how much went through."""
        trail: list[int] = []
        a = source
        while a != sink:
            while following[a] < len(self.edges[a]):
                e = self.edges[a][following[a]]
                if self.left[e] > 0 and distance[self.to[e]] == distance[a] + 1:
                    break
                following[a] += 1
            if following[a] == len(self.edges[a]):
                if a == source:
                    return 0.0
                a = self.to[trail.pop() ^ 1]
                following[a] += 1
                continue
            trail.append(self.edges[a][following[a]])
            a = self.to[trail[-1]]
        amount = min(self.left[e] for e in trail)
        for e in trail:
            self.left[e] -= amount
            self.left[e ^ 1] += amount
        return amount


class Sizes(torch.fx.Interpreter):
    """Runs the graph once and notes the elements of each floating-point value (None for anything else)."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[Node, int | None] = {}

    def run_node(self, n: Node) -> Any:
        """Note the size of what a node gives."""
        out = super().run_node(n)
        floating = isinstance(out, Tensor) and (out.is_floating_point() or out.is_complex())
        self.found[n] = out.numel() if floating else (-1 if isinstance(out, (tuple, list)) else None)
        return out


class Narrow:
    """A function cut in two.

    Attributes:
        width: the numbers at the cut.
        before: inputs to the values at the cut, and the values that pass without a derivative.
        after: both of these to the outputs.
    """

    def __init__(self, before: Any, after: Any, width: int, cut: int) -> None:
        self.before, self.after, self.width, self.cut = before, after, width, cut

    def factors(self, problem: Problem, chunk: int | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """J₂ [m × width], J₁ [width × n], and the outputs of the program."""
        first = Problem(self.before, tuple(range(len(problem.leaves))), tuple(problem.leaves), {}, True, problem.what)
        passes = Passes(first)
        ones: list[Tensor] = []

        def seeds(a: int, b: int) -> list[Tensor]:
            if not ones:
                ones.extend(torch.zeros((), dtype=c.dtype, device=c.device).expand(c.shape) for c in first.outs)
            return one_hot(None, ones, a, b)

        inner = passes.reverse(seeds, self.width, chunk)
        cut, carried = first.outs, passes.aux
        second = Problem(self.after, tuple(range(len(cut))), (*cut, *carried), {}, False, problem.what)
        passes = Passes(second)
        outer = passes.forward(lambda a, b: one_hot(None, second.leaves, a, b), self.width, chunk, turned=True)
        return outer, inner, second.outs

    def jacobian(self, problem: Problem, chunk: int | None) -> Tensor:
        """J₂ J₁ as one matrix m × n."""
        outer, inner, _ = self.factors(problem, chunk)
        return outer @ inner


def traced(problem: Problem) -> torch.fx.GraphModule | None:
    """The function as a graph of operators; None where it cannot be one, or would not be the same function."""
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves = [x.detach() for x in problem.leaves]
    try:
        module = make_fx(problem.plain)(*leaves)
    except Exception:  # the function branches on values, or does something that cannot be traced
        return None
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            op = node.target
            if (
                op._schema.is_mutable
                or torch.Tag.nondeterministic_seeded in op.tags
                or op.overloadpacket.__name__ == "detach"
            ):
                return None
    return module


def find(problem: Problem) -> Narrow | None:
    """The function cut at its narrowest place, if that is narrow enough."""
    module = traced(problem)
    if module is None:
        return None
    sizes = Sizes(module)
    with torch.no_grad():
        sizes.run(*[x.detach() for x in problem.leaves])
    nodes = list(module.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    output = nodes[-1]
    depends = set(placeholders)
    for n in nodes:
        if any(a in depends for a in n.all_input_nodes):
            depends.add(n)
    cut = minimum_cut(nodes, placeholders, output, depends, sizes.found, NARROW_ENOUGH * min(problem.n, problem.m))
    if cut is None:
        return None
    width = sum(sizes.found[n] or 0 for n in cut)
    return split(module, placeholders, output, depends, cut, width)


def minimum_cut(
    nodes: list[Node],
    placeholders: list[Node],
    output: Node,
    depends: set[Node],
    sizes: dict[Node, int | None],
    most: float,
) -> list[Node] | None:
    """The values of fewest elements that all derivatives pass; None if there are `most` elements or more."""
    live = [n for n in nodes if n in depends and n is not output and sizes[n] is not None]
    number = {n: 2 * k for k, n in enumerate(live)}
    source, sink = 2 * len(live), 2 * len(live) + 1
    flow = Flow(2 * len(live) + 2)
    for n in live:
        size = sizes[n]
        flow.add(number[n], number[n] + 1, INFINITE if size is None or size < 0 else float(size))
        for a in n.all_input_nodes:
            if a in number:
                flow.add(number[a] + 1, number[n], INFINITE)
    for n in placeholders:
        flow.add(source, number[n], INFINITE)
    for a in output.all_input_nodes:
        if a in number:
            flow.add(number[a] + 1, sink, INFINITE)
    if flow.maximum(source, sink, max(most, 1.0)) >= max(most, 1.0):
        return None
    seen = flow.reachable(source)
    return [n for n in live if seen[number[n]] >= 0 and seen[number[n] + 1] < 0]


def split(
    module: torch.fx.GraphModule,
    placeholders: list[Node],
    output: Node,
    depends: set[Node],
    cut: list[Node],
    width: int,
) -> Narrow | None:
    """Two graphs: up to the cut, and from it."""
    if not cut or any(n in placeholders for n in cut):
        return None
    below = set(cut)
    for n in module.graph.nodes:
        if any(a in below for a in n.all_input_nodes):
            below.add(n)
    carried: list[Node] = []
    after = torch.fx.Graph()
    made: dict[Node, Node] = {n: after.placeholder(f"cut_{k}") for k, n in enumerate(cut)}
    needed = ancestors(output, lambda n: n in made or (n in depends and n not in below))
    for n in module.graph.nodes:
        if n in needed and n in depends and n not in below and n not in made:
            carried.append(n)
            made[n] = after.placeholder(f"carried_{len(carried)}")
    for n in module.graph.nodes:
        if n in needed and n not in made and n is not output:
            made[n] = after.node_copy(n, lambda a: made[a])
    after.output(map_arg(output.args[0], lambda a: made[a]))

    before = torch.fx.Graph()
    copy: dict[Node, Node] = {n: before.placeholder(n.name) for n in placeholders}
    wanted = set()
    for n in (*cut, *carried):
        wanted |= ancestors(n, lambda _: False)
    for n in module.graph.nodes:
        if n in wanted and n not in copy:
            copy[n] = before.node_copy(n, lambda a: copy[a])
    before.output(([copy[n] for n in cut], [copy[n] for n in carried]))
    return Narrow(torch.fx.GraphModule(module, before), torch.fx.GraphModule(module, after), width, len(cut))


def ancestors(node: Node, stops: Any) -> set[Node]:
    """A node and what it is made from, not going past the nodes that `stops`."""
    seen, queue = {node}, [node]
    while queue:
        n = queue.pop()
        if stops(n) and n is not node:
            continue
        for a in n.all_input_nodes:
            if a not in seen:
                seen.add(a)
                queue.append(a)
    return seen
