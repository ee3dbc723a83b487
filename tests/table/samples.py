"""One small sample for every row of the operator table, by name or by kind.

A sample is a function and the tensors it is called with. What a reverse formula saves (statistics, indices) is worked
out inside the function, so that its derivative is the whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pushforward.ops.kinds import AlongDim, Elementwise, ElementwiseBilinear, ElementwiseLinear
from pushforward.ops.table import ROWS
from tests.table.values import Value, n, p

aten = torch.ops.aten


@dataclass(frozen=True)
class Sample:
    """A function, and how its tensors are made.

    `values_only`: its derivative has no reference here (it is zero by convention, or torch's own formula is all there is).
    `refused`: no derivative exists, which must be said. `once`: no second one does. `forward`: torch's own reverse formula
    is wrong. `stopped`: the derivative of one factor is zero by the user's word. `slow`: lanes are looped over, which is
    said too. `asks`: Python asks for a value or a size that depends on the data, which no lanes at all cannot answer.
    """

    function: Callable[..., Any]
    values: tuple[Value, ...]
    values_only: bool = False
    refused: bool = False
    once: bool = False
    forward: bool = False
    stopped: bool = False
    slow: bool = False
    asks: bool = False


SAMPLES: dict[str, Sample] = {}
WITHOUT: dict[str, str] = {}  # rows that no sample can be given here, and why


def sample(names: str, function: Callable[..., Any], *values: Value, **facts: bool) -> None:
    """The sample of some rows; a function of the operator first where there are several."""
    made = Sample(function, values, **facts)
    for name in names.split():
        if name in WITHOUT or (name in SAMPLES and place(SAMPLES[name].function) != place(function)):
            raise ValueError(name)
        SAMPLES[name] = made


def place(function: Callable[..., Any]) -> Any:
    """Where a function is written: a file that is read twice gives its samples twice."""
    code = getattr(function, "__code__", None)
    return function if code is None else (code.co_filename, code.co_firstlineno)


def each(names: str, make: Callable[[Any], Callable[..., Any]], *values: Value, **facts: bool) -> None:
    """`sample` for operators that are called alike: `make` is told the operator."""
    for name in names.split():
        sample(name, make(overload(name)), *values, **facts)


def without(names: str, why: str) -> None:
    """Rows that have no sample."""
    for name in names.split():
        WITHOUT[name] = why


def overload(name: str) -> Any:
    """The operator of a row: the overload named, or the one on tensors."""
    base, _, which = name.partition(".")
    packet = getattr(aten, base)
    if which:
        return getattr(packet, which)
    order = ("default", "Tensor", "self", "Tensor_Tensor", "int", "Scalar", "dim")
    found = [getattr(packet, o) for o in (*order, *packet.overloads()) if o in packet.overloads()]
    of_tensors = [op for op in found if op._schema.arguments and "Tensor" in str(op._schema.arguments[0].type)]
    return (of_tensors or found)[0]


def of_kind(name: str) -> Sample | None:
    """The sample of a row that needs none of its own: element-wise operators, and those along a dimension."""
    kind = ROWS[name].kind
    if isinstance(kind, AlongDim):
        op = overload(name)
        return Sample(lambda x: op(x, 1), (n(2, 3),))
    if not isinstance(kind, (Elementwise, ElementwiseLinear, ElementwiseBilinear)):
        return None
    op = overload(name)
    needed = [a for a in op._schema.arguments if not a.has_default_value()]
    if any(str(a.type) != "Tensor" for a in needed):
        return None
    shapes = [(2, 3), (3,), (2, 1)]
    return Sample(lambda *x: op(*x), tuple(p(*shapes[k % 3]) for k in range(len(needed))))


def sample_of(name: str) -> Sample | None:
    """The sample of a row."""
    return SAMPLES.get(name) or of_kind(name)


from . import of_elements, of_images, of_matrices, of_places, of_python  # noqa: E402, F401  (they fill SAMPLES)
