"""What is promised of speed and memory, each promise checked against the measured rows.

A claim over which nothing was measured (rows left out, or refused by the other library) says so and counts neither way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .memory import FORWARD, Memory
from .timing import Timing
from .workloads import OURS, TALL, THEIRS, WIDE

SHORT_OPS = 10
"""A function of up to this many operators is short."""


@dataclass(frozen=True)
class Verdict:
    """A claim and what was found; ``holds`` is None where nothing was measured."""

    claim: str
    holds: bool | None
    found: str
    exceptions: list[str] = field(default_factory=list)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def against_library(timings: Sequence[Timing]) -> list[Timing]:
    """The rows that compare one transform in both libraries, where both gave an answer."""
    return [t for t in timings if t.kind == "library" and t.speedup is not None]


def is_wrong_nowhere(timings: Sequence[Timing]) -> Verdict:
    """Values before speed."""
    wrong = [f"{t.name}: {t.status}" for t in timings if t.status.startswith(("WRONG", "refused"))]
    found = f"{len(timings) - len(wrong)} of {len(timings)} rows agree"
    return Verdict("every row gives an answer, and the right one", not wrong if timings else None, found, wrong)


def is_faster_on_average(timings: Sequence[Timing]) -> Verdict:
    """The mean over all rows, and without ``linearize``, whose tracing in torch.func would flatter it."""
    claim = "geometric mean of the speed-up at least 1.3"
    rows = against_library(timings)
    if not rows:
        return Verdict(claim, None, "nothing measured")
    mean = geometric_mean([t.speedup for t in rows])
    rest = [t.speedup for t in rows if t.transform != "linearize"]
    without = f", {geometric_mean(rest):.2f} without linearize" if rest else ""
    return Verdict(claim, mean >= 1.3, f"{mean:.2f} over {len(rows)} rows{without}")


def is_never_slower_on_short_functions(timings: Sequence[Timing]) -> Verdict:
    """Row by row, by the median; the quartiles tell whether an exception is within the noise."""
    claim = f"no short function (up to {SHORT_OPS} operators) slower"
    rows = [t for t in against_library(timings) if t.ops <= SHORT_OPS]
    if not rows:
        return Verdict(claim, None, "nothing measured")
    slower = sorted((t for t in rows if t.speedup < 1), key=lambda t: t.speedup)
    exceptions = []
    for t in slower:
        spread = t.speedups[t.reference]
        noise = ", within the noise" if spread.upper >= 1 else ""
        exceptions.append(f"{t.name}: {spread.median:.2f} ({spread.lower:.2f} to {spread.upper:.2f}){noise}")
    return Verdict(claim, not slower, f"{len(slower)} of {len(rows)} rows slower", exceptions)


def keeps_up_on_long_chains(timings: Sequence[Timing]) -> Verdict:
    """Where torch.func's C++ is strongest."""
    claim = "chains of 100 tiny operators at most 2 times slower under vmap"
    rows = [t for t in against_library(timings) if t.ops == 100 and t.transform == "vmap"]
    if not rows:
        return Verdict(claim, None, "nothing measured")
    found = ", ".join(f"{t.subject}: {t.speedup:.2f}" for t in rows)
    return Verdict(claim, all(t.speedup >= 0.5 for t in rows), f"speed-up {found}")


def way(timings: Sequence[Timing], subject: str, transform: str, side: str, factor: float, claim: str) -> Verdict:
    """One way over another way by at least a factor."""
    for t in timings:
        if t.subject == subject and t.transform == transform and side in t.speedups:
            spread = t.speedups[side]
            found = f"{spread.median:.1f} ({spread.lower:.1f} to {spread.upper:.1f})"
            return Verdict(claim, spread.median >= factor, found)
    return Verdict(claim, None, "nothing measured")


def ways(timings: Sequence[Timing]) -> list[Verdict]:
    """The comparisons of one way with another."""
    directions = "mlp, 100 directions", "vmap(jvp) / loop of jvp"
    return [
        way(
            timings,
            TALL.name,
            "jacfwd / jacrev",
            "jacrev",
            15,
            "10 to 2000: jacfwd at least 15 times faster than jacrev",
        ),
        way(timings, TALL.name, "jacfwd", THEIRS, 1, "10 to 2000: jacfwd no slower than the other library's"),
        way(
            timings,
            WIDE.name,
            "jacrev / jacfwd",
            "jacfwd",
            15,
            "2000 to 10: jacrev at least 15 times faster than jacfwd",
        ),
        way(timings, WIDE.name, "jacrev", THEIRS, 1, "2000 to 10: jacrev no slower than the other library's"),
        way(timings, *directions, "our loop", 10, "100 directions at once at least 10 times faster than our loop"),
        way(timings, *directions, "their loop", 20, "100 directions at once at least 20 times faster than their loop"),
    ]


def is_frugal(
    memories: Sequence[Memory], claim: str, other: str, limit: float, where: Callable[[Memory], bool]
) -> Verdict:
    """Peak memory within a limit of another side's on every row."""
    rows = [(ratio, m) for m in memories if where(m) and (ratio := m.ratio(OURS, other)) is not None]
    if not rows:
        return Verdict(claim, None, "nothing measured")
    ratio, worst = max(rows, key=lambda pair: pair[0])
    over = [f"{m.name}: {r:.2f}" for r, m in sorted(rows, key=lambda pair: -pair[0]) if r > limit]
    return Verdict(claim, not over, f"at most {ratio:.2f}, over {len(rows)} rows ({worst.name})", over)


def judge(timings: Sequence[Timing], memories: Sequence[Memory]) -> list[Verdict]:
    """All claims."""
    return [
        is_wrong_nowhere(timings),
        is_faster_on_average(timings),
        is_never_slower_on_short_functions(timings),
        keeps_up_on_long_chains(timings),
        *ways(timings),
        is_frugal(memories, "peak memory never above 1.1 times the other library's", THEIRS, 1.1, lambda _: True),
        is_frugal(
            memories,
            "a float32 model under jvp at most 2.2 times the memory of a plain forward pass",
            FORWARD,
            2.2,
            lambda m: m.group == "model" and m.transform == "jvp",
        ),
    ]
