"""The table of rows: each workload under each transform, and a few comparisons of one way with another.

A row has several *sides* that compute the same. The first is the one under test; the speed-up over another side is
that side's time divided by the first one's, so above 1 the first is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from . import functions, models
from .problem import Group, Inputs, Problem, Size, Subject
from .transforms import BUILDERS, PLAIN, Call, jacfwd, jacrev, vmap_jvp

OURS, THEIRS, PLAIN_AUTOGRAD = "ours", "theirs", "plain autograd"


@dataclass(frozen=True)
class Libraries:
    """The library under test and the one it is compared with; both have torch.func's signatures."""

    ours: Any
    theirs: Any


@dataclass(frozen=True)
class Row:
    """One comparison. ``sides`` maps each side's name to what builds its call for a problem.

    ``kind`` is "library" where the same transform runs in both libraries, "way" where two ways to the same
    result are compared; only the first counts towards the mean speed-up.
    """

    subject: str
    transform: str
    group: Group
    ops: int
    make: Callable[[Size], Problem]
    sides: dict[str, Callable[[Libraries, Problem], Call]]
    kind: str = "library"

    @property
    def name(self) -> str:
        """Workload and transform."""
        return f"{self.subject} | {self.transform}"

    @property
    def reference(self) -> str:
        """The side that the first one is compared with before all others."""
        return list(self.sides)[1]


def in_ours(builder: Callable[[Any, Problem], Call], libraries: Libraries, problem: Problem) -> Call:
    """A transform in the library under test."""
    return builder(libraries.ours, problem)


def in_theirs(builder: Callable[[Any, Problem], Call], libraries: Libraries, problem: Problem) -> Call:
    """The same transform in the other library."""
    return builder(libraries.theirs, problem)


def in_theirs_with(
    workaround: Callable[[], AbstractContextManager[None]],
    builder: Callable[[Any, Problem], Call],
    libraries: Libraries,
    problem: Problem,
) -> Call:
    """The same transform in the other library, inside what makes it possible there."""
    with workaround():
        call = builder(libraries.theirs, problem)

    def around() -> Any:
        with workaround():
            return call()

    return around


def by_autograd(builder: Callable[[Problem], Call], _: Libraries, problem: Problem) -> Call:
    """The same result by plain autograd."""
    return builder(problem)


def rows_of(subject: Subject) -> list[Row]:
    """The rows of a workload: one for each of its transforms."""
    rows = []
    for transform in subject.transforms:
        theirs = in_theirs
        if subject.workaround and "jvp" in transform:
            theirs = partial(in_theirs_with, subject.workaround)
        sides = {OURS: partial(in_ours, BUILDERS[transform]), THEIRS: partial(theirs, BUILDERS[transform])}
        if transform in PLAIN:
            sides[PLAIN_AUTOGRAD] = partial(by_autograd, PLAIN[transform])
        rows.append(Row(subject.name, transform, subject.group, subject.ops, subject.make, sides))
    return rows


def loop_of_jvp(T: Any, p: Problem) -> Call:
    """The directional derivatives of ``vmap_jvp``, one at a time in a Python loop."""
    func = p.of_primals(p.func)
    (directions,) = p.directions
    return lambda: torch.stack([T.jvp(func, p.primals, (v,))[1] for v in directions])


def hundred_directions(size: Size) -> Problem:
    """One input vector of the 256 wide perceptron, 100 directions."""
    inputs = Inputs(size)
    width, count = models.MLP_WIDTH[size], 3 if size == "tiny" else 100
    weights = models.mlp_weights(inputs, width)
    return models.by_input(models.mlp, weights, inputs, (width,), (width,), count)


def by_name(subjects: tuple[Subject, ...], name: str) -> Subject:
    """The subject of this name."""
    return next(s for s in subjects if s.name == name)


TALL, WIDE = (by_name(functions.SUBJECTS, name) for name in ("tile 10 to 2000", "fold 2000 to 10"))

WAYS = (
    Row(
        "mlp, 100 directions",
        "vmap(jvp) / loop of jvp",
        "model",
        14,
        hundred_directions,
        {
            "batched": partial(in_ours, vmap_jvp),
            "our loop": partial(in_ours, loop_of_jvp),
            "their loop": partial(in_theirs, loop_of_jvp),
        },
        kind="way",
    ),
    Row(
        TALL.name,
        "jacfwd / jacrev",
        "short",
        TALL.ops,
        TALL.make,
        {"jacfwd": partial(in_ours, jacfwd), "jacrev": partial(in_ours, jacrev)},
        kind="way",
    ),
    Row(
        WIDE.name,
        "jacrev / jacfwd",
        "short",
        WIDE.ops,
        WIDE.make,
        {"jacrev": partial(in_ours, jacrev), "jacfwd": partial(in_ours, jacfwd)},
        kind="way",
    ),
)

SUBJECTS = (*functions.SUBJECTS, *models.SUBJECTS)
ROWS = (*(row for subject in SUBJECTS for row in rows_of(subject)), *WAYS)
