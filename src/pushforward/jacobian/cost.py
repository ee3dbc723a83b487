"""What each way to a Jacobian would cost, in evaluations of the function.

One evaluation is metered: operators K, numbers written E, time t. A mapped pass of a chunk of B directions pays the
overhead of our interpreters once for each operator, and moves about 2 B E numbers:

    t_chunk = K · overhead + 2 · B · E · per number,   t = K · plain + E · per number.

The constants are ratios measured on torch 2.13; they only have to rank the candidates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from .memory import Meter
from .problem import Problem

Tensor = torch.Tensor

# Seconds an operator costs by itself, and under a mapped forward or reverse pass.
PLAIN, FORWARD, REVERSE = 2.0e-6, 45.0e-6, 26.0e-6
# What a reverse pass pays once besides: variables, the engine, seeds of the outputs.
REVERSE_ONCE = 100.0e-6
# Numbers moved by one direction, against those written by one evaluation.
FORWARD_NUMBERS, REVERSE_NUMBERS = 2.0, 2.0


@dataclass(frozen=True)
class Measured:
    """One evaluation of the function.

    Attributes:
        operators: how many operators it ran.
        elements: how many numbers they wrote.
        seconds: how long it took.
        peak: the most bytes of tensors alive at once.
        itemsize: bytes of one number.
    """

    operators: int
    elements: int
    seconds: float
    peak: int
    itemsize: int

    @property
    def per_number(self) -> float:
        """Seconds for each number written."""
        return max(self.seconds - PLAIN * self.operators, 0.1 * self.seconds) / max(self.elements, 1)


@dataclass
class Candidate:
    """One way to compute the Jacobian.

    Attributes:
        mode: "forward", "reverse", "both" or "narrow".
        sparse: whether it uses a sparsity pattern.
        forward: forward passes.
        reverse: reverse passes.
        evaluations: predicted time, in evaluations of the function.
        chunk_size: passes at a time; None for all at once.
        predicted_bytes: predicted peak, None where it was not needed for the decision.
        fits: whether it fits into the memory allowed.
        note: anything else a reader of the table should know.
    """

    mode: str
    sparse: bool
    forward: int
    reverse: int
    evaluations: float = 0.0
    chunk_size: int | None = None
    predicted_bytes: int | None = None
    fits: bool = True
    note: str = ""

    @property
    def passes(self) -> int:
        """Passes of both modes."""
        return self.forward + self.reverse


def measure(problem: Problem) -> Measured:
    """Run the function once under a meter, and once for the time if that is short; the outputs' shapes are kept."""
    meter = Meter()
    with meter:
        outs, _ = problem.of_inputs(*[x.detach() for x in problem.leaves])
    meter.storages.clear()
    problem.outs, problem.generators = list(outs), meter.generators
    begun = time.perf_counter()
    seconds = None
    while seconds is None or (seconds < 1e-3 and time.perf_counter() - begun < 2e-3):
        start = time.perf_counter()
        problem.of_inputs(*[x.detach() for x in problem.leaves])
        once = time.perf_counter() - start
        seconds = once if seconds is None else min(seconds, once)
    itemsize = max([o.element_size() for o in outs] + [x.element_size() for x in problem.leaves], default=8)
    return Measured(meter.operators, max(meter.elements, 1), seconds, meter.peak, itemsize)


def price(candidate: Candidate, cost: Measured) -> None:
    """Fill in the predicted time."""
    chunks = 1 if not candidate.chunk_size else -(-max(candidate.forward, candidate.reverse) // candidate.chunk_size)
    seconds = 0.0
    if candidate.forward:
        seconds += chunks * cost.operators * FORWARD
        seconds += candidate.forward * cost.elements * cost.per_number * FORWARD_NUMBERS
    if candidate.reverse:
        seconds += chunks * cost.operators * REVERSE + REVERSE_ONCE
        seconds += candidate.reverse * cost.elements * cost.per_number * REVERSE_NUMBERS
    candidate.evaluations = seconds / max(cost.seconds, 1e-9)
