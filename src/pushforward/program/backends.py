"""Backends: how the graph of a program becomes something that runs.

`inductor` makes machine code of it; `graph` replays the simplified operators from one generated Python function, each
called past its Python wrapper, each intermediate freed after its last use.
"""

from __future__ import annotations

import operator
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..core.errors import ArgumentError, SlowFallback
from ..core.source import warn
from .functional import writes
from .torch_private import (
    inductor_compile,
    inductor_decompositions,
    inductor_settings,
    joint_graph_passes,
    make_fx,
    realized,
)

aten = torch.ops.aten
BACKENDS = ("auto", "inductor", "graph")
Run = Callable[[list[Any]], Any]

# Shapes and strides are checked before a call; random numbers are those of eager execution.
INDUCTOR = {"size_asserts": False, "alignment_asserts": False, "nan_asserts": False, "fallback_random": True}


def runner(backend: str, graph: Graph, constants: dict[str, Any], mode: Any, *, symbolic: bool) -> Run:
    """What runs a graph: a function of one list of inputs (which it may empty) that returns a sequence of results."""
    if backend == "graph" or not any(n.op == "call_function" for n in graph.nodes):
        return replay(graph, constants)
    if backend == "inductor":
        return by_inductor(graph, constants, mode, symbolic=symbolic)
    if not compiler_found():
        say_once("no C++ compiler was found")
        return replay(graph, constants)
    try:
        return by_inductor(graph, constants, mode, symbolic=symbolic)
    except Exception as error:
        say_once(f"inductor failed with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return replay(graph, constants)


_SAID: set[str] = set()


def say_once(why: str) -> None:
    """Warn that programs are replayed instead of compiled, once for each reason."""
    if why not in _SAID:
        _SAID.add(why)
        warn(f"compile: {why}; the program is replayed operator by operator (backend='graph')", SlowFallback)


def compiler_found() -> bool:
    """Whether there is a C++ compiler."""
    import os

    return shutil.which(os.environ.get("CXX", "g++")) is not None or shutil.which("clang++") is not None


def check_backend(backend: str) -> None:
    """The backend is one of those there are."""
    if backend not in BACKENDS:
        msg = f"compile: backend is {backend!r}; it must be one of {', '.join(map(repr, BACKENDS))}"
        raise ArgumentError(msg)


def by_inductor(graph: Graph, constants: dict[str, Any], mode: Any, *, symbolic: bool) -> Run:
    """Machine code by torch's own compiler."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the compiler's own modules use what torch has deprecated
        fakes = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
        with inductor_settings(mode, INDUCTOR):
            lowered = decomposed(GraphModule(dict(constants), graph), fakes, symbolic=symbolic)
            joint_graph_passes(lowered)
            return inductor_compile(lowered, fakes)


def decomposed(module: GraphModule, fakes: list[Any], *, symbolic: bool) -> GraphModule:
    """The graph in the operators that inductor expects."""

    def run(*xs: Any) -> Any:
        return module(*xs)

    kind = "symbolic" if symbolic else "fake"
    table = {**inductor_decompositions(), aten.repeat.default: repeat}
    lowered = make_fx(run, decomposition_table=table, tracing_mode=kind, _allow_non_fake_inputs=True)(*fakes)
    output = next(n for n in lowered.graph.nodes if n.op == "output")
    outs = output.args[0]
    output.args = (tuple(outs) if isinstance(outs, (list, tuple)) else (outs,),)
    tidy(lowered.graph)
    keep_what_is_broadcast(lowered.graph)
    lowered.recompile()
    return lowered


# Pointwise operators that cost so much more than a read from memory that computing them twice does not pay.
_HEAVY = {
    "sin",
    "cos",
    "tan",
    "tanh",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sigmoid",
    "erf",
    "pow",
    "sqrt",
    "atan",
    "lgamma",
}


def keep_what_is_broadcast(graph: Graph) -> None:
    """Have heavy values computed once that are used by something much larger (a Jacobian of a few inputs, say)."""
    for node in list(graph.nodes):
        val = node.meta.get("val")
        name = str(node.target).removeprefix("aten.").split(".")[0]
        if (
            name in _HEAVY
            and isinstance(val, torch.Tensor)
            and type(val.numel()) is int
            and largest_use(node) > 4 * val.numel() + 256
        ):
            realized(graph, node)


def largest_use(node: Any, depth: int = 4) -> int:
    """The most elements of what is computed from a node with no memory in between: by pointwise operators and views."""
    sizes = [0]
    for user in node.users:
        val = user.meta.get("val")
        if isinstance(val, torch.Tensor) and type(val.numel()) is int and (fuses(user) or user.target.is_view):
            sizes.append(val.numel())
            if depth:
                sizes.append(largest_use(user, depth - 1))
    return max(sizes)


def fuses(node: Any) -> bool:
    """Whether inductor computes an operator inside of what uses it."""
    return torch.Tag.pointwise in node.target.tags or node.target in (aten.clone.default, aten.cat.default)


def repeat(x: Any, counts: Any) -> Any:
    """`repeat` as an expansion of more dimensions: its loops have no division in them, which inductor's own have."""
    lead = len(counts) - x.dim()
    sizes = [1] * lead + list(x.shape)
    spread = x.reshape([n for size in sizes for n in (1, size)])
    spread = spread.expand([n for count, size in zip(counts, sizes, strict=True) for n in (count, size)])
    whole = spread.clone(memory_format=torch.contiguous_format)
    return whole.view([count * size for count, size in zip(counts, sizes, strict=True)])


def tidy(graph: Graph) -> None:
    """Drop what decomposition left unused."""
    for node in reversed(graph.nodes):
        if node.op in ("call_function", "get_attr") and not node.users and not writes(node):
            graph.erase_node(node)


def replay(graph: Graph, constants: dict[str, Any]) -> Run:
    """One generated function that calls the operators in order."""
    code = Lines(constants)
    nodes = list(graph.nodes)
    code.begin("run", [n for n in nodes if n.op == "placeholder"])
    last = last_uses(nodes)
    for node in nodes:
        code.step(node)
        if node.op == "output":
            code.add(f"return ({''.join(code.text(o) + ', ' for o in node.args[0])})")
        else:
            code.free(last.get(node, []))
    return code.made("run")


def questions(graph: Graph, constants: dict[str, Any], answers: list[Any]) -> Callable[[list[Any]], bool]:
    """One generated function that computes a program's questions in order and stops at the first other answer."""
    output = next(n for n in graph.nodes if n.op == "output")
    asked = output.args[0][len(output.args[0]) - len(answers) :]
    code = Lines(constants)
    code.begin("holds", [n for n in graph.nodes if n.op == "placeholder"])
    done: set[Node] = set()
    for k, (node, answer) in enumerate(zip(asked, answers, strict=True)):
        for step in needed(node, done):
            code.step(step)
        code.add(f"if not same({code.text(node)}.tolist(), {code.object(answer)}): return False  # {k}")
    code.add("return True")
    code.scope["same"] = same_answer
    return code.made("holds")


def same_answer(a: Any, b: Any) -> bool:
    """Equality in which NaN equals itself."""
    if isinstance(a, list):
        return len(a) == len(b) and all(same_answer(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


def needed(node: Node, done: set[Node]) -> list[Node]:
    """The nodes that must run for `node`, in order, without those that have."""
    found: list[Node] = []

    def visit(n: Node) -> None:
        if n in done:
            return
        done.add(n)
        for before in n.all_input_nodes:
            visit(before)
        found.append(n)

    visit(node)
    return found


def last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """For each node the values that nothing after it reads."""
    last: dict[Node, Node] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            last[used] = node
    out: dict[Node, list[Node]] = {}
    for used, node in last.items():
        if node.op != "output":
            out.setdefault(node, []).append(used)
    return out


class Lines:
    """Python code under construction, and the objects that it speaks of."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = constants
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def add(self, line: str) -> None:
        """One line of the body."""
        self.lines.append("    " + line)

    def begin(self, name: str, inputs: list[Node]) -> None:
        """The head of the function."""
        self.lines.append(f"def {name}(inputs):")
        for k, node in enumerate(inputs):
            self.names[node] = f"i{k}"
        if inputs:
            self.add(f"{', '.join(self.names[n] for n in inputs)}, = inputs")

    def object(self, value: Any) -> str:
        """A name for an object."""
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def text(self, a: Any) -> str:
        """An argument as code."""
        if isinstance(a, Node):
            return self.names[a]
        if isinstance(a, (list, tuple)):
            inner = "".join(self.text(v) + ", " for v in a)
            return f"[{inner}]" if isinstance(a, list) else f"({inner})"
        if a is None or isinstance(a, (bool, int)):
            return repr(a)
        return self.object(a)

    def step(self, node: Node) -> None:
        """The line of one node."""
        if node.op == "get_attr":
            self.names[node] = self.object(self.constants[str(node.target)])
            return
        if node.op != "call_function":
            return
        self.names[node] = name = f"v{len(self.names)}"
        if node.target is operator.getitem:
            self.add(f"{name} = {self.text(node.args[0])}[{node.args[1]}]")
            return
        call = getattr(node.target, "_op", node.target)
        args = [self.text(a) for a in node.args] + [f"{k}={self.text(v)}" for k, v in node.kwargs.items()]
        self.add(f"{name} = {self.object(call)}({', '.join(args)})")

    def free(self, nodes: list[Node]) -> None:
        """Let go of what nothing reads any more."""
        names = [self.names[n] for n in nodes if n.op == "call_function"]
        if names:
            self.add("del " + ", ".join(names))

    def made(self, name: str) -> Any:
        """The function."""
        exec(compile("\n".join(self.lines), f"<pushforward program {name}>", "exec"), self.scope)
        return self.scope[name]
