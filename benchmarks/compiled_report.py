"""What was measured of compiled programs: means, tables, and a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .timing import Spread

OURS = "pushforward.compile"
EAGER = "pushforward eager"
SIDES = (
    OURS,
    "torch.compile",
    "jax.jit",
    EAGER,
    "torch.func eager",
    "plain autograd",
    "torch.autograd.functional",
    "jax eager",
)


@dataclass
class Result:
    """What was measured of a workload: microseconds a call of each side, seconds to compile, peak bytes of a call."""

    name: str
    size: str
    dtype: str
    microseconds: dict[str, Spread] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    status: str = "ok"

    def ratio(self, side: str, ours: str = OURS) -> float | None:
        """How many times faster ours is than a side."""
        if side in self.microseconds and ours in self.microseconds:
            return self.microseconds[side].median / self.microseconds[ours].median
        return None


def mean(
    results: list[Result], side: str, ours: str = OURS, *, size: str | None = None, dtype: str | None = None
) -> float | None:
    """The geometric mean of our speed over a side's."""
    chosen = [x for x in results if size in (None, x.size) and dtype in (None, x.dtype)]
    ratios = [r for x in chosen if (r := x.ratio(side, ours))]
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios)) if ratios else None


def compile_ratio(results: list[Result]) -> tuple[float, float] | None:
    """Our compile time over torch.compile's: of the sums, and the geometric mean."""
    both = [r.compile_seconds for r in results if {OURS, "torch.compile"} <= set(r.compile_seconds)]
    if not both:
        return None
    ratios = [s[OURS] / s["torch.compile"] for s in both]
    whole = sum(s[OURS] for s in both) / sum(s["torch.compile"] for s in both)
    return whole, math.exp(sum(map(math.log, ratios)) / len(ratios))


def behind(results: list[Result]) -> list[str]:
    """Workloads in which a program takes more than one and a half times as long as the best of its rivals."""
    lines = []
    for r in results:
        rivals = {s: r.microseconds[s].median for s in ("torch.compile", "jax.jit") if s in r.microseconds}
        if OURS in r.microseconds and rivals and r.microseconds[OURS].median > 1.5 * min(rivals.values()):
            best = min(rivals, key=lambda s: rivals[s])
            lines.append(f"{r.name} ({r.dtype}): {r.microseconds[OURS].median / rivals[best]:.2f} times the time of {best}")
    return lines


def means_table(results: list[Result]) -> str:
    """How many times as fast compiled programs, and eager transforms, are as the other sides."""
    dtypes = sorted({r.dtype for r in results})
    lines = [
        "| times the speed of | all | " + " | ".join(dtypes) + " | at most 20 operators | chains | models |",
        "|---" * (len(dtypes) + 5) + "|",
    ]
    for ours, sides in ((OURS, ("torch.compile", "jax.jit")), (EAGER, SIDES[4:])):
        for side in sides:
            values = [mean(results, side, ours)]
            values += [mean(results, side, ours, dtype=dtype) for dtype in dtypes]
            values += [mean(results, side, ours, size=size) for size in ("small", "chain", "model")]
            if values[0]:
                shown = " | ".join("–" if v is None else f"{v:.2f}" for v in values)
                lines.append(f"| {side} ({'compiled' if ours == OURS else 'eager'}) | {shown} |")
    return "\n".join(lines)


def times_table(results: list[Result]) -> str:
    """Microseconds a call."""
    sides = [s for s in SIDES if any(s in r.microseconds for r in results)]
    lines = ["| workload | " + " | ".join(sides) + " |", "|---" + "|---:" * len(sides) + "|"]
    for r in results:
        cells = [
            f"{r.microseconds[s].median:,.1f}" if s in r.microseconds else "refused" if s in r.refusals else "–" for s in sides
        ]
        note = "" if r.status == "ok" else f" **{r.status}**"
        lines.append(f"| {r.name} ({r.dtype}){note} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def costs_table(results: list[Result]) -> str:
    """Seconds to compile, and the most KiB alive in a call."""

    def cell(values: dict[str, Any], side: str, scale: float) -> str:
        return f"{values[side] / scale:,.1f}" if side in values else "–"

    compiled = ("torch.compile", "jax.jit")
    lines = [
        "| workload | compile, s: ours | torch.compile | jax.jit | peak, KiB: ours | torch.compile | jax.jit |",
        "|---" + "|---:" * 6 + "|",
    ]
    for r in results:
        cells = [cell(r.compile_seconds, s, 1) for s in (OURS, *compiled)]
        cells += [cell(r.peak_bytes, s, 1024) for s in (OURS, *compiled)]
        lines.append(f"| {r.name} ({r.dtype}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def text(results: list[Result]) -> str:
    """All tables as Markdown."""
    parts = [means_table(results)]
    if ratio := compile_ratio(results):
        parts.append(
            f"Compiling takes {ratio[0]:.2f} times as long as with `torch.compile` over all workloads together, "
            f"{ratio[1]:.2f} times in the geometric mean."
        )
    if found := behind(results):
        parts.append("Behind the best by more than half:\n\n" + "\n".join(f"- {line}" for line in found))
    parts += ["## Microseconds a call", times_table(results), "## Compiling, and memory", costs_table(results)]
    return "\n\n".join(parts) + "\n"


def page(written: str, picture: Path | None) -> str:
    """The tables as a page of the documentation."""
    import torch

    try:
        import jax

        versions = f"torch {torch.__version__}, jax {jax.__version__}"
    except ImportError:
        versions = f"torch {torch.__version__}"
    shown = f"![Speed of compiled programs]({picture.name})\n\n" if picture else ""
    return (
        "# Benchmarks of compiled programs\n\n"
        f"Made by `python -m benchmarks.compiled --dtypes both --record` ({versions}; one thread, one core, processor time; the "
        "sides by turns in one process, their results compared before anything is timed). What is measured, and the reasons "
        f"for what is behind, are told in [Programs](programs.md#measured). A dash: not measured."
        f"\n\n{shown}{written}"
    )


COLOURS = {"torch.compile": "#d08a2e", "jax.jit": "#3b6fb6"}
LONGEST = 40.0


def draw(results: list[Result], path: str | Path) -> None:
    """How many times as fast compiled programs are as the two other compilers': a bar each, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(9, 1.6 + 0.34 * len(results)))
    for k, r in enumerate(results):
        for j, side in enumerate(COLOURS):
            ratio, y = r.ratio(side), k + (j - 0.5) * 0.38
            if ratio is None:
                panel.annotate(
                    "refused", (1, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7, color="grey"
                )
                continue
            panel.barh(y, min(ratio, LONGEST) - 1, left=1, height=0.36, color=COLOURS[side], label=side if not k else None)
            end = max(min(ratio, LONGEST), 1)
            panel.annotate(
                f"» {ratio:.0f}" if ratio > LONGEST else f"{ratio:.1f}",
                (end, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color="#b3261e" if ratio < 0.98 else "black",
            )
    panel.axvline(1, color="black", linewidth=1)
    panel.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20, 40]
    panel.set_xticks(ticks, [f"{t:g}" for t in ticks])
    panel.set_xticks([], minor=True)
    panel.set_xlim(0.4, LONGEST * 1.6)
    panel.set_yticks(range(len(results)), [f"{r.name} ({r.dtype[5:]})" for r in results], fontsize=8)
    panel.set_ylim(len(results) - 0.4, -0.7)
    panel.grid(axis="x", which="major", alpha=0.3)
    panel.set_axisbelow(True)
    panel.set_xlabel("times as fast (log scale; 1 = the same speed)", fontsize=9)
    means = [f"{m:.1f} times {side}" for side in COLOURS if (m := mean(results, side))]
    panel.set_title("Programs of pushforward.compile: how many times as fast?\nGeometric mean: " + ", ".join(means), fontsize=11)
    for edge in ("top", "right", "left"):
        panel.spines[edge].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.9 / figure.get_figheight()), ncols=2, frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
