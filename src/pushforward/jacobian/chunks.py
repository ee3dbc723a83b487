"""How many passes at a time: the largest chunk whose predicted peak stays within the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import ArgumentError
from .cost import Candidate, Measured, price
from .memory import SAFE_FRACTION, free_bytes, parsed_bytes
from .problem import Problem

# While a generous bound is below this part of the budget, nothing is predicted: the simulation would cost more than it
# saves.
SURELY_FITS = 0.25
# Kernels take memory that no shape shows: a chunk is chosen to stay below this part of the budget by the prediction.
MARGIN = 0.8


def fit(
    candidates: list[Candidate],
    plan_of: Callable[[Candidate], Any],
    cost: Measured,
    problem: Problem,
    memory: Any,
    chunk_size: int | None,
) -> int:
    """Give each candidate its chunk and say whether it fits; returns the budget in bytes."""
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size <= 0):
        msg = f"{problem.what}: chunk_size is {chunk_size!r}; it must be None or a positive int"
        raise ArgumentError(msg)
    device = problem.leaves[0].device
    budget = int(SAFE_FRACTION * free_bytes(device)) if memory is None else parsed_bytes(memory, device)
    for c in candidates:
        c.chunk_size = chunk_size if chunk_size is not None and chunk_size < max(c.forward, c.reverse) else None
        if memory is None and generous(c, cost, problem) < SURELY_FITS * budget:
            continue
        limited(c, plan_of(c), budget, chunk_size)
        price(c, cost)
    return budget


def generous(c: Candidate, cost: Measured, problem: Problem) -> float:
    """More bytes than the candidate can take: every number of every direction kept alive at once, twice."""
    width = min(c.chunk_size or c.passes, c.passes)
    numbers = 2.0 * width * (2 * cost.elements + problem.n + problem.m) + 4.0 * c.passes * max(problem.n, problem.m)
    return numbers * cost.itemsize + 4 * cost.peak


def limited(c: Candidate, plan: Any, budget: int, chunk_size: int | None) -> None:
    """The largest chunk that the simulation says fits, by the line through two small ones, then checked."""
    most = max(c.forward, c.reverse, 1)
    upper = min(chunk_size or most, most)

    def peak(chunk: int) -> int:
        return plan.simulated(chunk if chunk < most else None)

    try:
        one = peak(1)
    except Exception as error:  # the function branches on values, or an operator has no shape rule
        c.note = f"memory not predicted ({type(error).__name__})"
        width = upper
        while width > 1:
            c.chunk_size = width
            if generous(c, plan.cost, plan.problem) < budget:
                break
            width //= 2
        c.chunk_size = None if width >= most else width
        return
    if one > budget:
        c.chunk_size, c.predicted_bytes, c.fits = 1, one, False
        return
    budget = max(one, int(MARGIN * budget))
    whole = peak(upper) if upper > 1 else one
    if whole <= budget:
        c.chunk_size, c.predicted_bytes = (None if upper >= most else upper), whole
        return
    low, high = 1, upper  # low fits, high does not
    low_peak, high_peak = one, whole
    for _ in range(6):
        if high - low <= max(1, low // 16):
            break
        slope = (high_peak - low_peak) / (high - low)
        middle = low + max(1, int(0.98 * (budget - low_peak) / max(slope, 1e-9)))
        middle = min(max(middle, low + 1), high - 1)
        found = peak(middle)
        if found <= budget:
            low, low_peak = middle, found
        else:
            high, high_peak = middle, found
    c.chunk_size, c.predicted_bytes = low, low_peak
