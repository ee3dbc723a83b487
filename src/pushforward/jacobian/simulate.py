"""The peak memory of a plan, predicted without running it: one chunk on tensors without numbers, beside the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .memory import predicted_peak
from .passes import Passes
from .problem import Problem

if TYPE_CHECKING:
    from .jacobian_plan import JacobianPlan

Tensor = torch.Tensor


def simulated_peak(plan: JacobianPlan, chunk: int | None) -> int:
    """The most bytes alive at once in a run with this chunk."""
    old = plan.problem
    forward, reverse = plan.candidate.forward, plan.candidate.reverse

    def run(*leaves: Tensor) -> Any:
        problem = Problem(old.func, old.argnums, old.args, old.kwargs, old.has_aux, old.what)
        problem.leaves = list(leaves)
        if plan.mode == "narrow":
            return plan.narrow.jacobian(problem, chunk)
        passes = Passes(problem)
        passes.most_chunks = 2
        results = []
        dense = plan.colouring is None
        for count, side in ((forward, "forward"), (reverse, "reverse")):
            if not count:
                continue
            width = None if chunk is None or chunk >= count else chunk
            if side == "forward":
                seeds = lambda a, b: stand_ins(leaves, b - a)  # noqa: E731
                product = passes.forward(seeds, count, width, turned=dense)
            else:
                outs = plan.outs_smooth()
                product = passes.reverse(lambda a, b: stand_ins(outs, b - a), count, width)  # noqa: B023
            results.append(product)
        if not dense:
            passes.values = None
            results.append(results[0].new_empty(5 * (plan.nnz or 0)))  # values, and the check of one random product
        return results

    peak, _ = predicted_peak(run, old.leaves)
    return peak


def stand_ins(leaves: Any, count: int) -> list[Tensor]:
    """Tensors in the sizes of `count` seeds."""
    return [torch.zeros(count, *x.shape, dtype=x.dtype, device=x.device) for x in leaves]
