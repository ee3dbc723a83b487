"""Plans in files: the pattern, the colours and the choice, as arrays without code."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np

from ..core.errors import ArgumentError
from ..core.words import check_function, name_of
from ..sparsity.csr import Pattern
from ..sparsity.detect import Detected
from .colouring import Colouring
from .cost import Candidate, measure
from .jacobian_plan import JacobianPlan
from .problem import Problem

FORMAT = 1


def save(plan: JacobianPlan, path: Any) -> None:
    """Write a plan."""
    c = plan.candidate
    if c.mode == "narrow":
        msg = (
            "a plan that cuts the function at a narrow place holds a traced program and cannot be saved; make it again"
        )
        raise ArgumentError(msg)
    arrays: dict[str, Any] = {
        "format": FORMAT,
        "shape": np.array([plan.m, plan.n]),
        "mode": c.mode,
        "passes": np.array([c.forward, c.reverse]),
        "chunk_size": np.array(-1 if c.chunk_size is None else c.chunk_size),
        "evaluations": np.array(c.evaluations),
        "sparse_result": np.array(plan.sparse_result),
        "symmetric": np.array(plan.symmetric),
        "reason": plan.reason,
    }
    if plan.pattern is not None and plan.colouring is not None:
        arrays |= {
            "indptr": plan.pattern.indptr,
            "indices": plan.pattern.indices,
            "columns": plan.colouring.columns,
            "rows": plan.colouring.rows,
            "order": plan.colouring.order,
        }
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)


def load(
    path: Any, func: Any, args: tuple[Any, ...], argnums: Any, has_aux: bool, kwargs: dict[str, Any]
) -> JacobianPlan:
    """Read a plan for a function and an example point."""
    check_function("JacobianPlan.load", func, "JacobianPlan.load(path, f, x)")
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    except (ValueError, AttributeError, zipfile.BadZipFile):  # another kind of file
        data = {}
    if int(data.get("format", -1)) != FORMAT:
        msg = f"JacobianPlan.load({path}): the file holds no plan of this version"
        raise ArgumentError(msg)
    problem = Problem(func, argnums, args, kwargs, has_aux, "JacobianPlan.load")
    cost = measure(problem)
    m, n = (int(k) for k in data["shape"])
    if (problem.m, problem.n) != (m, n):
        msg = (
            f"JacobianPlan.load({path}): the plan is for {m} outputs and {n} inputs, but {name_of(func)} has "
            f"{problem.m} and {problem.n} here"
        )
        raise ArgumentError(msg)
    forward, reverse = (int(k) for k in data["passes"])
    chunk = int(data["chunk_size"])
    colouring = detected = None
    if "indptr" in data:
        colouring = Colouring(data["columns"], data["rows"], str(data["order"]))
        detected = Detected(Pattern((m, n), data["indptr"], data["indices"]))
    candidate = Candidate(str(data["mode"]), colouring is not None, forward, reverse, float(data["evaluations"]))
    candidate.chunk_size = None if chunk < 0 else chunk
    made = JacobianPlan(
        problem,
        candidate=candidate,
        cost=cost,
        candidates=[candidate],
        detected=detected,
        colouring=colouring,
        sparse_result=bool(data["sparse_result"]),
        verify=True,
        show_progress=False,
        symmetric=bool(data["symmetric"]),
    )
    made.reason = str(data["reason"])
    return made
