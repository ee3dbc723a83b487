"""`plan`: decide how to compute a Jacobian, and keep the decision for other points.

The candidates are n forward passes, m reverse passes, and, with a sparsity pattern, the colours of its columns, of
its rows, or some of both. Each is priced (`cost`), given the largest chunk that fits the memory allowed (`memory`),
and the fastest that fits is taken.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..batch.repeat import undrawn
from ..core.errors import ArgumentError
from ..core.traced import Traced
from ..core.words import check_function, name_of
from ..sparsity.csr import Pattern
from ..sparsity.detect import Detected, NoPatternError, detect
from .chunks import fit
from .colouring import Colouring, bidirectional_colouring, column_colouring, row_colouring
from .cost import Candidate, Measured, measure, price
from .jacobian_plan import JacobianPlan, PatternError
from .memory import OutOfBudgetError, in_words
from .problem import Problem

Tensor = torch.Tensor
MODES = ("auto", "forward", "reverse", "both")

# "auto" sparsity is taken when it is so much faster than the dense way, and the matrix so empty.
WORTH_SPARSE = 0.7
EMPTY_ENOUGH = 0.25

# The function is traced, to look for a narrow place, where the best dense way would take so many seconds; the first
# time the tracer has to be imported, which takes longer.
WORTH_TRACING, WORTH_IMPORTING = 0.02, 1.0
TRACER = "torch.fx.experimental.proxy_tensor"


def check_options(what: str, mode: Any, sparsity: Any) -> None:
    """Modes and words for sparsity are known ones."""
    if mode not in MODES:
        msg = f"{what}(mode={mode!r}): there are 'auto', 'forward', 'reverse' and 'both'"
        raise ArgumentError(msg)
    if isinstance(sparsity, str) and sparsity not in ("global", "local", "auto"):
        msg = f"{what}(sparsity={sparsity!r}): it is None, 'global', 'local', 'auto' or a pattern"
        raise ArgumentError(msg)


def plan(
    func: Callable[..., Any],
    *args: Any,
    argnums: Any = 0,
    mode: str = "auto",
    sparsity: Any = None,
    memory: Any = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    verify: bool = True,
    progress: bool = False,
    **kwargs: Any,
) -> JacobianPlan:
    """How to compute the Jacobian of `func`: the decision, the table that led to it, and a function of other points.

    Args:
        func: a pure function that returns a tensor or a pytree of tensors.
        args: its arguments at an example point.
        argnums: which arguments to differentiate by: an int, a parameter's name, or a tuple of them.
        mode: "auto", "forward", "reverse", or "both" (some columns forward, some rows in reverse; uses a pattern).
        sparsity: None (dense blocks); "global" (a pattern valid at every point), "local" (at this point) or "auto"
            (global, where it pays); or a pattern: a `Pattern`, a mask m × n, a scipy or torch sparse matrix. With a
            pattern the blocks are `torch.sparse_csr` matrices, outputs × inputs.
        memory: bytes allowed for tensors alive at once, above the inputs: "2GiB", a number, or a fraction below 1 of
            what is free. None allows half of what is free.
        chunk_size: at most so many passes at a time; None chooses.
        has_aux: whether `func` returns `(output, aux)`.
        verify: compare one random product J v with forward mode the first time, so that a pattern that is too small is
            found.
        progress: show the progress of long work on standard error.
        kwargs: keyword arguments of `func`.

    Returns:
        A plan: call it with arguments of the same structure, shapes, dtypes and devices. What is assumed to stay equal
        besides: the function with all it captured, other integers, booleans and texts among the arguments (those are
        checked), and, with a pattern, the Python branches taken and constant tensors whose zeros the pattern uses.

    Raises:
        ArgumentError: unknown options, or nothing to differentiate by.
        OutOfBudgetError: no candidate fits the memory allowed; the message has the numbers and the ways out.

    Example:
        >>> import torch, pushforward as pf
        >>> p = pf.plan(lambda x: x[1:] * x[:-1], torch.ones(1000), sparsity="global")
        >>> p.mode, p.passes, p.nnz
        ('forward', 2, 1998)
        >>> p(torch.ones(1000)).layout
        torch.sparse_csr
    """
    check_function("plan", func, "plan(f, x)")
    check_options("plan", mode, sparsity)
    problem = Problem(func, argnums, args, kwargs, has_aux, "plan")
    return planned(problem, mode, sparsity, memory, chunk_size, verify=verify, progress=progress)


def planned(
    problem: Problem,
    mode: str,
    sparsity: Any,
    memory: Any,
    chunk_size: int | None,
    *,
    verify: bool = True,
    progress: bool = False,
    detector: Callable[[str], Detected] | None = None,
    symmetric: bool = False,
) -> JacobianPlan:
    """The plan of a problem."""
    if any(isinstance(x, Traced) for x in problem.leaves):
        msg = f"{problem.what}: the inputs are values of a running transform; plan outside of it"
        raise ArgumentError(msg)
    with undrawn(problem.leaves[0].device if problem.leaves else None):
        return chosen_plan(problem, mode, sparsity, memory, chunk_size, verify, progress, detector, symmetric)


def chosen_plan(
    problem: Problem,
    mode: str,
    sparsity: Any,
    memory: Any,
    chunk_size: int | None,
    verify: bool,
    progress: bool,
    detector: Callable[[str], Detected] | None,
    symmetric: bool,
) -> JacobianPlan:
    """Measure the function, find its pattern, and price what can be done."""
    cost = measure(problem)
    found = detected(problem, mode, sparsity, detector)
    candidates = dense_candidates(problem, mode) if found is None or wants_auto(sparsity) else []
    colourings: dict[int, Colouring] = {}
    if found is not None:
        for candidate, colouring in coloured_candidates(found.pattern, mode, symmetric=symmetric):
            colourings[id(candidate)] = colouring
            candidates.append(candidate)
    for c in candidates:
        price(c, cost)
    narrow = None
    fastest = min((c.evaluations for c in candidates), default=0.0) * cost.seconds
    if found is None and mode == "auto" and fastest > (WORTH_TRACING if TRACER in sys.modules else WORTH_IMPORTING):
        narrow = narrow_candidate(problem, candidates, cost)
    make = functools.partial(
        JacobianPlan,
        problem,
        cost=cost,
        candidates=candidates,
        verify=verify,
        show_progress=progress,
        symmetric=symmetric,
    )

    def plan_of(candidate: Candidate) -> JacobianPlan:
        used = candidate.sparse and found is not None
        return make(
            candidate=candidate,
            detected=found if used else None,
            colouring=colourings.get(id(candidate)),
            sparse_result=used and sparsity is not None,
            narrow=narrow if candidate.mode == "narrow" else None,
        )

    budget = fit(candidates, plan_of, cost, problem, memory, chunk_size)
    chosen, reason = choose(problem, candidates, found, sparsity, budget, cost)
    made = plan_of(chosen)
    made.reason, made.budget = reason, budget
    return made


def narrow_candidate(problem: Problem, candidates: list[Candidate], cost: Measured) -> Any:
    """The function cut at its narrow place, added to the candidates if it has one and is the same function."""
    from .narrow import find

    narrow = find(problem)
    if narrow is None:
        return None
    candidate = Candidate("narrow", False, narrow.width, narrow.width, note=f"J = J₂J₁ through {narrow.width} numbers")
    price(candidate, cost)
    trial = JacobianPlan(
        problem,
        candidate=candidate,
        cost=cost,
        candidates=[],
        detected=None,
        colouring=None,
        sparse_result=False,
        verify=True,
        show_progress=False,
        symmetric=False,
        narrow=narrow,
    )
    try:
        trial.run(problem.args, problem.kwargs)
    except PatternError:  # the function detaches, or has a derivative of its own
        return None
    candidates.append(candidate)
    return narrow


def detected(problem: Problem, mode: str, sparsity: Any, detector: Callable[[str], Detected] | None) -> Detected | None:
    """The pattern to use, if any."""
    if sparsity is None and mode != "both":
        return None
    if sparsity is not None and not isinstance(sparsity, str):
        given = Pattern.of(sparsity)
        if given.shape != (problem.m, problem.n):
            msg = (
                f"{problem.what}({name_of(problem.func)}): the pattern given has the shape {given.shape}, but "
                f"the function has {problem.m} outputs and {problem.n} inputs"
            )
            raise ArgumentError(msg)
        return Detected(given)
    kind = sparsity if sparsity == "local" else "global"
    try:
        if detector is not None:
            return detector(kind)
        return detect(problem.plain, tuple(problem.leaves), tuple(range(len(problem.leaves))), {}, kind)
    except NoPatternError:
        if wants_auto(sparsity):
            return None
        raise


def wants_auto(sparsity: Any) -> bool:
    """Whether a pattern is to be used where it pays (a pattern given as an array cannot be compared with a word)."""
    return isinstance(sparsity, str) and sparsity == "auto"


def dense_candidates(problem: Problem, mode: str) -> list[Candidate]:
    """n forward passes, m reverse passes."""
    out = []
    if mode in ("auto", "forward"):
        out.append(Candidate("forward", False, problem.n, 0))
    if mode in ("auto", "reverse"):
        out.append(Candidate("reverse", False, 0, problem.m))
    return out


def coloured_candidates(pattern: Pattern, mode: str, *, symmetric: bool) -> list[tuple[Candidate, Colouring]]:
    """Passes by colours."""
    out: list[tuple[Candidate, Colouring]] = []
    if symmetric:
        from .symmetric import star_colouring

        colours = star_colouring(pattern)
        used = pattern.column_counts > 0
        star = Colouring(
            torch.where(torch.from_numpy(used), torch.from_numpy(colours), -1).numpy(), colours * 0 - 1, "star"
        )
        plain = column_colouring(pattern)
        best = star if star.forward < plain.forward else plain
        return [(Candidate("forward", True, best.forward, 0, note="star colouring" if best is star else ""), best)]
    if mode in ("auto", "forward"):
        colouring = column_colouring(pattern)
        out.append((Candidate("forward", True, colouring.forward, 0), colouring))
    if mode in ("auto", "reverse"):
        colouring = row_colouring(pattern)
        out.append((Candidate("reverse", True, 0, colouring.reverse), colouring))
    fewest = min((c.passes for c, _ in out), default=1 << 62)
    if mode == "both" or (mode == "auto" and fewest > 8 and skewed(pattern)):
        colouring = bidirectional_colouring(pattern)
        if mode == "both" or colouring.passes < fewest:
            out.append((Candidate("both", True, colouring.forward, colouring.reverse), colouring))
    return out


def skewed(pattern: Pattern) -> bool:
    """Whether a few rows or columns are much denser than the others, so that two directions could pay."""
    rows, columns = pattern.row_counts, pattern.column_counts
    return bool(pattern.nnz) and max(rows.max() / max(rows.mean(), 1e-9), columns.max() / max(columns.mean(), 1e-9)) > 3


def choose(
    problem: Problem, candidates: list[Candidate], found: Detected | None, sparsity: Any, budget: int, cost: Measured
) -> tuple[Candidate, str]:
    """The fastest candidate that fits, and why."""
    fitting = [c for c in candidates if c.fits]
    if not fitting:
        raise OutOfBudgetError(refusal(problem, candidates, budget))
    best = min(fitting, key=lambda c: c.evaluations)
    if wants_auto(sparsity) and best.sparse and found is not None:
        dense = [c for c in fitting if not c.sparse]
        fastest = min(dense, key=lambda c: c.evaluations) if dense else None
        if fastest and (best.evaluations > WORTH_SPARSE * fastest.evaluations or found.pattern.density > EMPTY_ENOUGH):
            best = fastest
    why = f"{best.passes} passes of {best.mode} mode, about {best.evaluations:.3g} evaluations of the function"
    others = [c for c in candidates if c is not best]
    if others:
        nearest = min(others, key=lambda c: c.evaluations)
        word = (
            "sparse " if nearest.sparse and not best.sparse else "dense " if best.sparse and not nearest.sparse else ""
        )
        why += f"; {word}{nearest.mode} mode would take {nearest.passes} passes, about {nearest.evaluations:.3g}"
        if not nearest.fits:
            why += " and does not fit the memory allowed"
    if best.chunk_size is not None and best.chunk_size < max(best.forward, best.reverse):
        why += f"; {best.chunk_size} passes at a time stay within {in_words(budget)}"
    del cost
    return best, why


def refusal(problem: Problem, candidates: list[Candidate], budget: int) -> str:
    """The message when nothing fits."""
    rows = []
    for c in candidates:
        size = "unknown" if c.predicted_bytes is None else in_words(c.predicted_bytes)
        rows.append(
            f"  {c.mode}{' with sparsity' if c.sparse else ''}: {c.passes} passes, at least {size}, one pass at a time"
        )
    matrix = problem.m * problem.n * max((x.element_size() for x in problem.leaves), default=8)
    return (
        f"{problem.what}({name_of(problem.func)}): the Jacobian, {problem.m} outputs by {problem.n} inputs, does "
        f"not fit into {in_words(budget)}\n"
        + "\n".join(rows)
        + f"\nThe dense matrix alone takes {in_words(matrix)}. Ways out: "
        "sparsity='auto' if outputs depend on few inputs; products J v or Jᵀ u instead of the matrix (jvp, vjp); "
        "torch.utils.checkpoint inside the function for reverse mode; a larger memory=."
    )
