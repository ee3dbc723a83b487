"""Simplification of a flat graph without writes: one pass rebuilds it node by node.

Each node is tried against the rules in turn (constant folding, arithmetic with zeros and ones, views of views); what
no rule takes is emitted unless an equal node exists. Nodes that nothing uses are dropped at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from .functional import writes
from .torch_private import last_node, without_modes

Tensor = torch.Tensor
aten = torch.ops.aten
FOLDED = 16384  # largest constant that is computed in advance, in elements

Rule = Callable[["Rewriter", Any, tuple[Any, ...], dict[str, Any], Any], Any]
RULES: dict[Any, list[Rule]] = {}
POINTWISE_RULES: list[Rule] = []


def rule(*operators: Any) -> Callable[[Rule], Rule]:
    """Register a rule for all overloads of some operators."""

    def keep(function: Rule) -> Rule:
        for packet in operators:
            for overload in packet.overloads():
                RULES.setdefault(getattr(packet, overload), []).append(function)
        return function

    return keep


def value(node: Any) -> Any:
    """What a node computes, as a fake tensor; other things stand for themselves."""
    return node.meta.get("val") if isinstance(node, Node) else node


def static(x: Any) -> bool:
    """Whether a fake value has numbers for sizes."""
    return isinstance(x, Tensor) and all(type(n) is int for n in x.shape)


def is_random(target: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_pointwise(target: Any) -> bool:
    """Whether an operator acts element by element, with broadcasting."""
    return torch.Tag.pointwise in getattr(target, "tags", ())


class Rewriter:
    """A new graph under construction, and what is known of its nodes."""

    def __init__(self, mode: Any, constants: dict[str, Tensor]) -> None:
        self.graph = Graph()
        self.mode = mode
        self.constants = constants
        self.known: dict[Node, Tensor] = {}  # real values
        self.uniform: dict[Node, Any] = {}  # nodes of which every element is one number
        self.seen: dict[Any, Node] = {}
        self.meta: dict[str, Any] = {}

    # -- emitting -------------------------------------------------------------------------------------------------

    def emit(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """A node that computes `target`, simplified."""
        kwargs = kwargs or {}
        return self.apply(target, args, kwargs, self.compute(target, args, kwargs))

    def compute(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The fake result of an operator."""
        args, kwargs = torch.fx.map_arg((args, kwargs), value)
        with self.mode, torch.no_grad():
            return target(*args, **kwargs)

    def apply(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> Any:
        """As `emit`, the fake result being known."""
        folded = self.fold(target, args, kwargs, val)
        if folded is not None:
            return folded
        for rewrite in RULES.get(target, ()):
            made = rewrite(self, target, args, kwargs, val)
            if made is not None:
                return made
        if is_pointwise(target):
            for rewrite in POINTWISE_RULES:
                made = rewrite(self, target, args, kwargs, val)
                if made is not None:
                    return made
        node = self.plain(target, args, kwargs, val)
        if isinstance(val, Tensor) and is_alias_target(target) and args[0] in self.known and node not in self.known:
            self.known[node] = self.real(target, args, kwargs)
        return node

    def plain(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> Node:
        """The node as it is, or an equal one."""
        key = None
        if not is_random(target):
            key = (target, hashable(in_order(target, args, kwargs)), hashable(kwargs))
            found = self.seen.get(key)
            if found is not None:
                return found
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {**self.meta, "val": val}
        if key is not None:
            self.seen[key] = node
        self.learn(node)
        return node

    def constant(self, real: Tensor) -> Node:
        """A node for a tensor computed in advance, written as short as it can be."""
        first = real.flatten()[0].item() if real.numel() else 0
        if real.numel() == 0 or bool((real == first).all()):
            return self.full(real, first)
        if real.dim() == 2 and real.shape[0] > 1 and bool((real == torch.eye(*real.shape, dtype=real.dtype)).all()):
            kwargs = {"dtype": real.dtype, "device": real.device}
            args = (real.shape[0],) if real.shape[0] == real.shape[1] else tuple(real.shape)
            target = aten.eye.default if len(args) == 1 else aten.eye.m
            node = self.plain(target, args, kwargs, self.compute(target, args, kwargs))
        else:
            node = self.lookup(real)
        self.known[node] = real
        return node

    def lookup(self, real: Tensor) -> Node:
        """The `get_attr` node of a constant."""
        for name, other in self.constants.items():  # noqa: B007  (used after the loop)
            if other is real or (other.shape == real.shape and other.dtype == real.dtype and torch.equal(other, real)):
                break
        else:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = real
        found = self.seen.get(("get_attr", name))
        if found is None:
            found = self.graph.create_node("get_attr", name)
            found.meta = {**self.meta, "val": self.mode.from_tensor(self.constants[name])}
            self.seen[("get_attr", name)] = found
        return found

    def full(self, like: Tensor, number: Any) -> Node:
        """A tensor of one number, of the shape and dtype of `like`."""
        kwargs = {"dtype": like.dtype, "device": like.device}
        args = (list(like.shape), number)
        node = self.plain(aten.full.default, args, kwargs, self.compute(aten.full.default, args, kwargs))
        self.uniform[node] = number
        return node

    # -- what is known --------------------------------------------------------------------------------------------

    def number(self, arg: Any) -> Any:
        """The number that every element of an argument is, or None."""
        if isinstance(arg, (int, float, complex, bool)):
            return arg
        return self.uniform.get(arg) if isinstance(arg, Node) else None

    def learn(self, node: Node) -> None:
        """Note factories of constants."""
        val = node.meta.get("val")
        target, args = node.target, node.args
        if val is None or not static(val) or node.kwargs.get("layout") not in (None, torch.strided):
            return
        name = getattr(target, "_opname", "") or str(getattr(target, "overloadpacket", target)).removeprefix("aten.")
        if name in ("zeros", "zeros_like", "new_zeros"):
            self.uniform[node] = False if val.dtype is torch.bool else 0
        elif name in ("ones", "ones_like", "new_ones"):
            self.uniform[node] = True if val.dtype is torch.bool else 1
        elif name in ("full", "full_like", "new_full") and isinstance(args[-1], (int, float, bool, complex)):
            self.uniform[node] = args[-1]
        elif name == "scalar_tensor":
            self.uniform[node] = args[0]
        elif name in ("arange", "eye", "linspace") and val.numel() <= FOLDED:
            real = self.real(target, args, node.kwargs)
            if real.numel() == 1:
                self.uniform[node] = real.item()
            else:
                self.known[node] = real

    def real(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An operator run on known values."""
        args, kwargs = torch.fx.map_arg((args, kwargs), self.real_value)
        with without_modes(), torch.no_grad():
            return target(*args, **kwargs)

    def real_value(self, node: Node) -> Tensor:
        """The real tensor of a known or uniform node."""
        if node in self.known:
            return self.known[node]
        like = node.meta["val"]
        return torch.full(like.shape, self.uniform[node], dtype=like.dtype)

    def fold(self, target: Any, args: Any, kwargs: Any, val: Any) -> Any:
        """Compute an operator on constants in advance."""
        if not static(val) or val.numel() > FOLDED or is_random(target) or val.device.type != "cpu":
            return None
        found: list[Node] = []
        torch.fx.map_arg((args, kwargs), found.append)
        if not found or not all(n in self.known or n in self.uniform for n in found):
            return None
        if val.layout is not torch.strided or any(n.meta["val"].numel() > FOLDED for n in found):
            return None
        if not all(n in self.known for n in found) and target in NO_FOLD:
            return None
        if is_alias_target(target) and not all(n in self.uniform for n in found):
            return None  # a view of a constant reads better than another constant
        return self.constant(self.real(target, args, kwargs))


# Reads of memory that nobody has written, and sizes that depend on values.
NO_FOLD = {aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default, aten.nonzero.default}


def in_order(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The two operands of a sum or product in one order, so that a·b and b·a are equal nodes."""
    if target in (aten.mul.Tensor, aten.add.Tensor) and not kwargs and all(isinstance(a, Node) for a in args):
        return tuple(sorted(args, key=lambda n: n.name))
    return args


def hashable(tree: Any) -> Any:
    """Arguments as a key: nodes by identity, numbers with their type (1, 1.0 and True differ)."""
    if isinstance(tree, (list, tuple)):
        return tuple(hashable(v) for v in tree)
    if isinstance(tree, dict):
        return tuple(sorted((k, hashable(v)) for k, v in tree.items()))
    if isinstance(tree, (bool, int, float, complex)):
        return (type(tree).__name__, repr(tree))
    return tree if isinstance(tree, Node) else (type(tree).__name__, str(tree))


def simplify(graph: Graph, mode: Any, constants: dict[str, Tensor]) -> Graph:
    """The graph rebuilt with all rules applied; `constants` (read by `get_attr`) may grow."""
    for _ in range(4):
        before = len(graph.nodes)
        graph = one_pass(graph, mode, constants)
        if len(graph.nodes) >= before:
            break
    for name in set(constants) - {node.target for node in graph.nodes if node.op == "get_attr"}:
        del constants[name]
    return graph


def one_pass(graph: Graph, mode: Any, constants: dict[str, Tensor]) -> Graph:
    """One walk over the graph."""
    from . import rules as _rules  # noqa: F401  (fills RULES)

    rw = Rewriter(mode, constants)
    env: dict[Node, Any] = {}
    for node in graph.nodes:
        rw.meta = {k: v for k, v in node.meta.items() if k == "origin"}
        if node.op == "placeholder":
            env[node] = rw.graph.placeholder(node.name)
            env[node].name = env[node].target = node.name
            env[node].meta = dict(node.meta)
        elif node.op == "get_attr":
            env[node] = rw.lookup(constants[node.target])
            real = constants[node.target]
            if real.numel() <= FOLDED and real.device.type == "cpu":
                rw.known[env[node]] = real
        elif node.op == "output":
            rw.graph.output(fresh_outputs(rw, graph, node.args[0], env))
        elif writes(node):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
            made = rw.graph.call_function(node.target, args, kwargs)
            made.meta = dict(node.meta)
            env[node] = made
        else:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
            last = last_node(rw.graph)
            env[node] = made = rw.apply(node.target, args, dict(kwargs), node.meta.get("val"))
            check_same(node, made)
            if "variable" in node.meta and made is not last and made.target is node.target:
                made.meta.setdefault("variable", node.meta["variable"])
    drop_unused(rw.graph)
    return rw.graph


def check_same(old: Node, new: Any) -> None:
    """A rule may not change a shape or dtype; this holds for every node of every program."""
    a, b = old.meta.get("val"), value(new)
    if isinstance(a, Tensor) and (a.shape != b.shape or a.dtype != b.dtype):
        msg = f"simplification of {old.format_node()} gave {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        raise AssertionError(msg)


def fresh_outputs(rw: Rewriter, graph: Graph, outs: Any, env: dict[Node, Any]) -> Any:
    """The outputs; what was separate memory before stays so, and a constant is not handed out itself."""
    made: list[Any] = []
    owners: dict[Any, Any] = {env[n]: n for n in graph.nodes if n.op == "placeholder"}
    for old in outs:
        if not isinstance(old, Node):
            made.append(old)
            continue
        new = env[old]
        memory, before = memory_of(new), memory_of(old)
        if memory.op == "get_attr" or owners.setdefault(memory, before) is not before:
            clone = rw.graph.call_function(aten.clone.default, (new,))
            clone.meta = dict(new.meta)
            new = clone
        made.append(new)
    return tuple(made)


def memory_of(node: Node) -> Node:
    """The node that allocates what `node` looks at."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        if node.target is not operator.getitem and not is_alias(node):
            break
        node = node.args[0]
    return node


def is_alias(node: Node) -> bool:
    """Whether a node is a view of another."""
    return is_alias_target(node.target)


def is_alias_target(target: Any) -> bool:
    """Whether an operator returns views."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def drop_unused(graph: Graph) -> None:
    """Remove what no output needs; draws stay, so that later draws are those of the original."""
    for node in reversed(graph.nodes):
        if (
            node.op in ("call_function", "get_attr")
            and not node.users
            and not writes(node)
            and not is_random(node.target)
        ):
            graph.erase_node(node)
