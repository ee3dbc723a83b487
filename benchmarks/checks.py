"""``python -m benchmarks.checks``: what `pushforward.routes` and `check` promise, measured.

The routes to a Jacobian-vector product of simulations of 50 inputs and 2000 outputs, and what a check costs. Times are
the processor's, of one thread, the routes in turns; ratios are medians of the turns.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import pushforward as pf
from pushforward.check.routes import by_hand

from .jacobians import Part, handed_out, in_turns, milli, ratio
from .simulations import SIMULATIONS

ROUNDS = 15


def of_simulations(only: str) -> Part:
    """The exact routes on each simulation."""
    head = ("simulation", "plain, ms", "pf.jvp, ms", "functional.jvp", "double backward by hand", "torch.func.jvp")
    part = Part("Routes to J v: times the time of `pf.jvp`", head)
    ratios: list[float] = []
    x, v = torch.linspace(-1, 1, 50), torch.randn(50, generator=torch.Generator().manual_seed(0))
    for name, f in SIMULATIONS.items():
        if not re.search(only, name):
            continue
        assert f(x).numel() == 2000
        routes = {
            "plain": lambda f=f: f(x),
            "own": lambda f=f: pf.jvp(f, (x,), (v,)),
            "functional": lambda f=f: torch.autograd.functional.jvp(f, (x,), (v,)),
            "hand": lambda f=f: by_hand(lambda *a: (f(*a),), (x,), (v,)),
            "torch.func": lambda f=f: torch.func.jvp(f, (x,), (v,)),
        }
        values = [routes[n]()[1] for n in ("own", "functional", "torch.func")]
        # torch.func.jvp gives the epidemic a tangent in float64.
        assert all(torch.allclose(values[0], t.to(values[0].dtype), rtol=1e-3, atol=1e-4) for t in values[1:]), name
        samples = in_turns(routes, ROUNDS, 0.02)
        found = {n: ratio(samples[n], samples["own"]) for n in ("functional", "hand", "torch.func")}
        ratios.append(found["functional"])
        part.rows.append(
            (name, milli(samples["plain"]), milli(samples["own"]), *(f"{r:.2f}" for r in found.values()))
        )
        holds = found["functional"] >= 2
        part.claim(f"{name}: at least 2 times faster than functional.jvp", holds, f"{found['functional']:.2f} times")
    mean = math.exp(sum(math.log(r) for r in ratios) / max(len(ratios), 1))
    part.claim("at least 2 times faster in the geometric mean", mean >= 2, f"{mean:.2f} times")
    return part


def subjects() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """What is checked: functions and modules of several kinds, the last of 12.6 million parameters."""
    torch.manual_seed(0)
    nn = torch.nn
    made: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "sin(x) x": (lambda x: x.sin() * x, (torch.randn(20),)),
        "relu near its kink": (lambda x: torch.relu(x - 1e-7), (torch.zeros(5),)),
        "50 cells in a ring": (SIMULATIONS["50 cells in a ring"], (torch.linspace(-1, 1, 50),)),
        "a perceptron": (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), (torch.randn(4, 32),)),
        "a convolutional net": (
            nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 10)),
            (torch.randn(2, 1, 16, 16),),
        ),
    }
    large = nn.TransformerEncoderLayer(1024, 8, 4096, dropout=0.0, batch_first=True)
    made["a transformer block of 12.6 million parameters"] = (large, (torch.randn(1, 16, 1024),))
    return made


def of_checks(only: str) -> Part:
    """What a check costs, counted from outside."""
    part = Part("A check", ("function", "evaluations", "seconds", "right"))
    most, right, last = 0, True, 0.0
    for name, (f, args) in subjects().items():
        if not re.search(only, name):
            continue
        begun = time.process_time()
        report = pf.check(f, args)
        last = time.process_time() - begun
        most, right = max(most, report.evaluations), right and report.ok
        part.rows.append((name, str(report.evaluations), f"{last:.2f}", "yes" if report.ok else "NO"))
    part.claim("a check takes at most 60 evaluations", most <= 60, f"at most {most}")
    part.claim("no false alarm", right, "none" if right else "some")
    if any("12.6 million" in row[0] for row in part.rows):  # the last of them
        part.claim("a block of 12.6 million parameters in under 30 s", last < 30, f"{last:.1f} s")
    return part


def main(argv: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checks", description=__doc__)
    parser.add_argument("--parts", default="routes,checks", help="which parts, comma-separated")
    parser.add_argument("--only", metavar="REGEX", default="", help="rows whose name matches")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables here")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    made = {"routes": of_simulations, "checks": of_checks}
    parts = [made[name](options.only) for name in options.parts.split(",")]
    return handed_out(parts, options)


if __name__ == "__main__":
    sys.exit(main())
