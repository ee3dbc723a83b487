"""``python -m benchmarks.lanes``: what it costs that lanes disagree, stop at different steps, or differ in length.

Every workload has the call of `pushforward.vmap` first, then what it is compared with; the results are compared before
anything is timed, the sides take turns (`benchmarks.timing`). ``--record`` puts the numbers where people read them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import pushforward as pf

from .agreement import Prepared
from .timing import CLOCKS, FULL, QUICK, Timing, alternate, quiet_process

Tensor = torch.Tensor
ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "benchmarks" / "recorded_lanes.json"
OURS = "vmap"


@dataclass(frozen=True)
class Lanes:
    """One workload: its sides, ours first; ``scale`` says how many times its own work stands for the whole of a side."""

    name: str
    kind: str  # "split", "steps" or "lengths"
    sides: dict[str, Callable[[], Any]]
    same: Callable[[Any, Any], bool]
    scale: dict[str, float] = field(default_factory=dict)


# -- two branches -------------------------------------------------------------------------------------------------

LANES = 1024


def layers(count: int, activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A perceptron of `count` layers of 64."""
    weights = [torch.randn(64, 64, generator=torch.Generator().manual_seed(k)) / 8 for k in range(count)]

    def network(h: Tensor) -> Tensor:
        for w in weights:
            h = activation(w @ h)
        return h

    return network


def steps(count: int, one: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A step `count` times, then the sum."""

    def run(h: Tensor) -> Tensor:
        for _ in range(count):
            h = one(h)
        return h.sum()

    return run


BRANCHES = {
    "20 layers of 64": (layers(20, torch.tanh), layers(20, torch.sin), 64),
    "12 layers of 64": (layers(12, torch.tanh), layers(12, torch.sin), 64),
    "4 layers of 64": (layers(4, torch.tanh), layers(4, torch.sin), 64),
    "40 steps of 16 numbers": (
        steps(40, lambda h: h.sin() * h + h.exp() * 0.1),
        steps(40, lambda h: h.cos() * h - h.exp() * 0.1),
        16,
    ),
    "1 step of 16 numbers": (steps(1, lambda h: h.sin() * h), steps(1, lambda h: h.cos() + h * h), 16),
}


def splits() -> Iterator[Lanes]:
    """`a(x) if x.sum() > 0 else b(x)` over 1,024 lanes, about half of them each way."""
    for name, (a, b, width) in BRANCHES.items():
        x = torch.randn(LANES, width, generator=torch.Generator().manual_seed(0))

        def function(x: Tensor, a: Any = a, b: Any = b) -> Tensor:
            return a(x) if x.sum() > 0 else b(x)

        yes = x.sum(1) > 0
        first, second = yes.nonzero().flatten(), yes.logical_not().nonzero().flatten()
        up, down = x[first], x[second]

        def by_hand(x: Tensor = x, a: Any = a, b: Any = b) -> Tensor:
            yes = pf.vmap(lambda x: x.sum() > 0)(x)
            first, second = yes.nonzero().flatten(), yes.logical_not().nonzero().flatten()
            left, right = pf.vmap(a)(x[first]), pf.vmap(b)(x[second])
            out = left.new_empty((len(x), *left.shape[1:]))
            out[first], out[second] = left, right
            return out

        def agree(
            whole: Tensor, other: Any, first: Tensor = first, second: Tensor = second
        ) -> bool:
            parts = (other[first], other[second]) if isinstance(other, Tensor) else other
            return all(torch.allclose(whole[k], p, atol=1e-4) for k, p in zip((first, second), parts, strict=True))

        yield Lanes(
            name,
            "split",
            {
                OURS: lambda f=function, x=x: pf.vmap(f)(x),
                "the two halves": lambda f=function, u=up, d=down: (pf.vmap(f)(u), pf.vmap(f)(d)),
                "the branches alone": lambda a=a, b=b, u=up, d=down: (pf.vmap(a)(u), pf.vmap(b)(d)),
                "split by hand": by_hand,
            },
            agree,
        )


# -- lanes that stop at different steps ---------------------------------------------------------------------------


def root(a: Tensor) -> Tensor:
    """The cube root, by Newton's method until it is good enough."""
    z = a
    for _ in range(60):
        r = z * z * z - a
        if r.abs() < 1e-10 * a:
            break
        z = z - r / (3 * z * z)
    return z


def newton() -> Iterator[Lanes]:
    """10,000 cube roots; of the loop every hundredth is run."""
    a = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 100 + 0.1
    yield Lanes(
        "Newton's method, 10,000 lanes",
        "steps",
        {OURS: lambda: pf.vmap(root)(a), "loop": lambda: torch.stack([root(v) for v in a[::100]])},
        lambda ours, loop: torch.allclose(ours[::100], loop, rtol=1e-9),
        {"loop": 100.0},
    )


# -- lanes of different lengths -----------------------------------------------------------------------------------


def ragged() -> Iterator[Lanes]:
    """512 sequences of 16 distinct lengths through a transformer encoder of two layers, and their means."""
    for width in (32, 64):
        for longest in (16, 32, 64):
            torch.manual_seed(0)
            layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
            model = torch.nn.TransformerEncoder(layer, 2).eval()
            rows = [torch.randn(longest // 16 * (1 + k % 16), width) for k in range(512)]
            batch = pf.ragged(rows)

            def mean(x: Tensor, model: Any = model) -> Tensor:
                return model(x[None])[0].mean(0)

            def grouped(rows: Any = rows, model: Any = model) -> Tensor:
                places: dict[int, list[int]] = {}
                for k, r in enumerate(rows):
                    places.setdefault(len(r), []).append(k)
                out = torch.empty(len(rows), rows[0].shape[1])
                for own in places.values():
                    out[own] = model(torch.stack([rows[k] for k in own])).mean(1)
                return out

            yield Lanes(
                f"width {width}, lengths up to {longest}",
                "lengths",
                {
                    OURS: lambda f=mean, batch=batch: pf.vmap(f)(batch),
                    "loop": lambda f=mean, rows=rows: torch.stack([f(r) for r in rows]),
                    "grouped by hand": grouped,
                },
                lambda ours, other: torch.allclose(ours, other, atol=1e-4),
            )


def workloads() -> Iterator[Lanes]:
    """All of them."""
    yield from splits()
    yield from newton()
    yield from ragged()


# -- measuring, and saying so -------------------------------------------------------------------------------------


def measure(work: Lanes, effort: Any) -> Timing:
    """Compare the sides of a workload, then time them."""
    with quiet_process():
        results = {side: call() for side, call in work.sides.items()}
        wrong = [side for side, out in results.items() if side != OURS and not work.same(results[OURS], out)]
        other = list(work.sides)[1]
        timing = Timing(work.name, work.name, work.kind, work.kind, "way", 0, f"WRONG: {wrong}" if wrong else "ok", other)
        del results
        if not wrong:
            alternate(timing, Prepared("ok", dict(work.sides)), effort, CLOCKS["cpu"])
    for side, factor in work.scale.items():
        for spreads in (timing.microseconds, timing.speedups):
            spread = spreads[side]
            spread.median, spread.lower, spread.upper = (
                factor * v for v in (spread.median, spread.lower, spread.upper)
            )
    return timing


def milliseconds(timing: Timing, side: str) -> str:
    """A side's time."""
    return f"{timing.microseconds[side].median / 1e3:,.2f}"


def split_table(timings: list[Timing]) -> str:
    """What a split costs, as Markdown."""
    lines = [
        "| function | one call, ms | the two halves, ms | cost of the split | beside the branches alone | beside a split by hand |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for t in timings:
        if t.group == "split":
            lines.append(
                f"| {t.name} | {milliseconds(t, OURS)} | {milliseconds(t, 'the two halves')} | "
                + " | ".join(
                    f"{1 / t.speedups[side].median:.2f}"
                    for side in ("the two halves", "the branches alone", "split by hand")
                )
                + " |"
            )
        elif t.group == "steps":
            lines.append(
                f"\n{t.name}: {milliseconds(t, OURS)} ms, the loop {t.microseconds['loop'].median / 1e6:,.1f} s: "
                f"{t.speedups['loop'].median:.0f} times as fast."
            )
    return "\n".join(lines)


def ragged_table(timings: list[Timing]) -> str:
    """What a ragged batch costs, as Markdown."""
    lines = [
        "| transformer encoder of 2 layers | vmap, ms | loop, ms | times as fast | grouped by hand, ms | times as fast |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for t in timings:
        if t.group == "lengths":
            loop = t.microseconds["loop"].median
            hand = loop / t.microseconds["grouped by hand"].median
            lines.append(
                f"| {t.name} | {milliseconds(t, OURS)} | {milliseconds(t, 'loop')} | {t.speedups['loop'].median:.1f} | "
                f"{milliseconds(t, 'grouped by hand')} | {hand:.1f} |"
            )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 where a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lanes", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="workloads whose name or kind matches")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers here")
    parser.add_argument("--record", action="store_true", help="write the numbers and the tables of the documentation")
    options = parser.parse_args(argv)
    timings = []
    for work in workloads():
        if re.search(options.only, f"{work.kind} {work.name}"):
            timings.append(measure(work, QUICK if options.quick else FULL))
            t = timings[-1]
            ratios = ", ".join(f"{side} {s.median:.2f} ({s.lower:.2f} to {s.upper:.2f})" for side, s in t.speedups.items())
            print(f"{t.group} | {t.name}: {t.status}: {milliseconds(t, OURS)} ms; time over ours: {ratios}", flush=True)
    if options.record:
        from .record import filled

        options.json = RECORDED
        filled(ROOT / "docs" / "control-flow.md", "cost of a split", split_table(timings))
        filled(ROOT / "docs" / "ragged-batches.md", "cost of a ragged batch", ragged_table(timings))
    if options.json:
        options.json.write_text(json.dumps([asdict(t) for t in timings], indent=1) + "\n")
    return int(any(t.status != "ok" for t in timings))


if __name__ == "__main__":
    sys.exit(main())
