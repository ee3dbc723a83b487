"""``python -m benchmarks.jacobians``: what `pushforward.jacobian` and `plan` promise, measured.

A sparse system beside asdex on JAX, `auto` beside each mode on twelve shapes, functions that narrow inside, predicted
memory beside measured, passes and colours of known patterns. Times are the processor's, of one thread, the sides in
turns; ratios are medians of the turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import pushforward as pf
from examples.jacobians import brusselator
from pushforward.jacobian.planner import TRACER

from .jacobian_workloads import NARROW, PEAKS, SHAPES, Shape, arrow, layer, normal, patterns
from .memory import peak_of_tensors
from .timing import quiet_process

Call = Callable[[], Any]
ROUNDS = 9
BUDGET = 512 * 2**20


@dataclass
class Part:
    """One table: its title, head and rows, and the claims that it bears out or not."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    claims: list[tuple[str, bool, str]] = field(default_factory=list)

    def claim(self, text: str, holds: bool, found: str) -> None:
        """Note whether something promised holds."""
        self.claims.append((text, bool(holds), found))


def seconds(call: Call, least: float = 0.01) -> float:
    """Seconds a call, over at least so many seconds."""
    count, begun = 0, time.process_time()
    while (taken := time.process_time() - begun) < least or not count:
        call()
        count += 1
    return taken / count


def in_turns(calls: dict[str, Call], rounds: int = ROUNDS, least: float = 0.01) -> dict[str, list[float]]:
    """Samples of every call, taken in turns after each has run once."""
    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with quiet_process():
        for k in range(rounds):
            for name in list(calls)[:: -1 if k % 2 else 1]:
                samples[name].append(seconds(calls[name], least))
    return samples


def ratio(above: list[float], below: list[float]) -> float:
    """The median ratio of samples taken in turns."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def milli(samples: list[float]) -> str:
    """The median in milliseconds."""
    return f"{1e3 * statistics.median(samples):.2f}"


class Asdex:
    """The worker of `benchmarks.asdex_side`."""

    def __init__(self, python: str) -> None:
        worker = Path(__file__).with_name("asdex_side.py")
        self.process = subprocess.Popen([python, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.prepared = self.heard()

    def heard(self) -> dict[str, Any]:
        """The next line of the worker."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            msg = "the process with asdex has ended; does that interpreter have asdex and jax?"
            raise RuntimeError(msg)
        return json.loads(line)

    def sample(self) -> dict[str, float]:
        """Seconds of its right-hand side and of its Jacobian."""
        assert self.process.stdin is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        return self.heard()

    def stop(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def sparse_system(python: str | None) -> Part:
    """The Brusselator of 20,000 unknowns: preparation, a Jacobian, a compiled one; beside asdex."""
    part = Part(
        "The Brusselator, 20,000 unknowns",
        ("way", "pattern and colours, s", "first Jacobian, s", "a Jacobian, ms", "evaluations of its right-hand side"),
    )
    f, y = brusselator.right_hand_side(100), brusselator.start(100)
    f(y)
    begun = time.process_time()
    plan = pf.plan(f, y, sparsity="global")
    prepared = time.process_time()
    values = plan(y).values()
    first = time.process_time()
    fast = plan.compiled()
    fast(y)
    compiled = time.process_time()
    assert torch.allclose(fast(y).values(), values)
    other = Asdex(python) if python else None
    samples: dict[str, list[float]] = {"rhs": [], "plan": [], "compiled": []}
    theirs: dict[str, list[float]] = {"rhs": [], "jacobian": []}
    compiled_rhs = pf.compile(f)
    for _ in range(15):
        calls = {"rhs": lambda: f(y), "plan": lambda: plan(y), "compiled": lambda: fast(y), "fast": lambda: compiled_rhs(y)}
        for name, found in in_turns(calls, 1, 0.02).items():
            samples.setdefault(name, []).extend(found)
        if other is not None:
            for name, taken in other.sample().items():
                theirs[name].append(taken)
    spent = f"{prepared - begun:.2f}", f"{first - prepared:.3f}"
    evaluations = ratio(samples["plan"], samples["rhs"])
    part.rows.append(("plan", *spent, milli(samples["plan"]), f"{evaluations:.1f}"))
    part.rows.append(
        ("plan.compiled()", spent[0], f"{compiled - first:.2f} (compiling)", milli(samples["compiled"]),
         f"{ratio(samples['compiled'], samples['rhs']):.1f} ({ratio(samples['compiled'], samples['fast']):.1f} compiled)")
    )  # fmt: skip
    part.claim("pattern, colours and first Jacobian under 3 s", first - begun < 3, f"{first - begun:.2f} s")
    part.claim("a further Jacobian under 40 evaluations", evaluations < 40, f"{evaluations:.1f}")
    part.claim("at most 12 colours", (plan.colours or 99) <= 12, f"{plan.colours}")
    if other is not None:
        told = other.prepared
        assert told["places"] == values.numel(), told
        assert abs(told["sum"] / float(values.abs().sum()) - 1) < 1e-9, "asdex has other numbers"
        part.rows.append(
            ("asdex, jax.jit", f"{told['prepare']:.2f}", f"{told['first']:.2f} (compiling)", milli(theirs["jacobian"]),
             f"{ratio(theirs['jacobian'], theirs['rhs']):.1f}")
        )  # fmt: skip
        faster = told["prepare"] / (prepared - begun)
        part.claim("preparation faster than asdex's", faster > 1, f"{faster:.1f} times")
        slower = ratio(samples["compiled"], theirs["jacobian"])
        part.claim("compiled no slower than asdex, jitted", slower <= 1, f"{slower:.2f} times its time")
        other.stop()
    return part


def modes_of(shape: Shape) -> dict[str, dict[str, Any]]:
    """The ways to compare: every mode, with a pattern where the matrix has one."""
    dense = {"forward": {"mode": "forward"}, "reverse": {"mode": "reverse"}}
    if not shape.sparse:
        return {"auto": {}, **dense}
    sparse = {f"{m}, sparse": {"mode": m, "sparsity": "global"} for m in ("forward", "reverse", "both")}
    return {"auto": {"sparsity": "auto"}, **dense, **sparse}


def of_shapes(only: str) -> Part:
    """`auto` beside each mode."""
    part = Part("Twelve shapes: the time of `auto` over the best mode's", ("shape", "auto took", "ms", "best mode", "ms", "ratio"))
    worst = 0.0
    for shape in SHAPES:
        if not re.search(only, shape.name):
            continue
        plans = {name: pf.plan(shape.func, shape.x, **options) for name, options in modes_of(shape).items()}
        calls: dict[str, Call] = {name: (lambda p=p: p(shape.x)) for name, p in plans.items()}
        once = {name: seconds(call) for name, call in calls.items()}
        fastest = min(once.values())
        # A mode that is far behind need not take its turns.
        near = {name: call for name, call in calls.items() if name == "auto" or once[name] < 5 * fastest}
        samples = in_turns(near)
        best = min((n for n in near if n != "auto"), key=lambda n: statistics.median(samples[n]), default="auto")
        found = ratio(samples["auto"], samples[best])
        worst = max(worst, found)
        took = f"{plans['auto'].mode}, {plans['auto'].passes} passes"
        part.rows.append((shape.name, took, milli(samples["auto"]), best, milli(samples[best]), f"{found:.2f}"))
    part.claim("auto within 1.3 times the best mode on twelve shapes", worst <= 1.3, f"at most {worst:.2f}")
    return part


def narrow(only: str) -> Part:
    """Functions that narrow inside, beside the better of jacfwd and jacrev."""
    part = Part(
        "Narrow inside: times faster than the better of `jacfwd` and `jacrev`",
        ("function", "passes", "ms", "compiled, ms", "the better, ms", "writing the matrix, ms", "times faster", "compiled"),
    )
    importlib.import_module(TRACER)  # takes longer than a small Jacobian; where it is loaded, more is traced
    for shape in NARROW:
        if not re.search(only, shape.name):
            continue
        plan = pf.plan(shape.func, shape.x)
        m, n = plan.m, plan.n
        dense = {name: getattr(pf, name)(shape.func) for name in ("jacfwd", "jacrev")}
        once = {name: seconds(lambda j=j: j(shape.x)) for name, j in dense.items()}
        better = min(once, key=lambda name: once[name])
        left, right = normal(m, 10), normal(10, n)
        plan(shape.x)  # compares a product with the function itself, which is not for a program to do
        compiled = pf.compile(plan)
        compiled(shape.x)
        calls = {
            "plan": lambda p=plan, s=shape: p(s.x),
            "compiled": lambda p=compiled, s=shape: p(s.x),
            "better": lambda j=dense[better], s=shape: j(s.x),
            "write": lambda a=left, b=right: a @ b,
        }
        samples = in_turns(calls, 7)
        found, fast = (ratio(samples["better"], samples[side]) for side in ("plan", "compiled"))
        part.rows.append(
            (shape.name, f"{plan.mode}, {plan.passes}", milli(samples["plan"]), milli(samples["compiled"]),
             f"{milli(samples['better'])} ({better})", milli(samples["write"]), f"{found:.0f}", f"{fast:.0f}")
        )  # fmt: skip
        told = f"{found:.0f} times, compiled {fast:.0f} times"
        part.claim(f"{shape.name}: at least 50 times faster", max(found, fast) >= 50, told)
    return part


def memory(only: str) -> Part:
    """Predicted peaks beside measured ones, and a budget that is kept."""
    part = Part("Peak memory, MiB", ("function", "predicted", "measured", "predicted / measured"))
    off = 0.0
    for shape, options in PEAKS:
        if not re.search(only, shape.name):
            continue
        plan = pf.plan(shape.func, shape.x, **options)
        predicted, measured = plan.predicted_bytes or 0, peak_of_tensors(lambda p=plan, s=shape: p(s.x))
        found = predicted / measured
        off = max(off, abs(found - 1))
        part.rows.append((shape.name, f"{predicted / 2**20:.2f}", f"{measured / 2**20:.2f}", f"{found:.2f}"))
    part.claim("predictions within 25 % on eight functions", off <= 0.25, f"at most {100 * off:.0f} % off")
    large, x = layer(10_000, 1_001), normal(1_001)
    plan = pf.plan(large, x, memory="512MiB")
    measured = peak_of_tensors(lambda: plan(x))
    predicted = plan.predicted_bytes or 0
    part.rows.append(
        ("1,001 to 10,000, 512 MiB allowed", f"{predicted / 2**20:.0f}", f"{measured / 2**20:.0f}", f"{predicted / measured:.2f}")
    )
    part.claim("1,001 to 10,000 within 512 MiB", measured <= BUDGET, f"{measured / 2**20:.0f} MiB")
    return part


def passes(only: str) -> Part:
    """Passes and colours where they are known."""
    part = Part("Colours of known patterns", ("pattern", "known", "found"))
    good = True
    for name, (mask, known) in patterns().items():
        if re.search(only, name):
            found = colours_of(mask)
            good &= found == known
            part.rows.append((name, str(known), str(found)))
    part.claim("as few colours as is possible", good, "on all" if good else "not on all")
    n = 5_000
    plan = pf.plan(arrow, torch.linspace(1, 2, n), sparsity="global", mode="both")
    part.rows.append((f"arrow, {n:,}, both directions", "3", str(plan.passes)))
    part.claim("arrow of 5,000: at most 6 passes with both", plan.passes <= 6, str(plan.passes))
    return part


def colours_of(mask: Any) -> int:
    """The colours of the columns of a pattern."""
    from pushforward.jacobian.colouring import column_colouring

    return column_colouring(pf.Pattern.from_mask(mask)).passes


def markdown(parts: list[Part]) -> str:
    """Tables, and below each what holds."""
    lines = [f"torch {torch.__version__}, one thread, processor time.", ""]
    for part in parts:
        lines += [f"## {part.title}", "", "| " + " | ".join(part.head) + " |", "|" + " --- |" * len(part.head)]
        lines += ["| " + " | ".join(row) + " |" for row in part.rows] + [""]
        lines += [f"- {text}: **{'holds' if holds else 'does not hold'}** ({found})" for text, holds, found in part.claims]
        lines.append("")
    return "\n".join(lines)


def handed_out(parts: list[Part], options: argparse.Namespace) -> int:
    """Print the tables and write the files asked for; 1 where a claim does not hold."""
    text = markdown(parts)
    print(text)
    if options.json:
        options.json.write_text(json.dumps([asdict(p) for p in parts], indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(text)
    return int(any(not holds for p in parts for _, holds, _ in p.claims))


PARTS = ("system", "shapes", "narrow", "memory", "passes")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jacobians", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, comma-separated")
    parser.add_argument("--only", metavar="REGEX", default="", help="rows whose name matches")
    parser.add_argument("--asdex", metavar="PYTHON", help="an interpreter that has asdex and jax, to compare with")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables here")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    made: dict[str, Callable[[], Part]] = {
        "system": lambda: sparse_system(options.asdex),
        "shapes": lambda: of_shapes(options.only),
        "narrow": lambda: narrow(options.only),
        "memory": lambda: memory(options.only),
        "passes": lambda: passes(options.only),
    }
    parts = []
    for name in options.parts.split(","):
        parts.append(made[name]())
        print(markdown(parts[-1:]), file=sys.stderr, flush=True)
    return handed_out(parts, options)


if __name__ == "__main__":
    sys.exit(main())
