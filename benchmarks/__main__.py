"""``python -m benchmarks``: measure, print what holds, and write the files asked for."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import warnings
from pathlib import Path

from . import picture, report
from .memory import Memory, measure_rows
from .timing import CLOCKS, FULL, QUICK, Timing, time_row
from .workloads import ROWS, Libraries, Row


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="rows whose 'workload | transform' matches")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a tenth of the time, wider quartiles")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--no-time", action="store_true", help="memory only")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables here")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the speed-ups here (.png, .svg, .pdf)")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="cpu", help="time of the processor or on the wall")
    parser.add_argument("--pf", metavar="MODULE", default="pushforward", help="the library under test")
    parser.add_argument("--against", metavar="MODULE", default="torch.func", help="the library to compare with")
    return parser.parse_args(argv)


def progress(done: int, total: int, what: str) -> None:
    """One line a row on standard error, so that standard output stays a report."""
    print(f"[{done:3d}/{total}] {what}", file=sys.stderr, flush=True)


def described(t: Timing) -> str:
    """A timed row in one line."""
    spread = t.speedups.get(t.reference)
    if spread is None:
        return f"{t.name}: {t.status}"
    return f"{t.name}: {spread.median:.2f} times faster ({spread.lower:.2f} to {spread.upper:.2f})"


def main(argv: list[str] | None = None) -> int:
    """Run the benchmarks; the exit code is 1 where a row is wrong, 2 for a bad command line."""
    options = arguments(argv)
    try:
        rows = [row for row in ROWS if re.search(options.only, row.name)]
    except re.error as error:
        print(f"--only {options.only!r} is no regular expression: {error}", file=sys.stderr)
        return 2
    if options.list or not rows:
        print("\n".join(f"{row.name}  ({row.group}, {row.ops} operators)" for row in rows or ROWS))
        return 0 if rows else 2
    try:
        libraries = Libraries(importlib.import_module(options.pf), importlib.import_module(options.against))
    except ImportError as error:
        print(f"cannot import what is to be compared: {error}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    timings = [] if options.no_time else timed(rows, libraries, options)
    memories = [] if options.no_memory else weighed(rows, options)
    results = report.Results(
        options.pf, options.against, "quick" if options.quick else "full", options.clock, timings, memories
    )
    print(report.to_terminal(results))
    if options.json:
        options.json.write_text(report.to_json(results))
    if options.markdown:
        options.markdown.write_text(report.to_markdown(results))
    if options.plot:
        picture.draw(results, options.plot)
    return int(any(t.status.startswith("WRONG") for t in timings))


def timed(rows: list[Row], libraries: Libraries, options: argparse.Namespace) -> list[Timing]:
    """Time the rows."""
    timings = []
    for i, row in enumerate(rows, 1):
        timings.append(time_row(row, libraries, QUICK if options.quick else FULL, options.clock))
        progress(i, len(rows), described(timings[-1]))
    return timings


def weighed(rows: list[Row], options: argparse.Namespace) -> list[Memory]:
    """Measure the memory of the rows that compare two libraries."""
    chosen = [row for row in rows if row.kind == "library"]
    memories = []
    for i, memory in enumerate(measure_rows(chosen, options.pf, options.against), 1):
        memories.append(memory)
        peaks = ", ".join(f"{side} {report.size(count)} MiB" for side, count in memory.tensors.items())
        progress(i, len(chosen), f"{memory.name}: {peaks or 'refused'}")
    return memories


if __name__ == "__main__":
    sys.exit(main())
