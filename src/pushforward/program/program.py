"""`trace`: any composition of transforms as a `Program`, a flat graph that can be read, costed, run and compiled."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from ..core import tree
from ..core.errors import ArgumentError
from ..core.traced import Traced
from ..core.words import check_function, instead, is_number, kind, short
from .capture import Origin, Recording, record
from .cost import Cost, cost
from .functional import has_writes, without_writes, writes
from .homes import Home, Homes, homes_of
from .lines import name_variables
from .simplify import simplify

Tensor = torch.Tensor
aten = torch.ops.aten


@dataclass
class Input:
    """An input of a program: an argument, or a tensor that the function has captured."""

    name: str
    path: str
    example: Tensor | None = None  # captured tensors are held, arguments are not
    homes: list[Home] = field(default_factory=list)

    @property
    def captured(self) -> bool:
        """Whether the function brings this input along."""
        return self.example is not None


@dataclass
class Question:
    """A value that the function's Python code asked for: the program holds where the answer is the same."""

    answer: Any
    origin: Origin | None


@dataclass
class Program:
    """A function at given shapes as a flat graph of ATen operators without writes.

    `graph` takes the tensors of the arguments in order, then the captured ones, and gives the tensors of the result,
    then the values that the function's Python code asked for.
    """

    name: str
    graph: Graph
    constants: dict[str, Tensor]
    inputs: list[Input]
    in_spec: Any
    in_leaves: list[Any]  # Python leaves of the arguments; tensors are left out (None)
    places: list[int]  # which leaves of the arguments are tensors
    out_spec: Any
    out_leaves: list[Any]  # Python leaves of the result
    out_places: list[int]
    questions: list[Question]
    homes: Homes
    mode: Any = field(repr=False)
    symbolic: bool = False

    @property
    def arguments(self) -> list[Input]:
        """The inputs that come with a call."""
        return [i for i in self.inputs if not i.captured]

    @property
    def captured(self) -> list[Input]:
        """The inputs that the function brings along."""
        return [i for i in self.inputs if i.captured]

    @property
    def writes(self) -> bool:
        """Whether running the program changes an input."""
        return any(writes(node) for node in self.graph.nodes)

    @property
    def module(self) -> GraphModule:
        """The graph as something to call with a flat list of inputs."""
        return GraphModule(dict(self.constants), self.graph)

    def cost(self) -> Cost:
        """Operators, flops, bytes read and written, peak bytes."""
        return cost(self.graph)

    def source(self) -> str:
        """The program as runnable PyTorch code."""
        from .printing import printed

        return printed(self)

    def __str__(self) -> str:
        return self.source()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; the arguments have the structure and shapes it was traced for."""
        leaves = tree.flat_like((args, kwargs), self.in_spec)
        if leaves is None:
            given = tree.words(tree.flat((args, kwargs))[1])
            msg = f"program {self.name}: it was traced for the structure {tree.words(self.in_spec)}, but was called with {given}"
            raise ArgumentError(msg)
        for given, expected, k in zip(self.arguments, self.examples, self.places, strict=False):
            x = leaves[k]
            if not isinstance(x, Tensor) or x.dtype != expected.dtype or (not self.symbolic and x.shape != expected.shape):
                how = f"; {instead(x)}" if is_number(x) else ""
                msg = f"program {self.name}: {given.path} is {kind(x)}, but the program was traced with {kind(expected)}{how}"
                raise ArgumentError(msg)
        tensors = set(self.places)
        for k, (x, before) in enumerate(zip(leaves, self.in_leaves, strict=True)):
            if k not in tensors and not same_constant(x, before):
                path = argument_paths(args, kwargs)[k]
                msg = (
                    f"program {self.name}: {path} is {short(x)}, but the program was traced with {short(before)}, which is a constant "
                    "of it; trace it again, or give a tensor"
                )
                raise ArgumentError(msg)
        flat = [leaves[k] for k in self.places] + [i.example for i in self.captured]
        outs = self.module(*flat)
        return self.assembled(outs)

    @property
    def examples(self) -> list[Tensor]:
        """The fake tensors that stand for the inputs."""
        return [n.meta["val"] for n in self.graph.nodes if n.op == "placeholder"]

    def assembled(self, outs: Sequence[Any]) -> Any:
        """Flat results in the structure that the function returns."""
        leaves = list(self.out_leaves)
        for k, o in zip(self.out_places, outs, strict=False):
            leaves[k] = o
        return tree.unflatten(leaves, self.out_spec)


def same_constant(value: Any, before: Any) -> bool:
    """Whether an argument that is no tensor is what a program was traced with."""
    if value is before:
        return True
    if isinstance(value, Tensor) or type(value) is not type(before):
        return False
    if isinstance(value, np.ndarray):
        return value.dtype == before.dtype and np.array_equal(value, before, equal_nan=value.dtype.kind in "fc")
    return bool(value == before) or (value != value and before != before)


def trace(fn: Callable[..., Any]) -> Callable[..., Program]:
    """The program that a function runs at given arguments: `trace(fn)(*args)`.

    Nothing is computed, unless the function's Python code asks for a value (`if x.sum() > 0`); then what leads to
    that value is, and the program is that of the branch taken, with the value noted in `program.questions`.

    Args:
        fn: a function of tensors, with any transforms in it or around it.

    Returns:
        A function of `fn`'s arguments that returns a `Program`: `print` shows it as PyTorch code, `cost()` says what
        it costs, calling it runs it.

    Example:
        >>> import torch, pushforward as pf
        >>> program = pf.trace(pf.vmap(torch.dot))(torch.ones(4, 3), torch.ones(4, 3))
        >>> program(torch.ones(4, 3), torch.ones(4, 3))
        tensor([3., 3., 3., 3.])
        >>> program.cost().peak_bytes <= 64
        True
    """
    check_function("trace", fn, "trace(f)(x)", "fn")

    def traced(*args: Any, **kwargs: Any) -> Program:
        return build(fn, args, kwargs, answers=64)

    return traced


def source(fn: Callable[..., Any]) -> Callable[..., str]:
    """The PyTorch code that a transformed function runs at given arguments: `source(fn)(*args)`.

    The code is a module text with one function; it runs as it is, except that tensors captured by `fn` are its last
    parameters.

    Example:
        >>> import torch, pushforward as pf
        >>> "add = x + x" in pf.source(pf.grad(lambda x: (x * x).sum()))(torch.ones(3))
        True
    """
    check_function("source", fn, "source(f)(x)", "fn")

    def printed(*args: Any, **kwargs: Any) -> str:
        return build(fn, args, kwargs, answers=64).source()

    return printed


def build(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    answers: int,
    dynamic: Sequence[tuple[int, ...]] | None = None,
) -> Program:
    """Record `fn` at some arguments and simplify what it did."""
    leaves, in_spec = tree.flat((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for k in places:
        if isinstance(leaves[k], Traced):
            path = argument_paths(args, kwargs)[k]
            msg = f"trace({label(fn)}): {path} is a value of a running transform; trace needs plain tensors"
            raise ArgumentError(msg)
    result: dict[str, Any] = {}

    def flat(*xs: Tensor) -> list[Tensor]:
        full = list(leaves)
        for k, x in zip(places, xs, strict=True):
            full[k] = x
        a, kw = tree.unflatten(full, in_spec)
        outs, result["spec"] = tree.flat(fn(*a, **kw))
        result["places"] = [k for k, o in enumerate(outs) if isinstance(o, Tensor)]
        result["leaves"] = [None if isinstance(o, Tensor) else o for o in outs]
        return [outs[k] for k in result["places"]]

    # Recording tells inputs apart by identity, and a tensor may be given twice.
    own = [leaves[k].detach().requires_grad_(leaves[k].requires_grad) for k in places]
    recording = record(flat, own, answers=answers, dynamic=dynamic)
    homes = homes_of(fn)
    names = Names()
    labels = argument_names(fn, args, kwargs)
    paths = argument_paths(args, kwargs)
    inputs = [Input(names.new(labels[k]), paths[k]) for k in places]
    name_variables(recording.module.graph)
    graph, constants, captured = lifted(recording, homes, names)
    inputs += captured
    rename(graph, inputs)
    if has_writes(graph):
        fakes = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
        made = without_writes(GraphModule(dict(constants), graph), fakes)
        constants.update(regained(made))
        graph = made.graph
        rename(graph, inputs)
    graph = simplify(graph, recording.mode, constants)
    return Program(
        name=label(fn),
        graph=graph,
        constants=constants,
        inputs=inputs,
        in_spec=in_spec,
        in_leaves=[None if isinstance(leaf, Tensor) else leaf for leaf in leaves],
        places=places,
        out_spec=result["spec"],
        out_leaves=result["leaves"],
        out_places=result["places"],
        questions=[Question(q.answer, q.where) for q in recording.questions],
        homes=homes,
        mode=recording.mode,
        symbolic=recording.symbolic,
    )


def lifted(recording: Recording, homes: Homes, names: Names) -> tuple[Graph, dict[str, Tensor], list[Input]]:
    """Captured tensors become inputs, true constants stay; questions become outputs after the results."""
    module, graph = recording.module, recording.module.graph
    captured: list[Input] = []
    nodes: dict[int, Node] = {}
    constants: dict[str, Tensor] = {}
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        real = getattr(module, node.target)
        lift = (aten.lift_fresh_copy.default, aten.lift_fresh.default)
        if node.users and all(user.target in lift for user in node.users):
            constants[node.target] = real
            node.meta["val"] = recording.mode.from_tensor(real)
            continue
        found = homes.find(real)
        object_ = next((t for t in homes.objects.values() if found and homes.tensors[id(t)] is found), real)
        if id(object_) not in nodes:
            name = names.new(found[0].name if found else "captured")
            with graph.inserting_before(first):
                made = graph.placeholder(name)
            made.meta["val"] = recording.mode.from_tensor(object_.detach())
            nodes[id(object_)] = made
            captured.append(Input(name, found[0].name if found else "(kept nowhere that can be named)", object_, found))
        node.replace_all_uses_with(nodes[id(object_)])
        for question in recording.questions:
            if question.node is node:
                question.node = nodes[id(object_)]
        graph.erase_node(node)
    output = next(n for n in graph.nodes if n.op == "output")
    outs = output.args[0]
    output.args = ((*outs, *[q.node for q in recording.questions]),)
    # A question may be younger in the list than the output it was appended to.
    return graph, constants, captured


def regained(module: GraphModule) -> dict[str, Tensor]:
    """The constants that a graph recorded again refers to."""
    return {n.target: getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr"}


def rename(graph: Graph, inputs: list[Input]) -> None:
    """Call the placeholders by the names of the inputs."""
    for node, given in zip([n for n in graph.nodes if n.op == "placeholder"], inputs, strict=True):
        node.name = node.target = given.name


class Names:
    """Distinct names that are Python identifiers."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def new(self, wish: str) -> str:
        """A name near the wish."""
        base = re.sub(r"\W+", "_", wish).strip("_") or "x"
        if base[0].isdigit() or base in RESERVED:
            base = "x_" + base if base[0].isdigit() else base + "_"
        name, k = base, 1
        while name in self.taken:
            k += 1
            name = f"{base}_{k}"
        self.taken.add(name)
        return name


RESERVED = {"torch", "self", *dir(builtins), *keyword.kwlist}


def label(fn: Any) -> str:
    """A name for a function."""
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return name if name != "<lambda>" else "function"


def argument_paths(args: Any, kwargs: Any) -> list[str]:
    """How the user would write each leaf."""
    return tree.paths(args, "args") + tree.paths(kwargs, "kwargs")


def argument_names(fn: Any, args: Any, kwargs: Any) -> list[str]:
    """A name for each leaf: the parameter's, then the path inside it."""
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        bound = None
    wishes: list[str] = []
    if bound is None:
        for k, a in enumerate(args):
            wishes += tree.paths(a, f"x{k}" if len(args) > 1 else "x")
    else:
        left = list(args)
        for name in bound.arguments:
            kind = parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for k, a in enumerate(left):
                    wishes += tree.paths(a, f"{name}_{k}")
                left = []
            elif left:
                wishes += tree.paths(left.pop(0), name)
    for name, a in kwargs.items():
        wishes += tree.paths(a, name)
    return wishes
