"""A plan for a person: the table of candidates in the terminal, the pattern in braille, a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.words import name_of
from ..sparsity.csr import Pattern
from .memory import in_words

if TYPE_CHECKING:
    from .jacobian_plan import JacobianPlan

# Bits of the braille dots by row and column of a cell of 4 × 2.
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
COLUMNS = ("", "mode", "passes", "at a time", "evaluations", "peak memory", "")


def explained(plan: JacobianPlan) -> None:
    """Print the plan's table, by rich where it is installed."""
    text = table(plan)
    try:
        from rich.console import Console
    except ImportError:
        print(text)
        return
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def table(plan: JacobianPlan) -> str:
    """The plan as plain text."""
    lines = [f"Jacobian of {plan.title or name_of(plan.problem.func)}: {plan.m} outputs × {plan.n} inputs"]
    if plan.pattern is not None:
        found = plan.pattern
        lines.append(
            f"pattern: {found.nnz} places ({100 * found.density:.3g} %), at most "
            f"{int(found.row_counts.max(initial=0))} in a row, {int(found.column_counts.max(initial=0))} in a column; "
            f"{plan.colours} colours"
        )
    detected = plan.detected
    if detected is not None:
        if detected.dense:
            lines.append(f"taken as dense, having no sparsity rule: {', '.join(sorted(detected.dense))}")
        if detected.branches:
            lines.append(f"the pattern holds for the branches taken at {', '.join(detected.branches)}")
        if detected.saturated:
            lines.append("the pattern grew too large to follow; parts were taken as full")
    rows: list[list[str]] = [[str(c) for c in COLUMNS]]
    for c in sorted(plan.candidates, key=lambda c: (not c.fits, c.evaluations)):
        size = plan.predicted_bytes if c is plan.candidate else c.predicted_bytes
        both = f"{c.forward} + {c.reverse}" if c.forward and c.reverse else str(c.passes)
        note = c.note if c.fits else "does not fit" + (f"; {c.note}" if c.note else "")
        rows.append(
            [
                "→" if c is plan.candidate else "",
                c.mode + (", sparse" if c.sparse else ""),
                both,
                "all" if c.chunk_size is None else str(c.chunk_size),
                f"{c.evaluations:.3g}",
                "" if size is None else in_words(size),
                note,
            ]
        )
    widths = [max(len(r[k]) for r in rows) for k in range(len(COLUMNS))]
    for r in rows:
        cells = [t.ljust(w) if k in (0, 1, 6) else t.rjust(w) for k, (t, w) in enumerate(zip(r, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    if plan.budget:
        lines.append(f"memory allowed: {in_words(plan.budget)}")
    if plan.reason:
        lines.append(f"chosen: {plan.reason}")
    return "\n".join(lines)


def braille(pattern: Pattern, width: int = 60, height: int = 24) -> str:
    """The pattern as a picture of braille dots, each dot a block of the matrix with at least one place.

    Example:
        >>> print(braille(Pattern.from_mask(np.eye(8)), 4, 2))
        ⠑⢄⠀⠀
        ⠀⠀⠑⢄
    """
    m, n = pattern.shape
    if not m or not n:
        return ""
    scale = max(n / (2 * width), m / (4 * height), 1.0)
    rows, cols = int(np.ceil(m / scale / 4)), int(np.ceil(n / scale / 2))
    grid = np.zeros((4 * rows, 2 * cols), dtype=bool)
    grid[(pattern.rows / scale).astype(int), (pattern.indices / scale).astype(int)] = True
    cells = (grid.reshape(rows, 4, cols, 2) * DOTS[None, :, None, :]).sum((1, 3))
    return "\n".join("".join(chr(0x2800 + int(c)) for c in line) for line in cells)


def plotted(plan: JacobianPlan, path: Any = None) -> Any:
    """A figure: the pattern coloured by pass, and predicted memory by chunk; written to `path` if one is given."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1.1, 1])
    draw_pattern(left, plan)
    draw_memory(right, plan)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def draw_pattern(axes: Any, plan: JacobianPlan) -> None:
    """Each place in the colour of its pass; a few hundred thousand dots are sampled."""
    axes.set_title(f"{plan.m} outputs × {plan.n} inputs, {plan.passes} passes")
    axes.set_xlabel("input")
    axes.set_ylabel("output")
    axes.set_xlim(-0.5, plan.n - 0.5)
    axes.set_ylim(plan.m - 0.5, -0.5)
    if plan.pattern is None or plan.colouring is None:
        axes.text(0.5, 0.5, "no pattern in use", transform=axes.transAxes, ha="center")
        return
    rows, cols = plan.pattern.rows, plan.pattern.indices
    colours = np.where(plan.colouring.columns[cols] >= 0, plan.colouring.columns[cols], plan.colouring.rows[rows])
    if rows.size > 200_000:
        chosen = np.random.default_rng(0).choice(rows.size, 200_000, replace=False)
        rows, cols, colours = rows[chosen], cols[chosen], colours[chosen]
    size = min(60.0, max(0.2, 4e4 / max(plan.m, plan.n, 1) ** 2 * 20))
    axes.scatter(cols, rows, c=colours, s=size, cmap="tab20", marker="s", linewidths=0)


def draw_memory(axes: Any, plan: JacobianPlan) -> None:
    """Predicted peak against passes at a time, with the memory allowed."""
    most = max(plan.candidate.forward, plan.candidate.reverse, 1)
    chunks = sorted({max(1, round(most * part)) for part in (0.02, 0.25, 0.5, 0.75, 1)})
    axes.set_title("predicted peak memory")
    axes.set_xlabel("passes at a time")
    axes.set_ylabel("MiB")
    try:
        sizes = [plan.simulated(None if c == most else c) / 2**20 for c in chunks]
    except Exception as error:  # the function branches on values
        axes.text(0.5, 0.5, f"not predicted: {type(error).__name__}", transform=axes.transAxes, ha="center")
        return
    axes.plot(chunks, sizes, marker="o", color="#0072B2")
    chosen = plan.chunk_size or most
    axes.axvline(chosen, color="#D55E00", linewidth=1, label=f"chosen: {chosen}")
    if plan.budget and plan.budget / 2**20 < 4 * max(sizes):
        axes.axhline(plan.budget / 2**20, color="#222222", linestyle="--", linewidth=1, label="allowed")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
