"""Random programs: arithmetic, branches, loops, writes, masks and nested calls over vectors of three numbers.

A program is a tree of tuples; `Runner` runs it on tensors. The nested calls of a program are given from outside:
ours, or what a plain loop and `torch.autograd` do, so that one tree is both the function under test and its reference.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

SIZE = 3
UNARY = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "square": lambda a: a.tanh() ** 2,
    "softmax": lambda a: a.softmax(0),
    "cumsum": lambda a: a.cumsum(0),
    "flip": lambda a: a.flip(0),
    "mean": lambda a: a.mean().expand(SIZE),
    "norm": lambda a: ((a * a).sum() + 1).sqrt().expand(SIZE),
    "first": lambda a: a[0] + torch.zeros(SIZE, dtype=a.dtype),
    "roll": lambda a: torch.cat([a[1:], a[:1]]),
    "outer": lambda a: a.outer(a).sum(0).tanh(),
    "sort": lambda a: a.sort()[0],
    "relu": torch.relu,
    "largest": lambda a: a.max().expand(SIZE),
    "diagonal": lambda a: torch.diag(a).matmul(a),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 1),
    "dot": lambda a, b: a.dot(b).tanh().expand(SIZE),
    "where": lambda a, b: torch.where(a > b, a, b * 2),
    "stack": lambda a, b: torch.stack([a[0], b[1], a[2] * b[0]]),
    "matrix": lambda a, b: torch.outer(a, b).tanh() @ a,
}


@st.composite
def expressions(draw: Any, depth: int) -> Any:
    kinds = (
        ["variable", "input"]
        if depth <= 0
        else [
            "variable",
            "input",
            "unary",
            "unary",
            "binary",
            "binary",
            "masked",
            "read",
            "inner_map",
            "inner_grad",
            "inner_push",
            "picked",
            "gathered",
        ]
    )
    kind = draw(st.sampled_from(kinds))
    below = expressions(depth - 1)
    if kind in ("variable", "input"):
        return (kind, draw(st.integers(0, 2)))
    if kind == "unary":
        return (kind, draw(st.sampled_from(sorted(UNARY))), draw(below))
    if kind in ("binary",):
        return (kind, draw(st.sampled_from(sorted(BINARY))), draw(below), draw(below))
    if kind in ("picked", "gathered"):
        return (kind, draw(below), draw(below))
    return (kind, draw(below))


@st.composite
def conditions(draw: Any, depth: int) -> Any:
    kind = draw(st.sampled_from(["sum", "any", "all", "first", "and", "or", "not"] if depth > 0 else ["sum", "first"]))
    if kind in ("and", "or"):
        return (kind, draw(conditions(depth - 1)), draw(conditions(depth - 1)))
    if kind == "not":
        return (kind, draw(conditions(depth - 1)))
    return (kind, draw(expressions(depth - 1)), draw(st.sampled_from([-0.5, 0.03, 0.4])))


@st.composite
def statements(draw: Any, depth: int) -> Any:
    simple = ["assign", "assign", "fill", "mask", "view", "add_", "put"]
    kind = draw(st.sampled_from(simple + (["if", "if", "while", "for", "return"] if depth > 0 else [])))
    k = draw(st.integers(0, 2))
    value = draw(expressions(min(depth, 2)))
    if kind == "if":
        return (kind, draw(conditions(1)), draw(blocks(depth - 1)), draw(blocks(depth - 1)))
    if kind == "while":
        return (kind, draw(conditions(1)), draw(st.integers(1, 4)), draw(blocks(depth - 1)))
    if kind == "for":
        return (kind, value, draw(blocks(depth - 1)))
    if kind == "return":
        return (kind, draw(conditions(1)), value)
    return (kind, k, value, draw(st.integers(0, SIZE - 1)))


@st.composite
def blocks(draw: Any, depth: int) -> Any:
    return tuple(draw(st.lists(statements(depth), min_size=1, max_size=2 if depth < 2 else 3)))


@st.composite
def programs(draw: Any, depth: int = 4) -> Any:
    return draw(blocks(depth))


class _Returned(Exception):
    pass


class Runner:
    """A program as a function of a vector: `Runner(program, calls)(x)`."""

    def __init__(self, program: Any, calls: Any) -> None:
        self.program, self.calls = program, calls

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        state = {"input": x, "vars": [x * 0.5, x.sin(), torch.zeros(SIZE, dtype=x.dtype)]}
        try:
            self.block(self.program, state)
        except _Returned as done:
            return done.args[0]
        a, b, c = state["vars"]
        return (a + b * 0.3 + c * x).tanh()

    def block(self, block: Any, state: Any) -> None:
        for statement in block:
            self.statement(statement, state)

    def statement(self, s: Any, state: Any) -> None:
        kind, values = s[0], state["vars"]
        if kind == "assign":
            values[s[1]] = self.value(s[2], state)
        elif kind == "if":
            self.block(s[2] if self.holds(s[1], state) else s[3], state)
        elif kind == "while":
            for _ in range(s[2]):
                if not self.holds(s[1], state):
                    break
                self.block(s[3], state)
        elif kind == "for":
            for _ in range(int(self.value(s[1], state).detach().abs().sum()) % 3):
                self.block(s[2], state)
        elif kind == "return":
            if self.holds(s[1], state):
                raise _Returned(self.value(s[2], state).tanh())
        else:
            self.write(kind, s[1], self.value(s[2], state).tanh(), s[3], state)

    def write(self, kind: str, k: int, value: torch.Tensor, place: int, state: Any) -> None:
        buffer = torch.zeros(SIZE, dtype=value.dtype)
        if kind == "fill":
            buffer[place] = value[place]
        elif kind == "mask":
            buffer[value > 0] = 0.5
            buffer = buffer * value
        elif kind == "view":
            tail = buffer[1:]
            tail.copy_(value[1:])
            tail.mul_(value[:2])
            buffer[0] = value[place]
        elif kind == "add_":
            buffer = state["vars"][k].clone()
            buffer.add_(value)
            buffer[place].mul_(0.5)
        else:
            buffer = buffer.index_put((torch.tensor([place, 0]),), value[:2], accumulate=True)
        state["vars"][k] = buffer

    def holds(self, c: Any, state: Any) -> bool:
        kind = c[0]
        if kind == "and":
            return self.holds(c[1], state) and self.holds(c[2], state)
        if kind == "or":
            return self.holds(c[1], state) or self.holds(c[2], state)
        if kind == "not":
            return not self.holds(c[1], state)
        value = self.value(c[1], state)
        if kind == "sum":
            return bool(value.sum() > c[2])
        if kind == "any":
            return bool((value > c[2]).any())
        if kind == "all":
            return bool((value > c[2]).all())
        return float(value[0].detach()) > c[2]

    def value(self, e: Any, state: Any) -> torch.Tensor:
        kind = e[0]
        if kind == "variable":
            return state["vars"][e[1]]
        if kind == "input":
            return state["input"] * (e[1] + 0.5)
        if kind == "unary":
            return UNARY[e[1]](self.value(e[2], state))
        if kind == "binary":
            return BINARY[e[1]](self.value(e[2], state), self.value(e[3], state))
        a = self.value(e[1], state)
        if kind == "masked":
            return a[a > 0.1].sum() + a
        if kind == "read":
            return a * float(a.detach().sum().tanh())
        if kind == "picked":
            return [a, a.sin(), a * 0.3][int(self.value(e[2], state).argmax())]
        if kind == "gathered":
            return a[self.value(e[2], state).argmin()] * a
        return getattr(self.calls, kind)(a)


class Plain:
    """Nested calls as a loop and `torch.autograd` do them."""

    @staticmethod
    def inner_map(a: torch.Tensor) -> torch.Tensor:
        return torch.stack([branching(v) for v in a])

    @staticmethod
    def inner_grad(a: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = a if a.requires_grad else a.detach().requires_grad_()
            y = x.view_as(x)
            return torch.autograd.grad(energy(y), y, create_graph=True)[0]

    @staticmethod
    def inner_push(a: torch.Tensor) -> torch.Tensor:
        return energy_rate(a)


def branching(v: torch.Tensor) -> torch.Tensor:
    return v.sin() if v > 0.2 else v * v


def energy(a: torch.Tensor) -> torch.Tensor:
    if a.sum() > 0.1:
        return (a.sin() * a).sum()
    return (a * a * a).sum()


def energy_rate(a: torch.Tensor) -> torch.Tensor:
    """The derivative of `a.sin() * a` along ones, by hand."""
    return a.cos() * a + a.sin()
