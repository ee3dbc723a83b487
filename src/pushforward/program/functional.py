"""Writes taken out of a graph: buffers become values, writes to inputs become one copy each at the end."""

from __future__ import annotations

from typing import Any

import torch

from .torch_private import functional_tools, make_fx, was_written

aten = torch.ops.aten


def writes(node: Any) -> bool:
    """Whether a node changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def has_writes(graph: torch.fx.Graph) -> bool:
    """Whether any node of a graph writes."""
    return any(writes(node) for node in graph.nodes)


def without_writes(module: torch.fx.GraphModule, inputs: list[Any]) -> torch.fx.GraphModule:
    """The same graph on functional tensors: no operator in it writes, except copies to inputs at the end."""
    tools = functional_tools()

    def run(*xs: Any) -> Any:
        mode = tools.FunctionalTensorMode()
        with mode:
            wrapped = [tools.FunctionalTensor.to_functional(x) if isinstance(x, torch.Tensor) else x for x in xs]
            outs = module(*wrapped)
        unwrapped = [from_functional(o, tools) for o in outs]
        for x, w in zip(xs, wrapped, strict=True):
            if isinstance(x, torch.Tensor) and was_written(w.elem):
                x.copy_(from_functional(w, tools))
        return unwrapped

    symbolic = any(isinstance(n, torch.SymInt) for x in inputs for n in x.shape)
    made = make_fx(run, tracing_mode="symbolic" if symbolic else "fake", _allow_non_fake_inputs=True)(*inputs)
    carry_origins(module.graph, made.graph)
    return made


def from_functional(x: Any, tools: Any) -> Any:
    """The plain tensor in a functional one."""
    return x.from_functional() if isinstance(x, tools.FunctionalTensor) else x


def carry_origins(old: torch.fx.Graph, new: torch.fx.Graph) -> None:
    """Give the nodes of a graph recorded again the origins of the nodes of the same name."""
    origins = {node.name: node.meta.get("origin") for node in old.nodes}
    last = None
    for node in new.nodes:
        if node.op == "call_function":
            last = origins.get(node.name, last)
            node.meta.setdefault("origin", last)


__all__ = ["has_writes", "without_writes", "writes"]
