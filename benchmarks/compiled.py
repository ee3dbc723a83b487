"""``python -m benchmarks.compiled``: programs of ``pushforward.compile`` beside torch.compile(torch.func) and JAX.

Every side computes the same from the same numbers, checked before anything is timed. The sides take turns in one
process, pinned to one core with one thread; each call waits for its result. Compile time is that of the first call
with all caches off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Read when the frameworks are imported.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from .agreement import one_line, per_call
from .compiled_workloads import WORKS, Work
from .timing import CLOCKS, Effort, Spread, calibrate, quiet_process

EFFORT = Effort(sample_ns=4_000_000, row_ns=1_200_000_000, least_rounds=9, most_rounds=41)
QUICK = Effort(sample_ns=2_000_000, row_ns=200_000_000, least_rounds=5, most_rounds=11)

OURS = "pushforward.compile"
EAGER = "pushforward eager"
SIDES = (OURS, "torch.compile", "jax.jit", EAGER, "torch.func eager", "jax eager")
TOLERANCE = {"float32": 3e-4, "float64": 1e-9}


@dataclass
class Result:
    """What was measured of a workload: microseconds a call of each side, and seconds to compile."""

    name: str
    size: str
    dtype: str
    microseconds: dict[str, Spread] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    status: str = "ok"

    def ratio(self, side: str, ours: str = OURS) -> float | None:
        """How many times faster ours is than a side."""
        if side in self.microseconds and ours in self.microseconds:
            return self.microseconds[side].median / self.microseconds[ours].median
        return None


def jax_modules() -> Any:
    """JAX, where it is installed."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return jax, jnp


def sides_of(work: Work, wanted: tuple[str, ...]) -> dict[str, Callable[[], Callable[[], Any]]]:
    """For each side what builds its call."""
    import pushforward

    arrays = tree_map(lambda a: a.astype(work.dtype), work.arrays(np.random.default_rng(0)))
    tensors = tree_map(torch.from_numpy, arrays)

    def ours() -> Callable[[], Any]:
        call = pushforward.compile(work.torch(pushforward))
        return lambda: call(*tensors)

    def theirs() -> Callable[[], Any]:
        torch._dynamo.reset()
        call = torch.compile(work.torch(torch.func))
        return lambda: call(*tensors)

    def eager(T: Any) -> Callable[[], Any]:
        call = work.torch(T)
        return lambda: call(*tensors)

    made: dict[str, Callable[[], Callable[[], Any]]] = {
        OURS: ours,
        "torch.compile": theirs,
        EAGER: lambda: eager(pushforward),
        "torch.func eager": lambda: eager(torch.func),
    }
    modules = jax_modules() if any("jax" in side for side in wanted) else None
    if modules is not None:
        jax, jnp = modules
        own = tree_map(jnp.asarray, arrays)
        made["jax.jit"] = lambda: waiting(jax, jax.jit(work.jax(jax, jnp)), own)
        made["jax eager"] = lambda: waiting(jax, work.jax(jax, jnp), own)
    return {side: made[side] for side in SIDES if side in made and side in wanted}


def waiting(jax: Any, call: Callable[..., Any], arguments: Any) -> Callable[[], Any]:
    """A call of JAX that waits for its result."""
    return lambda: jax.block_until_ready(call(*arguments))


def difference(work: Work, ours: Any, theirs: Any) -> str | None:
    """What differs between two results."""
    left, right = tree_leaves(ours), tree_leaves(theirs)
    if len(left) != len(right):
        return f"{len(left)} results instead of {len(right)}"
    for k, (a, b) in enumerate(zip(left, right, strict=True)):
        a, b = (np.asarray(t.detach() if isinstance(t, torch.Tensor) else t) for t in (a, b))
        if a.shape != b.shape:
            return f"result {k} is {a.shape} instead of {b.shape}"
        error = np.abs(a - b).max() if a.size else 0.0
        if not error <= TOLERANCE[work.dtype] * (1 + np.abs(b).max() if b.size else 1):
            return f"result {k} differs by {error:.2g}"
    return None


def measure(work: Work, effort: Effort, wanted: tuple[str, ...]) -> Result:
    """Build, compare and time the sides of one workload."""
    result = Result(work.name, work.size, work.dtype)
    calls: dict[str, Callable[[], Any]] = {}
    first: Any = None
    for side, build in sides_of(work, wanted).items():
        start = time.perf_counter()
        try:
            call = build()
            out = call()
        except Exception as error:
            result.refusals[side] = one_line(error)
            continue
        result.compile_seconds[side] = time.perf_counter() - start
        if first is None:
            first = out
        elif found := difference(work, first, out):
            result.status = f"WRONG: {side}: {found}"
        calls[side] = call
    with quiet_process():
        alternate(result, calls, effort)
    return result


def alternate(result: Result, calls: dict[str, Callable[[], Any]], effort: Effort) -> None:
    """Samples of all sides by turns."""
    clock = CLOCKS["cpu"]
    repeats: dict[str, int] = {}
    for side, call in list(calls.items()):
        try:
            repeats[side] = calibrate(call, effort, clock)
        except Exception as error:
            result.refusals[side] = one_line(error)
            del calls[side]
    samples: dict[str, list[float]] = {side: [] for side in calls}
    order, spent = list(calls.items()), 0.0
    while order and len(samples[order[0][0]]) < effort.most_rounds:
        for side, call in order:
            call()
            samples[side].append(per_call(call, repeats[side], clock))
            spent += samples[side][-1] * repeats[side]
        order.reverse()
        if spent > effort.row_ns and len(samples[order[0][0]]) >= effort.least_rounds:
            break
    for side, values in samples.items():
        result.microseconds[side] = Spread.of([v / 1e3 for v in values])


def mean(results: list[Result], side: str, ours: str = OURS, *, size: str | None = None) -> float | None:
    """The geometric mean of our speed over a side's."""
    ratios = [r for x in results if (size is None or x.size == size) and (r := x.ratio(side, ours))]
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios)) if ratios else None


def table(results: list[Result]) -> str:
    """The results as Markdown."""
    sides = [s for s in SIDES if any(s in r.microseconds for r in results)]
    rows = ["| workload | " + " | ".join(f"{s}, µs" for s in sides) + " | compile, s (ours / torch) |"]
    rows.append("|---" * (len(sides) + 2) + "|")
    for r in results:
        cells = [f"{r.microseconds[s].median:,.1f}" if s in r.microseconds else "refused" for s in sides]
        seconds = " / ".join(
            f"{r.compile_seconds[s]:.1f}" if s in r.compile_seconds else "–" for s in (OURS, "torch.compile")
        )
        note = "" if r.status == "ok" else f" **{r.status}**"
        rows.append(f"| {r.name} ({r.dtype}){note} | " + " | ".join(cells) + f" | {seconds} |")
    return "\n".join(rows)


def claims(results: list[Result]) -> list[str]:
    """The means that the documentation quotes."""
    lines = []
    for side in ("torch.compile", "jax.jit", "torch.func eager", "jax eager"):
        whole, small = mean(results, side), mean(results, side, size="small")
        if whole and small:
            lines.append(
                f"compiled: {whole:.2f} times the speed of {side} (geometric mean), {small:.2f} for small functions"
            )
    whole = mean(results, "torch.func eager", EAGER)
    if whole:
        lines.append(f"eager: {whole:.2f} times the speed of torch.func in the geometric mean")
    for r in results:
        rivals = [r.microseconds[s].median for s in ("torch.compile", "jax.jit") if s in r.microseconds]
        if OURS in r.microseconds and rivals and r.microseconds[OURS].median > 1.5 * min(rivals):
            lines.append(
                f"behind: {r.name}: {r.microseconds[OURS].median / min(rivals):.2f} times the time of the best"
            )
    ours, theirs = (
        sum(r.compile_seconds[s] for r in results if {OURS, "torch.compile"} <= set(r.compile_seconds))
        for s in (OURS, "torch.compile")
    )
    if theirs:
        lines.append(
            f"compile time: {ours / theirs:.2f} times that of torch.compile together ({ours:.0f} s, {theirs:.0f} s)"
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 where a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="workloads whose name matches")
    parser.add_argument("--sides", metavar="REGEX", default="", help="sides whose name matches; ours always runs")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table here")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    wanted = tuple(s for s in SIDES if s == OURS or re.search(options.sides, s))
    works = [w for w in WORKS if re.search(options.only, w.name)]
    warm_up(wanted)
    results = []
    for k, work in enumerate(works):
        results.append(measure(work, QUICK if options.quick else EFFORT, wanted))
        r = results[-1]
        shown = ", ".join(f"{s} {v.median:.1f}" for s, v in r.microseconds.items())
        print(f"[{k + 1}/{len(works)}] {r.name}: {r.status}: {shown}; {r.refusals or ''}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    text = table(results) + "\n\n" + "\n".join(claims(results)) + "\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    return int(any(r.status != "ok" for r in results))


def warm_up(wanted: tuple[str, ...]) -> None:
    """What every compiler does once in a process, outside of the clock."""
    work = Work("warm-up", "small", "float32", lambda rng: (rng.standard_normal(7),), lambda T: T.grad(lambda x:
    x.exp().sum()),
                lambda jax, jnp: jax.grad(lambda x: jnp.exp(x).sum()))  # fmt: skip
    for build in sides_of(work, wanted).values():
        build()()


if __name__ == "__main__":
    sys.exit(main())
