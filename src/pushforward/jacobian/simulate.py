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
        passes = Passes(problem)
        results = []
        dense = plan.colouring is None
        for count, side in ((forward, "forward"), (reverse, "reverse")):
            if not count:
                continue
            width = count if chunk is None else min(chunk, count)
            # One chunk, and one more that is smaller or equal, show the peak of any number of chunks.
            shown = min(count, width + 1) if width < count else count
            if side == "forward":
                seeds = lambda a, b: stand_ins(leaves, b - a)  # noqa: E731
                product = passes.forward(seeds, shown, width if width < count else None, turned=dense)
            else:
                outs = plan.outs_smooth()
                product = passes.reverse(lambda a, b: stand_ins(outs, b - a), shown, width if width < count else None)  # noqa: B023
            if shown < count:
                missing = (count - shown) * (plan.m if side == "forward" else plan.n)
                results.append(product.new_empty(missing))
            results.append(product)
        if not dense:
            results.append(results[0].new_empty(3 * (plan.nnz or 0)))
        return results

    peak, _ = predicted_peak(run, old.leaves)
    return peak


def stand_ins(leaves: Any, count: int) -> list[Tensor]:
    """Tensors in the sizes of `count` seeds."""
    return [torch.zeros(count, *x.shape, dtype=x.dtype, device=x.device) for x in leaves]
