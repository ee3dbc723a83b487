"""Short functions and chains of small operators: here the cost of a call is the library's own.

Sizes are those at which a person first tries a library (2 to 50 numbers), because there nothing hides overhead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .problem import Group, Inputs, Problem, Size, Subject

EVERY_TRANSFORM = (
    "vmap",
    "jvp",
    "grad",
    "vmap(grad)",
    "vmap(jvp)",
    "jvp(grad)",
    "jacfwd",
    "jacrev",
    "hessian",
    "linearize",
    "linearized push",
)

LANES: dict[Size, int] = {"tiny": 3, "time": 64, "memory": 4096}

LARGE = 200_000
"""Numbers in the argument of a single call whose memory is measured."""


def of_one_vector(
    func: Callable[[torch.Tensor], torch.Tensor],
    sizes: dict[Size, int],
    lanes: dict[Size, int] = LANES,
    large: int | None = None,
) -> Callable[[Size], Problem]:
    """The problems of a function of one vector, whose scalar is the sum of its outputs.

    For memory a single call gets ``large`` numbers, so that tensors outweigh everything else; Jacobians and
    batches keep to ``sizes``, because theirs are large without that.
    """

    def scalar(x: torch.Tensor) -> torch.Tensor:
        return func(x).sum()

    def make(size: Size) -> Problem:
        inputs = Inputs(size)
        n = sizes[size]
        once = large if large and size == "memory" else n
        return Problem(
            func=func,
            scalar=scalar,
            args=(inputs.normal(once),),
            tangents=(inputs.normal(once),),
            example=(inputs.normal(n),),
            directions=(inputs.normal(4 if once > n else lanes[size], once),),
            batch=(inputs.normal(lanes[size], n),),
        )

    return make


def dot(size: Size) -> Problem:
    """The inner product of two vectors, both differentiated."""
    inputs = Inputs(size)
    n = {"tiny": 4, "time": 50, "memory": 500}[size]
    once = LARGE if size == "memory" else n
    lanes = LANES[size]
    directions = 4 if size == "memory" else lanes
    return Problem(
        func=torch.dot,
        scalar=torch.dot,
        args=(inputs.normal(once), inputs.normal(once)),
        tangents=(inputs.normal(once), inputs.normal(once)),
        example=(inputs.normal(n), inputs.normal(n)),
        directions=(inputs.normal(directions, once), inputs.normal(directions, once)),
        batch=(inputs.normal(lanes, n), inputs.normal(lanes, n)),
        active=2,
    )


def three_outputs(x: torch.Tensor) -> torch.Tensor:
    """(x0·x1, x1², sin x0), the example that explains forward mode."""
    return torch.stack([x[0] * x[1], x[1] ** 2, x[0].sin()])


def sin_times_x(x: torch.Tensor) -> torch.Tensor:
    """Σ sin(x)·x."""
    return (torch.sin(x) * x).sum()


def tile(x: torch.Tensor) -> torch.Tensor:
    """Few inputs, many outputs: sin(x), 200 times over."""
    return torch.sin(x).repeat(200)


def fold(x: torch.Tensor) -> torch.Tensor:
    """Many inputs, few outputs: sin(x), summed in groups of 200."""
    return torch.sin(x).view(-1, 200).sum(1)


def widen(size: Size) -> Problem:
    """50 inputs, 2000 outputs: tanh(W x + b) with a captured W."""
    n, m = {"tiny": (3, 8), "time": (50, 2000), "memory": (50, 2000)}[size]
    captured = Inputs(size, seed=1)
    weight, bias = captured.normal(m, n, scale=n**-0.5), captured.normal(m)
    lanes: dict[Size, int] = {"tiny": 3, "time": 16, "memory": 256}

    def func(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.mv(weight, x) + bias)

    return of_one_vector(func, {size: n}, lanes)(size)


def sines(x: torch.Tensor) -> torch.Tensor:
    """100 sines in a row: the cheapest operator for everyone, so overhead and nothing else."""
    for _ in range(100):
        x = torch.sin(x)
    return x


def chain(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """``length`` tiny operators in a row: unary, by a constant, unary, with a second traced value."""

    def func(x: torch.Tensor) -> torch.Tensor:
        y = x
        for step in range(length):
            kind = step % 4
            if kind == 0:
                y = torch.sin(y)
            elif kind == 1:
                y = y * 1.1
            elif kind == 2:
                y = torch.tanh(y)
            else:
                y = y + x
        return y

    return func


def subject(name: str, group: Group, ops: int, make: Callable[[Size], Problem], *without: str) -> Subject:
    """A subject under every transform but those named."""
    return Subject(name, group, ops, make, tuple(t for t in EVERY_TRANSFORM if t not in without))


# How many lanes suit functions with 2000 outputs or inputs.
MANY: dict[Size, int] = {"tiny": 3, "time": 16, "memory": 1024}

SUBJECTS = (
    subject("dot", "short", 1, dot),
    # Two inputs at every size: the memory of this one is only a count of small buffers.
    subject("three outputs", "short", 8, of_one_vector(three_outputs, {"tiny": 2, "time": 2, "memory": 2})),
    subject("sin(x)·x", "short", 3, of_one_vector(sin_times_x, {"tiny": 3, "time": 50, "memory": 500}, large=LARGE)),
    subject("50 to 2000", "short", 3, widen),
    subject(
        "tile 10 to 2000", "short", 2, of_one_vector(tile, {"tiny": 2, "time": 10, "memory": 10}, MANY, LARGE // 200)
    ),
    # A Hessian of 2000 by 2000 would be timed for seconds.
    subject(
        "fold 2000 to 10",
        "short",
        3,
        of_one_vector(fold, {"tiny": 400, "time": 2000, "memory": 2000}, MANY, LARGE),
        "hessian",
    ),
    subject("chain of 10", "chain", 10, of_one_vector(chain(10), {"tiny": 3, "time": 16, "memory": 256}, large=LARGE)),
    subject(
        "chain of 100", "chain", 100, of_one_vector(chain(100), {"tiny": 3, "time": 16, "memory": 64}, large=LARGE)
    ),
    subject("100 sines", "chain", 100, of_one_vector(sines, {"tiny": 3, "time": 16, "memory": 64}, large=LARGE)),
)
