"""The speed-ups as a picture: one bar a row on a logarithmic axis, grouped by transform, with the line of parity."""

from __future__ import annotations

from pathlib import Path

from .claims import against_library, geometric_mean
from .report import Results
from .report import means as report_means
from .timing import Timing

COLOURS = {"short": "#3b6fb6", "chain": "#d08a2e", "model": "#4f9d69"}
MEANING = {"short": "short function", "chain": "chain of tiny operators", "model": "network"}
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
LONGEST = 12.0
"""Where bars are cut off: the few that are longer would squeeze all others together."""
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
    low, high = min(0.5, *speedups) / 1.4, min(LONGEST, max(2.0, *speedups)) * 2.2
    for panel, column in zip(panels[0], columns, strict=True):
        fill(panel, column, tallest)
        # After the ticks, which would widen the axis to hold them all.
        panel.set_xlim(low, high)
    means = dict((label, f"{mean:.2f} over {count} rows") for label, count, mean in report_means(results.timings))
    figure.suptitle(
        f"How many times faster is {results.ours} than {results.theirs}?\n"
        f"Geometric mean {means['all']}"
        + (f", {means['all but linearize']} without linearize" if "all but linearize" in means else "")
        + "; bars left of the line are slower",
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
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
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
    panel.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    panel.set_xticks([], minor=True)
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
    cut = spread.median > LONGEST
    panel.barh(y, min(spread.median, LONGEST) - 1, left=1, height=0.75, color=COLOURS[t.group])
    if not cut:
        panel.plot([spread.lower, min(spread.upper, LONGEST)], [y, y], color="black", linewidth=0.8)
    end = LONGEST if cut else max(min(spread.upper, LONGEST), 1)
    colour = "#b3261e" if spread.median < SLOWER else "black"
    panel.annotate(
        f"» {spread.median:.0f}" if cut else f"{spread.median:.2f}",
        (end, y),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color=colour,
    )
