"""Sparse plans as compiled programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..core.errors import ArgumentError
from ..program.compiled import compile as compile_function
from .colouring import column_colouring
from .cost import Candidate
from .jacobian_plan import JacobianPlan

# A reverse plan is compiled as a forward one if that takes at most so many times its passes.
AS_MANY = 1.5


def compiled(plan: JacobianPlan, backend: str) -> Callable[..., Any]:
    """The plan as a function whose values come from a recorded program."""
    if plan.colouring is None or plan.pattern is None:
        msg = "compiled: this plan uses no sparsity pattern; use pushforward.compile(jacfwd(func)) or jacrev"
        raise ArgumentError(msg)
    plan = in_columns(plan)
    example = plan.problem.args, plan.problem.kwargs
    plan.run(*example)
    plan.values(*example[0], **example[1])  # makes the seeds that the program then holds as constants
    values = compile_function(plan.values, backend=backend)

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        return plan.problem.assembled(plan.as_blocks(plan.problem, values(*args, **kwargs)))

    return jacobian


def in_columns(plan: JacobianPlan) -> JacobianPlan:
    """The plan in forward mode, if that takes few more passes."""
    assert plan.pattern is not None
    if plan.mode == "forward":
        return plan
    colouring = column_colouring(plan.pattern)
    if colouring.passes > AS_MANY * plan.passes:
        return plan
    other = copy.copy(plan)
    other.colouring, other.candidate = colouring, Candidate("forward", True, colouring.forward, 0)
    other._index, other._seeds, other._verified = None, {}, False
    return other
