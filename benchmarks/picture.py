"""The speed-ups as a picture: one bar a row on a logarithmic axis, grouped by transform, with the line of parity."""

from __future__ import annotations

from pathlib import Path

from .claims import against_library, geometric_mean
from .report import Results
from .timing import Timing

COLOURS = {"short": "#3b6fb6", "chain": "#d08a2e", "model": "#4f9d69"}
MEANING = {"short": "short function", "chain": "chain of tiny operators", "model": "network"}
SLOWER = 0.98
"""Below this the number beside the bar is printed in red: slower by more than what the eye reads as parity."""

Group = tuple[str, list[Timing]]


def grouped(timings: list[Timing]) -> list[Group]:
    """The rows of each transform, in the order in which they were measured."""
    rows = against_library(timings)
    return [(name, [t for t in rows if t.transform == name]) for name in dict.fromkeys(t.transform for t in rows)]


def columns_of(groups: list[Group]) -> list[list[Group]]:
    """The groups in two columns of about the same height."""
    half = sum(len(rows) + 2 for _, rows in groups) / 2
    left: list[Group] = []
    height = 0
    for name, rows in groups:
        if height >= half - len(rows) / 2:
            break
        left.append((name, rows))
        height += len(rows) + 2
    return [column for column in (left, groups[len(left) :]) if column]


def draw(results: Results, path: str | Path) -> None:
    """Write the picture; the ending of the file's name chooses the format."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    columns = columns_of(grouped(results.timings))
    if not columns:
        return
    tallest = max(sum(len(rows) + 2 for _, rows in column) for column in columns)
    figure, panels = plt.subplots(
        1, len(columns), figsize=(7.2 * len(columns), 1.9 + 0.2 * tallest), sharex=True, squeeze=False
    )
    speedups = [t.speedup for t in against_library(results.timings)]
    low, high = min(0.5, *speedups) / 1.4, max(2.0, *speedups) * 2.4
    for panel, column in zip(panels[0], columns, strict=True):
        fill(panel, column, tallest)
        panel.set_xlim(low, high)
    mean = geometric_mean(speedups)
    figure.suptitle(
        f"How many times faster is {results.ours} than {results.theirs}?\n"
        f"Geometric mean {mean:.2f} over {len(speedups)} rows; bars left of the line are slower",
        fontsize=12,
    )
    handles = [Patch(color=colour, label=MEANING[group]) for group, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.025, 1, 0.985))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def fill(panel, column: list[Group], tallest: int) -> None:
    """Draw the groups of one column from top to bottom."""
    y = 0
    ticks, labels = [], []
    for name, rows in column:
        mean = geometric_mean([t.speedup for t in rows])
        panel.text(
            0.01,
            y,
            f"{name}   (mean {mean:.2f})",
            transform=panel.get_yaxis_transform(),
            va="center",
            fontsize=9,
            fontweight="bold",
        )
        y += 1
        for t in rows:
            bar(panel, y, t)
            ticks.append(y)
            labels.append(t.subject)
            y += 1
        y += 1
    panel.axvline(1, color="black", linewidth=1)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panel.set_yticks(ticks, labels, fontsize=8)
    panel.set_ylim(tallest - 0.5, -1)
    panel.grid(axis="x", which="major", alpha=0.3)
    panel.set_axisbelow(True)
    panel.set_xlabel("times faster (log scale; 1 = the same speed)", fontsize=9)
    for edge in ("top", "right", "left"):
        panel.spines[edge].set_visible(False)
    panel.tick_params(axis="y", length=0)


def bar(panel, y: float, t: Timing) -> None:
    """One bar from the line of parity, its quartiles as a whisker, its value at the end."""
    spread = t.speedups[t.reference]
    panel.barh(y, spread.median - 1, left=1, height=0.75, color=COLOURS[t.group])
    panel.plot([spread.lower, spread.upper], [y, y], color="black", linewidth=0.8)
    end = max(spread.upper, 1)
    colour = "#b3261e" if spread.median < SLOWER else "black"
    panel.annotate(
        f"{spread.median:.2f}",
        (end, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color=colour,
    )
