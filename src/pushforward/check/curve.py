"""The V of differences: their error over the step, in the function's own type and in float64, and the kinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .differences import base_step, evaluate
from .precision import relative
from .subject import Subject

EXPONENTS = tuple(range(-11, 0))


@dataclass
class Curve:
    """Relative errors of central differences by relative step."""

    name: str
    steps: list[float]
    errors: dict[str, list[float]] = field(default_factory=dict)  # by dtype
    kinks: list[tuple[float, str]] = field(default_factory=list)  # relative step that gets there, operator and line

    def plot(self, path: Any = None) -> Any:
        """The picture; needs matplotlib."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for (name, errors), colour in zip(self.errors.items(), ("#0072B2", "#D55E00"), strict=False):
            axes.loglog(
                self.steps, [max(e, 1e-17) for e in errors], "o-", color=colour, label=f"central differences in {name}"
            )
        for reach, where in self.kinks:
            axes.axvline(
                max(reach, self.steps[0]),
                color="#777777",
                linestyle="--",
                linewidth=1.2,
                label=f"reaches the kink of {where}",
            )
        axes.set_xlabel("step h, relative to the size of the inputs")
        axes.set_ylabel("difference from forward mode, relative to the largest entry")
        axes.set_title(f"{self.name}: how far differences are off, by step", fontsize=11, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure


def curve(
    subjects: dict[str, Subject],
    direction: list[torch.Tensor],
    tangent: list[torch.Tensor],
    kinks: list[tuple[float, str]],
) -> Curve:
    """Errors of central differences against a tangent, for each subject by the name of its type."""
    any_subject = next(iter(subjects.values()))
    made = Curve(any_subject.name, [10.0**k for k in EXPONENTS])
    for name, subject in subjects.items():
        own = [t.to(x.dtype) for t, x in zip(direction, subject.point, strict=True)]
        unit = base_step(subject.point, own)
        errors = []
        for h in made.steps:
            above, _ = evaluate(subject, own, h * unit, False)
            below, _ = evaluate(subject, own, -h * unit, False)
            errors.append(relative([(a - b) / (2 * h * unit) for a, b in zip(above, below, strict=True)], tangent))
        made.errors[name] = errors
    unit = base_step(any_subject.point, direction)
    made.kinks = [(reach / unit, where) for reach, where in kinks]
    return made
