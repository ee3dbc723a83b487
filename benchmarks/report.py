"""The results as JSON, as a Markdown page and as lines for a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .claims import Verdict, against_library, geometric_mean, judge
from .memory import FORWARD, Memory
from .timing import Spread, Timing
from .workloads import OURS, PLAIN_AUTOGRAD, THEIRS

HOLDS = {True: "holds", False: "does not hold", None: "not measured"}


@dataclass(frozen=True)
class Results:
    """One run: what was compared, on what, and every row."""

    ours: str
    theirs: str
    effort: str
    clock: str
    timings: list[Timing]
    memories: list[Memory]

    @property
    def verdicts(self) -> list[Verdict]:
        """The claims, judged."""
        return judge(self.timings, self.memories)

    @property
    def machine(self) -> dict[str, str]:
        """What a reader needs to place the numbers."""
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": processor(),
            "threads": "1",
            "load": f"{os.getloadavg()[0]:.0f} processes on {os.cpu_count()} cores",
        }


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def means(timings: Sequence[Timing]) -> list[tuple[str, int, float]]:
    """The geometric mean of the speed-up: overall, for each group of workloads, for each transform."""
    rows = against_library(timings)
    found: list[tuple[str, int, float]] = []

    def add(label: str, some: list[Timing]) -> None:
        if some:
            found.append((label, len(some), geometric_mean([t.speedup for t in some])))

    add("all", rows)
    add("all but linearize", [t for t in rows if t.transform != "linearize"])
    for group in ("short", "chain", "model"):
        add(f"{group} workloads", [t for t in rows if t.group == group])
    for transform in dict.fromkeys(t.transform for t in rows):
        add(transform, [t for t in rows if t.transform == transform])
    return found


def to_json(results: Results) -> str:
    """Everything, for machines."""
    return json.dumps(
        {
            "compared": {"ours": results.ours, "theirs": results.theirs},
            "effort": results.effort,
            "clock": results.clock,
            "machine": results.machine,
            "claims": [dataclasses.asdict(v) for v in results.verdicts],
            "means": [{"of": label, "rows": count, "speedup": mean} for label, count, mean in means(results.timings)],
            "timings": [dataclasses.asdict(t) for t in results.timings],
            "memory": [dataclasses.asdict(m) for m in results.memories],
        },
        indent=1,
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right_from: int) -> list[str]:
    """A Markdown table; columns from ``right_from`` on hold numbers."""
    rules = ["---" if i < right_from else "---:" for i in range(len(header))]
    cells = [header, rules, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return ["| " + " | ".join(row) + " |" for row in cells]


def spread(value: Spread | None) -> str:
    """Median and quartiles of a speed-up."""
    return f"{value.median:.2f} ({value.lower:.2f} to {value.upper:.2f})" if value else ""


def microseconds(value: Spread | None) -> str:
    """A time at three digits."""
    return f"{value.median:,.0f}" if value and value.median >= 100 else f"{value.median:.1f}" if value else ""


def size(count: int | None) -> str:
    """Bytes for people."""
    return "" if count is None else f"{count / 2**20:,.2f}"


def times(ratio: float | None) -> str:
    """A ratio."""
    return "" if ratio is None else f"{ratio:.2f}"


def timing_cells(t: Timing) -> list[str]:
    """One row of the table of times, or what came instead of times."""
    if not t.microseconds:
        return [t.subject, t.transform, str(t.ops), t.status, "", "", "", ""]
    refused = "refused" if THEIRS in t.refusals else ""
    return [
        t.subject,
        t.transform,
        str(t.ops),
        microseconds(t.microseconds.get(OURS)),
        microseconds(t.microseconds.get(THEIRS)) or refused,
        spread(t.speedups.get(THEIRS)),
        microseconds(t.microseconds.get(PLAIN_AUTOGRAD)),
        times(t.speedups[PLAIN_AUTOGRAD].median if PLAIN_AUTOGRAD in t.speedups else None),
    ]


def slowest_first(timings: Iterable[Timing]) -> list[Timing]:
    """Rows that went wrong, then by speed-up."""
    return sorted(timings, key=lambda t: (bool(t.microseconds), t.speedup if t.speedup is not None else float("inf")))


def to_markdown(results: Results) -> str:
    """A page for people: the claims, the means, every row."""
    ours, theirs = results.ours, results.theirs
    lines = [f"# {ours} beside {theirs}", ""]
    lines += [", ".join(f"{key} {value}" for key, value in results.machine.items()) + f", {results.clock} time.", ""]
    lines += ["## Claims", ""]
    lines += table(
        ["claim", "verdict", "found"], ([v.claim, HOLDS[v.holds], v.found] for v in results.verdicts), right_from=3
    )
    for v in results.verdicts:
        if v.exceptions:
            lines += ["", f"Exceptions to “{v.claim}”:", "", *(f"- {e}" for e in v.exceptions)]
    lines += ["", "## Mean speed-up", "", f"Time of {theirs} over time of {ours}; above 1, {ours} is faster.", ""]
    shown = ([label, str(count), f"{mean:.2f}"] for label, count, mean in means(results.timings))
    lines += table(["rows", "count", "geometric mean"], shown, right_from=1)
    lines += ["", "## Times", "", "Microseconds a call, lowest speed-up first; quartiles in brackets.", ""]
    header = ["workload", "transform", "operators", ours, theirs, "speed-up", PLAIN_AUTOGRAD, "speed-up"]
    library = [t for t in results.timings if t.kind == "library"]
    lines += table(header, map(timing_cells, slowest_first(library)), right_from=2)
    if other := [t for t in results.timings if t.kind == "way"]:
        lines += ["", "## One way and another", ""]
        lines += table(["workload", "what", "µs", "speed-up"], map(way_cells, other), right_from=2)
    if results.memories:
        lines += [
            "",
            "## Peak memory",
            "",
            "MiB of tensors alive at once, above the arguments, and MiB by which the process",
            "grew; largest ratio first.",
            "",
        ]
        grew = [f"{library}, process" for library in (ours, theirs)]
        header = ["workload", "transform", ours, theirs, "ratio", FORWARD, "ratio", *grew]
        lines += table(header, map(memory_cells, most_first(results.memories)), right_from=2)
    return "\n".join(lines) + "\n"


def way_cells(t: Timing) -> list[str]:
    """One row of the table of ways."""
    if not t.microseconds:
        return [t.subject, t.transform, t.status, ""]
    parts = (f"{side} {microseconds(value)}" for side, value in t.microseconds.items())
    return [t.subject, t.transform, ", ".join(parts), ", ".join(f"{s}: {spread(v)}" for s, v in t.speedups.items())]


def most_first(memories: Iterable[Memory]) -> list[Memory]:
    """Rows by how much more memory the library under test took."""
    return sorted(memories, key=lambda m: -(m.ratio(OURS, THEIRS) or 0))


def memory_cells(m: Memory) -> list[str]:
    """One row of the table of memory."""

    def shown(side: str) -> str:
        return size(m.tensors.get(side)) or ("refused" if side in m.refusals else "")

    ratios = times(m.ratio(OURS, THEIRS)), times(m.ratio(OURS, FORWARD))
    resident = size(m.resident.get(OURS)), size(m.resident.get(THEIRS))
    return [m.subject, m.transform, shown(OURS), shown(THEIRS), ratios[0], shown(FORWARD), ratios[1], *resident]


def to_terminal(results: Results, exceptions: int = 8) -> str:
    """The verdicts and the means, short enough to read after a run."""
    lines: list[Any] = []
    for v in results.verdicts:
        mark = {True: "+", False: "-", None: " "}[v.holds]
        lines.append(f" {mark} {v.claim}: {HOLDS[v.holds]}, {v.found}")
        lines += [f"     {e}" for e in v.exceptions[:exceptions]]
        if len(v.exceptions) > exceptions:
            lines.append(f"     … and {len(v.exceptions) - exceptions} more")
    lines.append("")
    lines += [f"   {mean:8.2f}  {label} ({count} rows)" for label, count, mean in means(results.timings)]
    return "\n".join(lines)
