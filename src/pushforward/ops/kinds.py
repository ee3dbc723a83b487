"""Kinds of operators: what an operator is, said once, so that every interpreter can work out what to do with it.

A kind is data. How a kind is batched is in `batch.kinds`, how it is differentiated in `forward.kinds`; a new interpreter adds
its own reading of the kinds and touches no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Where an interpreter's rule for an operator comes from; from the best to the slowest.
OWN, DECOMPOSITION, DERIVED, ONE_BY_ONE, LOOP = (
    "own rule",
    "decomposition",
    "derived",
    "lane by lane (its sizes depend on the data)",
    "lane loop",
)
CONSTANT, REFUSED = "no derivative", "refused"


@dataclass(frozen=True)
class Kind:
    """Base of the kinds."""


@dataclass(frozen=True)
class Elementwise(Kind):
    """out[i] = f(x[i], y[i], …) with broadcasting.

    `derivatives[k](out, *args, **kwargs)` is the factor d out / d (k-th positional argument), or None where there is none.
    An empty tuple means that no argument has a derivative. `kernel(tangent, out, *args, **kwargs)` is the product of a real
    tangent of the first argument with its factor, where torch has a kernel that makes it without the factor in between.
    """

    derivatives: tuple[Callable[..., Any] | None, ...] = ()
    kernel: Callable[..., Any] | None = None


@dataclass(frozen=True)
class ElementwiseLinear(Kind):
    """Element-wise with broadcasting and jointly linear in the arguments at `linear`: add, sub, conj, real, neg."""

    linear: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class ElementwiseBilinear(Kind):
    """Element-wise with broadcasting and linear in each of its first two arguments: mul."""


@dataclass(frozen=True)
class Movement(Kind):
    """Elements of the first argument at other places: linear in it, often a view of it.

    `dims` names the arguments (by position) that count dimensions, so that a mapped one in front shifts them;
    `batch` gives the batching where shifting is not enough.
    """

    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reduction(Kind):
    """Along the dimensions in argument `dim` (None: all), with `keepdim` at `keepdim` if there is one.

    `linear`: the tangent is the operator itself on the tangent.
    """

    dim: int = 1
    keepdim: int | None = 2
    linear: bool = False


@dataclass(frozen=True)
class AlongDim(Kind):
    """Works along one dimension, argument `dim`, and keeps the shape: cumsum, softmax, sort, flip."""

    dim: int = 1
    linear: bool = False


@dataclass(frozen=True)
class Bilinear(Kind):
    """Linear in each of the two arguments at `factors`, and in the one at `plus` if there is one: mm, convolution."""

    factors: tuple[int, int] = (0, 1)
    plus: int | None = None


@dataclass(frozen=True)
class Linear(Kind):
    """Jointly linear in the arguments at `linear`; the others are parameters."""

    linear: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Constant(Kind):
    """No derivative: integer or boolean results, shapes, fillings."""


@dataclass(frozen=True)
class Random(Kind):
    """Draws numbers; the draw itself has no derivative.

    `draws`: "elementwise" (one for each element of the arguments), "like" (the same, and the arguments lend their sizes only), "size"
    (the sizes are an argument), or "loop". `pathwise`: torch differentiates the draw in its parameters.
    """

    draws: str = "elementwise"
    pathwise: bool = False


@dataclass(frozen=True)
class Factory(Kind):
    """Makes a tensor from sizes (`x.new_zeros`, `zeros_like`): the first argument lends only dtype, device or sizes."""


@dataclass(frozen=True)
class Decomposed(Kind):
    """Written in terms of other operators by `function(*args, **kwargs)`, in every interpreter."""

    function: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Special(Kind):
    """Nothing that a kind could say: the rules are hand-written, for the reason beside the row."""
