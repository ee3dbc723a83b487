"""``python -m benchmarks.families``: is a batching rule faster than the loop it replaces, in every family of operators?

`vmap` beside the stacked Python loop, and `vmap(grad)` beside the loop of `torch.autograd.grad`, at a batch of 64, in
one process, in turn. ``--record`` keeps the numbers in `benchmarks/families.json`; `docs/coverage.md` shows them
(`./run conformance --page`).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .claims import geometric_mean
from .family_workloads import WORKLOADS, Workload
from .problem import Problem, Size
from .report import Results
from .timing import CLOCKS, FULL, QUICK, Timing, time_row
from .transforms import Call
from .workloads import Libraries, Row

RECORDED = Path(__file__).with_name("families.json")
BATCHED, LOOP, OTHER = "vmap", "loop", "torch.func"
WITH_OTHER = ("convolutions | conv2d, a kernel each | vmap(grad)", "convolutions | conv2d, shared weights | vmap(grad)")
"""Rows in which torch.func's vmap takes part."""


def squares(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The sum of squares of a function's result."""
    return lambda *args: function(*args).square().sum()


def problem_of(workload: Workload, size: Size) -> Problem:
    """A workload's function and arguments."""
    function, batch = workload.arguments(size)
    dims = workload.in_dims
    first = lambda x, d: x if d is None else x[0]
    each = dims if isinstance(dims, tuple) else (dims,) * len(batch)
    args = tuple(first(x, d) for x, d in zip(batch, each, strict=True))
    scalar = squares(function)
    return Problem(function, scalar, args, (), (), batch, dims, active=len(batch))


def lanes_of(p: Problem) -> list[tuple[torch.Tensor, ...]]:
    """The arguments of each call of the loop."""
    dims = p.in_dims if isinstance(p.in_dims, tuple) else (p.in_dims,) * len(p.batch)
    count = next(x.shape[0] for x, d in zip(p.batch, dims, strict=True) if d is not None)
    return [tuple(x if d is None else x[k] for x, d in zip(p.batch, dims, strict=True)) for k in range(count)]


def batched(transform: str, which: str, libraries: Libraries, p: Problem) -> Call:
    """By a batching rule."""
    T = getattr(libraries, which)
    if transform == "vmap":
        return lambda: T.vmap(p.func, p.in_dims)(*p.batch)
    return lambda: T.vmap(T.grad(p.scalar, gradient_place(p)), p.in_dims)(*p.batch)


def gradient_place(p: Problem) -> int:
    """Per-sample gradients are in the weights, where a function takes them; else in the first argument."""
    return 1 if isinstance(p.in_dims, tuple) else 0


def looped(transform: str, _: Libraries, p: Problem) -> Call:
    """By a Python loop over the examples, in plain PyTorch."""
    place = gradient_place(p)

    def gradient(*args: torch.Tensor) -> torch.Tensor:
        args = (*args[:place], args[place].detach().requires_grad_(), *args[place + 1 :])
        return torch.autograd.grad(p.scalar(*args), args[place])[0]

    def values() -> torch.Tensor:
        with torch.no_grad():
            return torch.stack([p.func(*lane) for lane in lanes_of(p)])

    return values if transform == "vmap" else lambda: torch.stack([gradient(*lane) for lane in lanes_of(p)])


def rows_of(workload: Workload) -> list[Row]:
    """A row for each transform."""
    rows = []
    for transform in workload.transforms:
        subject = f"{workload.family} | {workload.name}"
        sides = {BATCHED: partial(batched, transform, "ours"), LOOP: partial(looped, transform)}
        if f"{subject} | {transform}" in WITH_OTHER:
            sides[OTHER] = partial(batched, transform, "theirs")
        rows.append(Row(subject, transform, "short", 1, partial(problem_of, workload), sides, kind="way"))
    return rows


ROWS = tuple(row for workload in WORKLOADS for row in rows_of(workload))


def summary(timings: list[Timing]) -> list[dict[str, Any]]:
    """For each family the geometric mean of the speed-up over the loop, and the least of its rows."""
    found = []
    for family in dict.fromkeys(t.subject.split(" | ")[0] for t in timings):
        rows = [t for t in timings if t.subject.startswith(family + " | ") and t.speedups]
        least = min(rows, key=lambda t: t.speedups[LOOP].median)
        found.append(
            {
                "family": family,
                "rows": len(rows),
                "mean": geometric_mean([t.speedups[LOOP].median for t in rows]),
                "least": least.speedups[LOOP].median,
                "least of": least.name.split(" | ", 1)[1],
            }
        )
    return found


def to_json(timings: list[Timing], effort: str, clock: str) -> str:
    """Everything, a row a line."""
    machine = Results("", "", effort, clock, [], []).machine
    lines = [json.dumps(dataclasses.asdict(t)) for t in timings]
    head = {"effort": effort, "clock": clock, "machine": machine, "batch": 64, "families": summary(timings)}
    return json.dumps(head, indent=1)[:-2] + ',\n "timings": [\n' + ",\n".join(lines) + "\n]}\n"


def main(argv: list[str] | None = None) -> int:
    """The exit code is 1 where a row is wrong or no faster than the loop, 2 for a bad command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="rows whose 'family | workload | transform' matches")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="cpu")
    parser.add_argument("--pf", metavar="MODULE", default="pushforward", help="the library under test")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    options = parser.parse_args(argv)
    rows = [row for row in ROWS if re.search(options.only, row.name)]
    if not rows:
        print(f"no row matches {options.only!r}", file=sys.stderr)
        return 2
    libraries = Libraries(importlib.import_module(options.pf), importlib.import_module("torch.func"))
    timings, failed = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in rows:
            t = time_row(row, libraries, QUICK if options.quick else FULL, options.clock)
            timings.append(t)
            over = ", ".join(f"{s.median:6.2f} ({s.lower:.2f} to {s.upper:.2f}) over {k}" for k, s in t.speedups.items())
            print(f"{t.name:60} {over or t.status}", flush=True)
            failed += t.status != "ok" or t.speedups[LOOP].median < 1
    print()
    for f in summary([t for t in timings if t.speedups]):
        print(f"{f['family']:24} {f['rows']:3} rows: {f['mean']:6.2f} times the loop's speed, at least {f['least']:.2f}"
              f" ({f['least of']})")  # fmt: skip
    if options.record:
        RECORDED.write_text(to_json(timings, "quick" if options.quick else "full", options.clock))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
