"""Do the sides of a row compute the same? Asked before anything is timed: a fast wrong answer is no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from .problem import Problem
from .transforms import Call
from .workloads import Libraries, Row

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Largest difference allowed, as a share of the largest entry: float32 sums in another order differ by this much."""


@dataclass
class Prepared:
    """The calls of a row that ran, and what was wrong with the others.

    ``status`` is "ok", "WRONG: ..." (values differ), "refused: ..." (the side under test raised) or
    "alone: ..." (nothing to compare with).
    """

    status: str
    calls: dict[str, Call] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


def one_line(error: BaseException, width: int = 110) -> str:
    """The kind of an error and the start of its message."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}"
    return text if len(text) <= width else text[: width - 1] + "…"


def difference(ours: Any, theirs: Any) -> str | None:
    """What differs between two results, or None where they agree."""
    left, right = tree_flatten(ours)[0], tree_flatten(theirs)[0]
    if len(left) != len(right):
        return f"{len(left)} tensors instead of {len(right)}"
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        if not a.numel():
            continue
        error = (a.detach() - b.detach()).abs().max().item()
        # Written so that a NaN on either side counts as a difference.
        if not error <= TOLERANCE.get(a.dtype, 0.0) * (1 + b.detach().abs().max().item()):
            return f"output {i} differs by {error:.2g}"
    return None


def prepare(row: Row, libraries: Libraries, problem: Problem) -> Prepared:
    """Build the calls of all sides, run each once, and compare every side with the first."""
    prepared = Prepared("ok")
    results: dict[str, Any] = {}
    for side, build in row.sides.items():
        try:
            call = build(libraries, problem)
            results[side] = call()
        except Exception as error:
            prepared.refusals[side] = one_line(error)
        else:
            prepared.calls[side] = call
    tested = next(iter(row.sides))
    if tested not in results:
        prepared.status = f"refused: {prepared.refusals[tested]}"
        return prepared
    for side, result in results.items():
        if side != tested and (found := difference(results[tested], result)):
            prepared.status = f"WRONG: against {side}: {found}"
            return prepared
    if len(results) == 1:
        prepared.status = "alone: " + "; ".join(f"{side}: {why}" for side, why in prepared.refusals.items())
    return prepared


def per_call(call: Callable[[], Any], repeats: int, clock: Callable[[], int]) -> float:
    """Nanoseconds that one call takes, over ``repeats`` of them."""
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats
