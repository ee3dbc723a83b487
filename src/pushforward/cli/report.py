"""The report of a sensitivity analysis, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .labels import Labels
from .measure import Choice, Comparison

INPUTS_LISTED = 30
OUTPUTS_PER_INPUT = 3


@dataclass(frozen=True)
class Analysis:
    """Everything that the report, the file and the picture say."""

    spec: str
    labels: Labels
    input_names: list[str]
    output_names: list[str]
    point: Tensor
    value: Tensor
    jacobian: Tensor
    choice: Choice
    evaluation_seconds: float
    jacobian_seconds: float
    comparison: Comparison
    repeatable: bool


def render(analysis: Analysis) -> str:
    """The whole report, several lines."""
    return "\n".join([*_head(analysis), "", *_table(analysis)])


def strongest_inputs(analysis: Analysis, most: int) -> list[int]:
    """The inputs whose change of 1 % moves an output most, in the order of the inputs."""
    strength = torch.nan_to_num(effects(analysis), posinf=torch.inf).abs().amax(dim=0)
    order = strength.argsort(descending=True)[:most]
    return sorted(order.tolist())


def effects(analysis: Analysis) -> Tensor:
    """Change of each output when an input rises by 1 % (by 0.01 where the input is 0): [m, n]."""
    point = analysis.point
    return analysis.jacobian * 0.01 * torch.where(point == 0, torch.ones_like(point), point.abs())


def _head(analysis: Analysis) -> list[str]:
    m, n = analysis.jacobian.shape
    kind = str(analysis.jacobian.dtype).removeprefix("torch.")
    ratio = analysis.jacobian_seconds / analysis.evaluation_seconds
    lines = [
        f"Sensitivity of {analysis.labels.title} ({analysis.spec})",
        "",
        f"  size       n = {n} input{'s' * (n != 1)}, m = {m} output{'s' * (m != 1)}, {kind}",
        f"  mode       {analysis.choice.mode}: {analysis.choice.reason}",
        f"  time       Jacobian {duration(analysis.jacobian_seconds)}, one evaluation "
        f"{duration(analysis.evaluation_seconds)}: as long as {ratio:.1f} evaluations",
        *_check(analysis),
    ]
    bad = (~torch.isfinite(analysis.jacobian)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        lines.append(
            f"  attention  {len(bad)} derivatives are not finite, the first d {analysis.output_names[row]} / "
            f"d {analysis.input_names[column]} = {analysis.jacobian[row, column].item()}"
        )
    if not analysis.repeatable:
        lines.append("  attention  two evaluations at the same inputs differ: a random function has no one derivative")
    return lines


def _check(analysis: Analysis) -> list[str]:
    comparison = analysis.comparison
    n = len(analysis.input_names)
    count = len(comparison.columns)
    part = "" if count == n else f" of {count} of the {n} inputs"
    kind = str(comparison.matrix.dtype).removeprefix("torch.")
    verdict = "agree" if comparison.agrees else "DIFFER"
    lines = [
        f"  check      central differences in {kind}{part} ({2 * count} evaluations) {verdict}: largest difference "
        f"{comparison.largest:.1e} of the largest derivative to that input"
    ]
    if comparison.note:
        lines.append(f"             ({comparison.note})")
    if not comparison.agrees:
        lines.append(
            f"             worst at d {analysis.output_names[comparison.output]} / "
            f"d {analysis.input_names[comparison.column]}; near a kink (relu, abs, max, a branch) differences err"
        )
    return lines


def _table(analysis: Analysis) -> list[str]:
    labels = analysis.labels
    n = len(analysis.input_names)
    shown = strongest_inputs(analysis, INPUTS_LISTED)
    unit = f" {labels.output_unit}" if labels.output_unit else ""
    change = effects(analysis)
    rows = [("input", "value", f"d {labels.output} / d input", "where", "if the input rises by 1 %")]
    for column in shown:
        derivative = analysis.jacobian[:, column]
        value = analysis.point[column].item()
        for rank, row in enumerate(_most_sensitive(derivative, labels.along is not None)):
            step = "" if value else " (by 0.01)"
            rows.append(
                (
                    analysis.input_names[column] if rank == 0 else "",
                    f"{value:.6g}" if rank == 0 else "",
                    f"{derivative[row].item():+.4g}",
                    labels.place(row, analysis.output_names[row]),
                    f"{analysis.value[row].item():.4g} {change[row, column].item():+.3g}{unit}{step}",
                )
            )
    title = "Most sensitive outputs for each input"
    if len(shown) < n:
        title += f" (the {len(shown)} strongest of {n} inputs)"
    return [title, "", *_columns(rows)]


def _most_sensitive(derivative: Tensor, is_curve: bool) -> list[int]:
    """The outputs with the largest derivatives [m]; on a curve only its peaks, else one peak fills the list.

    >>> _most_sensitive(torch.tensor([1.0, 5.0, 4.0, -3.0, 0.0]), is_curve=True)
    [1, 3]
    >>> _most_sensitive(torch.tensor([1.0, 5.0, 4.0, -3.0, 0.0]), is_curve=False)
    [1, 2, 3]
    """
    size = torch.nan_to_num(derivative.abs(), nan=torch.inf)
    order = size.argsort(descending=True, stable=True).tolist()
    if is_curve and len(order) > 2:
        # A peak lies above its neighbours of the same sign; the ends have one neighbour.
        signed = torch.nn.functional.pad(derivative, (1, 1))
        before, after = signed[:-2] * derivative.sign(), signed[2:] * derivative.sign()
        peaks = set(((size >= before) & (size > after) & (size > 1e-3 * size.max())).nonzero().reshape(-1).tolist())
        order = [index for index in order if index in peaks] or order[:1]
    return order[:OUTPUTS_PER_INPUT]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = ["  " + "   ".join(row).rstrip() for row in padded]
    lines.insert(1, "  " + "   ".join("-" * width for width in widths))
    return lines


def duration(seconds: float) -> str:
    """Write a time in the unit that suits it.

    >>> duration(0.01234), duration(75e-6), duration(2.5)
    ('12.3 ms', '75 µs', '2.5 s')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
