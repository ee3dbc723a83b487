"""Operators as people write them: `a * b`, `x.view(3, 4)`, `x[:, 2]`.

A form gets the node, the text of its positional arguments and of its keyword arguments, and returns an expression or
None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

Tensor = torch.Tensor
Form = Callable[[Node, list[str], dict[str, str]], str | None]


def literal(value: Any) -> str:
    """A Python value or a constant tensor as code."""
    if isinstance(value, Tensor):
        return f"torch.tensor({literal(value.tolist())}, dtype={value.dtype})"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, float):
        if math.isnan(value):
            return 'float("nan")'
        return repr(value) if math.isfinite(value) else f'float("{"-" if value < 0 else ""}inf")'
    if isinstance(value, torch.device):
        return repr(str(value))
    return repr(value) if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)) else str(value)


def binary(sign: str, *, reflected: bool = False) -> Form:
    """An operator sign between two arguments."""

    def form(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
        if kwargs or len(args) != 2:
            return None
        a, b = args[::-1] if reflected else args
        return f"{a} {sign} {b}" if not b.startswith("-") else f"{a} {sign} ({b})"

    return form


def method(name: str, *, spread: bool = False) -> Form:
    """A method call; `spread` writes a list argument as several."""

    def form(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
        rest = list(args[1:])
        if spread and rest and rest[0].startswith("[") and len(rest[0]) > 2:
            rest[0] = rest[0][1:-1]
        named = [f"{k}={v}" for k, v in kwargs.items()]
        return f"{args[0]}.{name}({', '.join([*rest, *named])})"

    return form


def reduction(name: str) -> Form:
    """`x.sum(1, keepdim=True)`."""

    def form(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
        rest = []
        if len(args) > 1:
            dims = args[1]
            rest.append(dims[1:-1] if dims.startswith("[") and "," not in dims and len(dims) > 2 else dims)
        if len(args) > 2:
            rest.append(f"keepdim={args[2]}")
        return f"{args[0]}.{name}({', '.join([*rest, *[f'{k}={v}' for k, v in kwargs.items()]])})"

    return form


def colons(dim: int) -> str:
    """The `:, ` in front of an index at a dimension."""
    return ":, " * dim


def select(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """`x[:, 2]`."""
    dim = int(node.args[1])  # type: ignore[arg-type]
    return f"{args[0]}[{colons(dim)}{args[2]}]" if 0 <= dim <= 3 else None


def slice_(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """`x[:, 2:4]`."""
    dim = int(node.args[1]) if len(node.args) > 1 else 0  # type: ignore[arg-type]
    if not 0 <= dim <= 3:
        return None
    start = args[2] if len(args) > 2 and args[2] not in ("None", "0") else ""
    stop = args[3] if len(args) > 3 and args[3] not in ("None", str(2**63 - 1)) else ""
    step = f":{args[4]}" if len(args) > 4 and args[4] != "1" else ""
    return f"{args[0]}[{colons(dim)}{start}:{stop}{step}]"


def full(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """`torch.ones(3)`, `torch.zeros(3)` or `torch.full`."""
    number: Any = node.args[1]
    named = [f"{k}={v}" for k, v in kwargs.items()]
    sizes = args[0][1:-1] or "()"
    if number == 1 and not isinstance(number, bool):
        return f"torch.ones({', '.join([sizes, *named])})"
    if number == 0 and not isinstance(number, bool):
        return f"torch.zeros({', '.join([sizes, *named])})"
    return f"torch.full({', '.join([*args, *named])})"


def to_copy(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """`x.to(torch.float64)`."""
    return f"{args[0]}.to({kwargs['dtype']})" if set(kwargs) == {"dtype"} else None


def scaled_sum(sign: str) -> Form:
    """`a + b`, or with a factor `a + 2 * b`."""

    def form(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
        if len(args) != 2 or set(kwargs) - {"alpha"}:
            return None
        second = args[1] if not args[1].startswith("-") else f"({args[1]})"
        return f"{args[0]} {sign} {kwargs['alpha'] + ' * ' if 'alpha' in kwargs else ''}{second}"

    return form


def tanh_backward(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """ḡ (1 - y²)."""
    return f"{args[0]} * (1 - {args[1]} * {args[1]})"


def sigmoid_backward(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """ḡ y (1 - y)."""
    return f"{args[0]} * {args[1]} * (1 - {args[1]})"


def threshold_backward(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """ḡ where x passed the threshold."""
    return f"torch.where({args[1]} > {args[2]}, {args[0]}, 0)"


FORMS: dict[str, Form] = {
    "add": scaled_sum("+"),
    "sub": scaled_sum("-"),
    "mul": binary("*"),
    "div": binary("/"),
    "pow": binary("**"),
    "mm": binary("@"),
    "mv": binary("@"),
    "bmm": binary("@"),
    "eq": binary("=="),
    "ne": binary("!="),
    "lt": binary("<"),
    "le": binary("<="),
    "gt": binary(">"),
    "ge": binary(">="),
    "neg": lambda node, args, kwargs: f"-{args[0]}",
    "view": method("view", spread=True),
    "_unsafe_view": method("view", spread=True),
    "reshape": method("reshape", spread=True),
    "expand": method("expand", spread=True),
    "permute": method("permute", spread=True),
    "transpose": method("transpose"),
    "t": method("t"),
    "unsqueeze": method("unsqueeze"),
    "squeeze": method("squeeze"),
    "clone": method("clone"),
    "sum": reduction("sum"),
    "mean": reduction("mean"),
    "amax": reduction("amax"),
    "amin": reduction("amin"),
    "select": select,
    "slice": slice_,
    "full": full,
    "_to_copy": to_copy,
    "_softmax": lambda node, args, kwargs: f"torch.softmax({args[0]}, {args[1]})",
    "_log_softmax": lambda node, args, kwargs: f"torch.log_softmax({args[0]}, {args[1]})",
    "tanh_backward": tanh_backward,
    "sigmoid_backward": sigmoid_backward,
    "threshold_backward": threshold_backward,
    "copy_": method("copy_"),
    "lift_fresh_copy": method("clone"),
}
