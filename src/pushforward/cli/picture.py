"""The picture of a sensitivity analysis, for a person who never saw the tool.

Left: the outputs themselves, and below how they move when each input rises by 1 %, all on one axis. Right: the
derivatives, one panel for each input, since their units differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UserError, one_line
from .report import Analysis, effects, strongest_inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = 6
FEW_OUTPUTS = 30
# The colours of Okabe and Ito, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, PALE = "#222222", "#d9d9d9"


def draw(analysis: Analysis, path: Path) -> str:
    """Write the picture to `path` (PNG); give the reason when there is none, else an empty string.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed (pip install 'pushforward[plot]')"
    shown = strongest_inputs(analysis, PANELS)
    rows = max(len(shown), 2)
    figure = Figure(figsize=(12, max(6.5, 1.75 * rows + 1.6)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(analysis, len(shown)), fontsize=14, fontweight="bold", color=INK)
    left, right = figure.subfigures(1, 2, wspace=0.04, squeeze=False)[0]
    top, bottom = left.subplots(2, 1, sharex=True)
    _values(top, analysis)
    _changes(bottom, analysis, shown)
    panels = np.atleast_1d(right.subplots(len(shown), 1, sharex=True))
    _derivatives(panels, analysis, shown)
    for axes in (bottom, panels[-1]):
        _name_outputs(axes, analysis)
    for axes in (top, bottom, *panels):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK)
        axes.margins(x=0.02 if len(analysis.value) > FEW_OUTPUTS else 0.06)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise UserError(f"cannot write {path}: {one_line(error.strerror or error)}") from error
    return ""


def _title(analysis: Analysis, shown: int) -> str:
    n = len(analysis.input_names)
    part = "" if shown == n else f" (the {shown} strongest of {n} inputs)"
    return f"{_escaped(analysis.labels.title)}: what it depends on{part}"


def _values(axes: Axes, analysis: Analysis) -> None:
    labels = analysis.labels
    at = ", ".join(
        f"{_escaped(name)} = {value:.4g}"
        for name, value in list(zip(analysis.input_names, analysis.point.tolist(), strict=True))[:4]
    )
    more = ", ..." if len(analysis.input_names) > 4 else ""
    axes.set_title(f"The output, at {at}{more}", fontsize=10, loc="left", color=INK)
    axes.set_ylabel(_with_unit(labels.output, labels.output_unit))
    _line(axes, analysis, analysis.value.numpy(), color=INK)


def _changes(axes: Axes, analysis: Analysis, shown: list[int]) -> None:
    labels = analysis.labels
    change = effects(analysis).numpy()
    axes.set_title("How far it moves when one input rises by 1 %", fontsize=10, loc="left", color=INK)
    axes.set_ylabel(_with_unit(f"change of {labels.output}", labels.output_unit))
    axes.axhline(0, color=PALE, linewidth=1, zorder=0)
    for rank, column in enumerate(shown):
        step = " (by 0.01)" if analysis.point[column] == 0 else ""
        label = _escaped(analysis.input_names[column]) + step
        _line(axes, analysis, change[:, column], color=COLOURS[rank], label=label)
    axes.legend(title="input", fontsize=9, frameon=False)


def _derivatives(panels: np.ndarray, analysis: Analysis, shown: list[int]) -> None:
    labels = analysis.labels
    matrix = analysis.jacobian.numpy()
    for rank, (axes, column) in enumerate(zip(panels, shown, strict=True)):
        name = analysis.input_names[column]
        unit = labels.derivative_unit(name)
        title = f"∂ {_escaped(labels.output)} / ∂ {_escaped(name)}"
        axes.set_title(title, fontsize=10, loc="left", color=COLOURS[rank])
        axes.set_ylabel(_escaped(unit) or f"∂ / ∂ {_escaped(name)}")
        axes.axhline(0, color=PALE, linewidth=1, zorder=0)
        _line(axes, analysis, matrix[:, column], color=COLOURS[rank])


def _line(axes: Axes, analysis: Analysis, values: np.ndarray, **style: Any) -> None:
    along = analysis.labels.along
    x = np.arange(len(values)) if along is None else along
    # A few outputs without an order between them are points; a joined line would invent values between them.
    marker = "o" if len(values) <= FEW_OUTPUTS else None
    line = "none" if len(values) <= FEW_OUTPUTS and along is None else "-"
    axes.plot(x, values, marker=marker, markersize=5, linestyle=line, linewidth=1.8, **style)


def _name_outputs(axes: Axes, analysis: Analysis) -> None:
    labels = analysis.labels
    if labels.along is not None:
        axes.set_xlabel(_with_unit(labels.along_name or "coordinate", labels.along_unit))
        return
    names = analysis.output_names
    if len(names) <= 12:
        axes.set_xticks(range(len(names)), [_escaped(name) for name in names], rotation=30, ha="right")
        axes.set_xlabel("output")
    else:
        axes.set_xlabel("position in the output")


def _with_unit(name: str, unit: str) -> str:
    return f"{_escaped(name)} ({_escaped(unit)})" if unit and unit != name else _escaped(name)


def _escaped(text: str) -> str:
    """Matplotlib reads `$` as the start of mathematics."""
    return text.replace("$", r"\$")
