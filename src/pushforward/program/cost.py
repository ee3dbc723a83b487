"""What a program costs: operators, floating-point operations, bytes moved, and the most bytes alive at once.

Bytes read and written count every operator on its own, as eager execution does. Peak bytes follow the life of each
piece of memory from the operator that allocates it to the last that reads it; views share the memory of their base.
Inputs are counted apart, because the caller holds them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils.flop_counter import flop_registry

from .simplify import is_pointwise, memory_of

Tensor = torch.Tensor

# Elementwise functions that take a kernel more than one instruction count as several operations.
_HEAVY = {
    "exp",
    "log",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
    "pow",
    "sqrt",
    "rsqrt",
    "gelu",
    "log1p",
    "expm1",
    "atan2",
}
_HEAVY_FLOPS = 8


@dataclass(frozen=True)
class Cost:
    """Operators, flops and bytes of a program."""

    operators: int
    flops: int
    bytes_read: int
    bytes_written: int
    input_bytes: int
    peak_bytes: int  # allocated by the program at the worst moment, outputs included, inputs not
    by_operator: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.operators} operators, {self.flops:,} flops, "
            f"{self.bytes_read:,} bytes read, {self.bytes_written:,} written, "
            f"peak {self.peak_bytes:,} bytes beside {self.input_bytes:,} of inputs"
        )


def tensors(x: Any) -> list[Tensor]:
    """The tensors in the value of a node."""
    if isinstance(x, Tensor):
        return [x]
    return [t for v in x for t in tensors(v)] if isinstance(x, (list, tuple)) else []


def size(x: Tensor) -> int:
    """Bytes of a tensor's elements; symbolic sizes count at their hint."""
    return int(hint(x.numel())) * x.element_size()


def hint(n: Any) -> int:
    """A size as a number."""
    return n if isinstance(n, int) else int(n.node.hint)


def memory(x: Tensor) -> int:
    """Bytes that a freshly allocated tensor takes: an expanded one takes less than it has elements."""
    if x.layout is not torch.strided or x.numel() == 0:
        return size(x) if x.layout is torch.strided else 0
    extent = 1 + sum((hint(n) - 1) * hint(s) for n, s in zip(x.shape, x.stride(), strict=True))
    return extent * x.element_size()


def flops(node: Node) -> int:
    """Floating-point operations of one node."""
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    out = node.meta.get("val")
    if packet in flop_registry:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        try:
            return int(flop_registry[packet](*args, **kwargs, out_val=out))
        except (TypeError, ValueError, AttributeError, IndexError, AssertionError):
            return 0
    elements = sum(hint(t.numel()) for t in tensors(out))
    if is_pointwise(target):
        name = str(packet).split(".")[-1]
        return elements * (_HEAVY_FLOPS if name in _HEAVY else 1)
    if is_view(node) or not node.args:
        return 0
    read = sum(hint(t.numel()) for a in node.all_input_nodes for t in tensors(a.meta.get("val")))
    return max(read, elements) if torch.Tag.reduction in getattr(target, "tags", ()) or elements < read else 0


def is_view(node: Node) -> bool:
    """Whether a node allocates nothing."""
    return memory_of(node) is not node


def cost(graph: Graph) -> Cost:
    """Measure a graph."""
    count: Counter[str] = Counter()
    total_flops = read = written = 0
    alive = peak = 0
    last_use: dict[Node, Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last_use[memory_of(used)] = node
    dying: dict[Node, list[Node]] = {}
    for done, user in last_use.items():
        dying.setdefault(user, []).append(done)
    held: dict[Node, int] = {}
    input_bytes = 0
    for node in graph.nodes:
        val = node.meta.get("val")
        if node.op in ("placeholder", "get_attr"):
            input_bytes += sum(size(t) for t in tensors(val))
        elif node.op == "call_function":
            if not isinstance(val, (Tensor, list, tuple)):
                continue
            count[str(node.target).removeprefix("aten.").split(".")[0]] += 1
            total_flops += flops(node)
            if not is_view(node) and str(node.target) != "<built-in function getitem>":
                read += sum(size(t) for a in node.all_input_nodes for t in tensors(a.meta.get("val")))
                new = sum(memory(t) for t in tensors(val))
                written += new
                held[node] = new
                alive += new
                peak = max(peak, alive)
        if node.op != "output":
            alive -= sum(held.pop(done, 0) for done in dying.get(node, ()))
    return Cost(sum(count.values()), total_flops, read, written, input_bytes, peak, dict(count.most_common()))


__all__ = ["Cost", "cost"]
