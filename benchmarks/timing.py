"""Paired timings: the sides take turns in one process, so that whatever slows the machine slows all of them.

Each round takes one sample of every side, in alternating order, and gives one ratio; the median of the ratios is the
result, their quartiles its uncertainty. The clock is the processor time of this process by default, because another
program on the same core is not part of what is measured; with one thread it equals the time on the wall otherwise.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .agreement import Prepared, per_call, prepare
from .workloads import Libraries, Row

CLOCKS: dict[str, Callable[[], int]] = {"cpu": time.process_time_ns, "wall": time.perf_counter_ns}


@dataclass(frozen=True)
class Effort:
    """How long to measure: a sample lasts ``sample_ns`` at least, a row takes about ``row_ns``."""

    sample_ns: int
    row_ns: int
    least_rounds: int
    most_rounds: int


FULL = Effort(sample_ns=2_000_000, row_ns=1_500_000_000, least_rounds=7, most_rounds=41)
QUICK = Effort(sample_ns=2_000_000, row_ns=150_000_000, least_rounds=3, most_rounds=9)


@dataclass
class Spread:
    """Median and quartiles."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of some numbers."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass
class Timing:
    """What was measured of a row: microseconds of each side, and the speed-up over each side but the first."""

    name: str
    subject: str
    transform: str
    group: str
    kind: str
    ops: int
    status: str
    reference: str
    refusals: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    microseconds: dict[str, Spread] = field(default_factory=dict)
    speedups: dict[str, Spread] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """The median speed-up over the reference side, where there is one."""
        spread = self.speedups.get(self.reference)
        return spread.median if spread else None


@contextmanager
def quiet_process() -> Iterator[None]:
    """One thread, and no garbage collection in the middle of a sample."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    enabled = gc.isenabled()
    gc.collect()
    # What lives now is not looked at again: collecting between samples then takes microseconds.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.unfreeze()
        if enabled:
            gc.enable()


def time_row(row: Row, libraries: Libraries, effort: Effort, clock: str = "cpu") -> Timing:
    """Check that the sides of a row agree, then time them."""
    with quiet_process():
        prepared = prepare(row, libraries, row.make("time"))
        timing = Timing(
            name=row.name,
            subject=row.subject,
            transform=row.transform,
            group=row.group,
            kind=row.kind,
            ops=row.ops,
            status=prepared.status,
            reference=row.reference,
            refusals=prepared.refusals,
        )
        if prepared.calls and not prepared.status.startswith(("WRONG", "refused")):
            alternate(timing, prepared, effort, CLOCKS[clock])
    return timing


def alternate(timing: Timing, prepared: Prepared, effort: Effort, clock: Callable[[], int]) -> None:
    """Take the samples and write them into ``timing``."""
    repeats = {side: calibrate(call, effort, clock) for side, call in prepared.calls.items()}
    samples: dict[str, list[float]] = {side: [] for side in prepared.calls}
    order = list(prepared.calls.items())
    spent = 0.0
    while len(samples[order[0][0]]) < effort.most_rounds:
        for side, call in order:
            gc.collect()
            if repeats[side] > 1:
                # What ran before has filled the caches with its own.
                call()
            samples[side].append(per_call(call, repeats[side], clock))
            spent += samples[side][-1] * repeats[side]
        # The other way round next: a drift of the machine then favours no one.
        order.reverse()
        if spent > effort.row_ns and len(samples[order[0][0]]) >= effort.least_rounds:
            break
    first = next(iter(prepared.calls))
    timing.rounds = len(samples[first])
    for side, values in samples.items():
        timing.microseconds[side] = Spread.of([value / 1e3 for value in values])
        if side != first:
            ratios = [other / own for own, other in zip(samples[first], values, strict=True)]
            timing.speedups[side] = Spread.of(ratios)


def calibrate(call: Callable[[], Any], effort: Effort, clock: Callable[[], int]) -> int:
    """How often a call is repeated in a sample; finding out warms it up as well."""
    call()
    repeats = 1
    while (taken := per_call(call, repeats, clock) * repeats) < effort.sample_ns:
        # The clock of the processor ticks in steps, so grow until the sample is long enough by measurement.
        repeats = max(repeats + 1, min(10 * repeats, int(1.2 * repeats * effort.sample_ns / max(taken, 1))))
    return repeats
