"""``python -m benchmarks.compiled``: programs of ``pushforward.compile`` beside torch.compile(torch.func) and JAX.

Every side computes the same from the same numbers, checked before anything is timed. The sides take turns in one
process, pinned to one core with one thread; each call waits for its result. Compile time is that of the first call
with all caches off. Memory is the most bytes alive at once in a call above its arguments, as PyTorch's allocator
reports them; of JAX what its compiler reserves for results and temporaries. ``--record`` puts the numbers where
people read them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
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
from .by_hand import Functional, PlainAutograd
from .compiled_report import EAGER, OURS, SIDES, Result, draw, page, text
from .compiled_workloads import WORKS, Work
from .memory import peak_of_tensors
from .timing import CLOCKS, Effort, Spread, calibrate, quiet_process

EFFORT = Effort(sample_ns=4_000_000, row_ns=1_200_000_000, least_rounds=9, most_rounds=41)
QUICK = Effort(sample_ns=2_000_000, row_ns=200_000_000, least_rounds=5, most_rounds=11)

WEIGHED = (OURS, "torch.compile", "jax.jit")
"""The sides whose memory is measured."""
ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "benchmarks" / "recorded_compiled.json"
PAGE = ROOT / "docs" / "benchmarks-compiled.md"
PICTURE = ROOT / "docs" / "benchmarks-compiled.png"
FRAGILE = ("torch.func eager", "torch.compile")
"""The sides that, where they refuse, can leave levels of theirs running: nothing is measured after that in one process."""
TOLERANCE = {"float32": 3e-4, "float64": 1e-9}


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
        "plain autograd": lambda: eager(PlainAutograd),
        "torch.autograd.functional": lambda: eager(Functional),
    }
    modules = jax_modules() if any("jax" in side for side in wanted) else None
    if modules is not None:
        jax, jnp = modules
        own = tree_map(jnp.asarray, arrays)
        made["jax.jit"] = lambda: waiting(jax, jax.jit(work.jax(jax, jnp)), own)
        made["jax eager"] = lambda: waiting(jax, work.jax(jax, jnp), own)
    order = [s for s in SIDES if s not in FRAGILE] + list(FRAGILE)
    return {side: made[side] for side in order if side in made and side in wanted}


def waiting(jax: Any, call: Callable[..., Any], arguments: Any) -> Callable[[], Any]:
    """A call of JAX that waits for its result."""
    return lambda: jax.block_until_ready(call(*arguments))


def peak_of_jax(work: Work) -> int | None:
    """Bytes that the compiled program of JAX reserves for its results and temporaries."""
    modules = jax_modules()
    if modules is None:
        return None
    jax, jnp = modules
    arrays = tree_map(lambda a: jnp.asarray(a.astype(work.dtype)), work.arrays(np.random.default_rng(0)))
    sizes = jax.jit(work.jax(jax, jnp)).lower(*arrays).compile().memory_analysis()
    return sizes.temp_size_in_bytes + sizes.output_size_in_bytes


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
        if side in WEIGHED:
            peak = peak_of_jax(work) if side == "jax.jit" else peak_of_tensors(call)
            if peak is not None:
                result.peak_bytes[side] = peak
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


def main(argv: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 where a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="workloads whose name matches")
    parser.add_argument("--sides", metavar="REGEX", default="", help="sides whose name matches; ours always runs")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--dtypes", choices=("own", "other", "both"), default="own", help="of each workload")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables here")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write the picture here")
    parser.add_argument("--record", action="store_true", help="all of that, at the places in this repository")
    parser.add_argument("--read", metavar="FILE", type=Path, nargs="+", help="measure nothing: the numbers are here")
    parser.add_argument("--after", type=int, default=0, help="so many results are in the file of --json already")
    parser.add_argument("--refused", type=json.loads, default={}, help="sides that the next workload is measured without")
    argv = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(argv)
    if options.record:
        options.json, options.markdown, options.plot = RECORDED, PAGE, PICTURE
    results = [r for path in options.read for r in read(path)] if options.read else measured(options, argv)
    written = text(results)
    print(written)
    if options.markdown:
        options.markdown.write_text(page(written, options.plot))
    if options.plot:
        draw(results, options.plot)
    return int(any(r.status != "ok" for r in results))


def read(path: Path) -> list[Result]:
    """Results that were written before."""
    results = [Result(**entry) for entry in json.loads(path.read_text())]
    for r in results:
        r.microseconds = {side: Spread(**spread) for side, spread in r.microseconds.items()}  # type: ignore[arg-type]
    return results


def measured(options: argparse.Namespace, argv: list[str]) -> list[Result]:
    """Measure what was asked for; the numbers so far are written after each workload.

    Where a fragile side refuses, a new process goes on, and measures the workload without it.
    """
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    wanted = tuple(s for s in SIDES if s == OURS or re.search(options.sides, s))
    works = [w for w in WORKS if re.search(options.only, w.name)]
    other = {"float32": "float64", "float64": "float32"}
    others = [replace(w, dtype=other[w.dtype]) for w in works]
    works = {"own": works, "other": others, "both": works + others}[options.dtypes]
    warm_up(wanted)
    results = read(options.json)[: options.after] if options.after else []
    refused = options.refused
    for k, work in enumerate(works[options.after :], options.after):
        r = measure(work, QUICK if options.quick else EFFORT, tuple(s for s in wanted if s not in refused))
        r.refusals |= refused
        if options.json and set(FRAGILE) & (set(r.refusals) - set(refused)):
            again = ["--after", str(k), "--refused", json.dumps(r.refusals)]
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.compiled", *argv, *again])
        refused = {}
        results.append(r)
        shown = ", ".join(f"{s} {v.median:.1f}" for s, v in r.microseconds.items())
        print(f"[{k + 1}/{len(works)}] {r.name} ({r.dtype}): {r.status}: {shown}; {r.refusals or ''}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    return results


def warm_up(wanted: tuple[str, ...]) -> None:
    """What every compiler does once in a process, outside of the clock."""
    work = Work("warm-up", "small", "float32", lambda rng: (rng.standard_normal(7),), lambda T: T.grad(lambda x:
    x.exp().sum()),
                lambda jax, jnp: jax.grad(lambda x: jnp.exp(x).sum()))  # fmt: skip
    for build in sides_of(work, wanted).values():
        build()()


if __name__ == "__main__":
    sys.exit(main())
