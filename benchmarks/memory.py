"""Peak memory of each row, each side in a process of its own.

Two measures. ``tensors``: the most bytes of tensors alive at once above what was alive before, as PyTorch's allocator
reports them to its profiler; exact and repeatable. ``resident``: how far the process grew, as the operating system
saw it; it includes what libraries allocate past PyTorch, and what the allocator keeps back.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import resource
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .agreement import one_line
from .transforms import Call, plain_forward
from .workloads import OURS, ROWS, THEIRS, Libraries, Row

FORWARD = "plain forward"
"""The side that is the function itself without gradients, measured for the rows of forward mode."""

SMALLEST = 64 * 1024
"""Peaks below this many bytes are not compared: a handful of numbers says nothing about memory."""

TIMEOUT_S = 120


@dataclass
class Memory:
    """Peak bytes of each side of a row, and of the plain forward pass where the row is a ``jvp``."""

    name: str
    subject: str
    transform: str
    group: str
    tensors: dict[str, int] = field(default_factory=dict)
    resident: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def ratio(self, side: str, other: str) -> float | None:
        """Peak tensor bytes of one side over another's, where both were measured and large enough to say anything."""
        ours, theirs = self.tensors.get(side), self.tensors.get(other)
        if ours is None or theirs is None or max(ours, theirs) < SMALLEST:
            return None
        return ours / max(theirs, 1)


def peak_of_tensors(call: Call) -> int:
    """The most bytes of tensors alive at once during a call, above those alive before."""
    gc.collect()
    with without_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    alive = peak = 0
    # The profiler gives one event for every allocation and every release, in the order of time.
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def resident_now_and_peak() -> tuple[int, int]:
    """Bytes of this process in memory, now and at most."""
    try:
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        return tuple(int(lines[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return peak, peak


def growth_of_process(call: Call) -> int:
    """How far the resident memory rose during a call above where it stood."""
    gc.collect()
    # Linux forgets the old peak when asked; elsewhere the peak so far is the baseline.
    with suppress(OSError), open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before, _ = resident_now_and_peak()
    result = call()
    _, peak = resident_now_and_peak()
    del result
    return max(0, peak - before)


@contextmanager
def without_stderr() -> Iterator[None]:
    """The profiler's own start and stop messages are written past Python, so the descriptor itself is turned away."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def measure_side(row_name: str, side: str, ours: str, theirs: str) -> dict[str, Any]:
    """Run in the fresh process: build one side of one row, measure it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    row = next(r for r in ROWS if r.name == row_name)
    try:
        libraries = Libraries(importlib.import_module(ours), importlib.import_module(theirs))

        def build(size: Any) -> Call:
            problem = row.make(size)
            return plain_forward(problem) if side == FORWARD else row.sides[side](libraries, problem)

        # The first call of a library imports and registers things; a tiny one gets that out of the way.
        build("tiny")()
        call = build("memory")
        resident = growth_of_process(call)
        return {"tensors": peak_of_tensors(call), "resident": resident}
    except Exception as error:
        return {"refused": one_line(error)}


def answer(pipe: Connection, row_name: str, side: str, ours: str, theirs: str) -> None:
    """Send what ``measure_side`` found to the parent."""
    pipe.send(measure_side(row_name, side, ours, theirs))


def in_fresh_process(context: BaseContext, *task: str) -> dict[str, Any]:
    """Measure one side in a new process; a process that dies or hangs is an answer too."""
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sending, *task))
    process.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(TIMEOUT_S) else {"refused": f"no answer in {TIMEOUT_S} s"}
    except EOFError:
        process.join()
        return {"refused": f"the process died with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiving.close()


def measure_rows(rows: Iterable[Row], ours: str, theirs: str) -> Iterator[Memory]:
    """The memory of each row. Each side runs in a process forked from one that has done nothing but import torch.

    torch._dynamo is imported there too, because torch.func does so in its first call, for seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "benchmarks.workloads"])
    for row in rows:
        memory = Memory(row.name, row.subject, row.transform, row.group)
        # One at a time, so that they do not take memory from each other.
        for side in (OURS, THEIRS, *((FORWARD,) if row.transform == "jvp" else ())):
            measured = in_fresh_process(context, row.name, side, ours, theirs)
            if "refused" in measured:
                memory.refusals[side] = measured["refused"]
            else:
                memory.tensors[side] = measured["tensors"]
                memory.resident[side] = measured["resident"]
        yield memory
