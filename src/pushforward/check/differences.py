"""Differences with step control: the referee, with an error bound beside each number.

    D(h)  = (f(x + h v) − f(x − h v)) / 2h            errs by h² f‴/6 and by ε|f|/h
    R     = (4 D(h/2) − D(h)) / 3                     errs by h⁴
    bound = |D(h) − D(h/2)| + its mean over the leaf + 8 ε max|f| / h

One-sided differences of the same order, for a kink that lies on one side only or at x itself:

    D⁺(h) = (4 f(x + h v) − f(x + 2h v) − 3 f(x)) / 2h
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .subject import Subject, moved, real_vector
from .survey import Survey

Tensor = torch.Tensor
STEP = 6e-6  # ε^(1/3) in float64, relative to the size of the inputs


@dataclass
class Differences:
    """Directional derivatives by differences: one float64 vector for each output leaf, and bounds of their errors."""

    values: list[Tensor]
    bounds: list[Tensor]
    step: float
    side: int = 0  # 0 central, +1 and −1 one-sided
    surveys: list[tuple[float, Survey]] = field(default_factory=list)  # by the place x + s v

    def tolerances(self, relative: float) -> list[Tensor]:
        """What a derivative may differ by: relative to the largest of its leaf, and four bounds."""
        made = []
        for d, e in zip(self.values, self.bounds, strict=True):
            scale = float(d.abs().max()) if d.numel() else 0.0
            made.append(relative * scale + 4 * e)
        return made


def base_step(point: Sequence[Tensor], direction: Sequence[Tensor]) -> float:
    """The largest step that moves each leaf by no more than its own size."""
    ratios = []
    for x, t in zip(point, direction, strict=True):
        if not t.numel():
            continue
        reach = float(t.detach().abs().max())
        if reach > 0:
            size = float(x.detach().abs().max())
            ratios.append((size if size > 0 else 1.0) / reach)
    return min(ratios) if ratios else 1.0


def epsilon(subject: Subject) -> float:
    """The unit of rounding of the inputs."""
    kinds = [torch.finfo(x.dtype).eps for x in subject.point if x.is_floating_point()]
    return max(kinds) if kinds else float(torch.finfo(torch.float64).eps)


def evaluate(
    subject: Subject, direction: list[Tensor], at: float, observe: bool, origin: list[Tensor] | None = None
) -> tuple[list[Tensor], Survey | None]:
    """f(x + at · v) as float64 vectors, and a survey of the run."""
    survey = Survey() if observe else None
    outs = subject.values(moved(subject.point if origin is None else origin, direction, at), survey)
    return [real_vector(o) for o in outs], survey


def central(
    subject: Subject, direction: list[Tensor], step: float, *, observe: bool = True, origin: list[Tensor] | None = None
) -> Differences:
    """Central differences at `step` and half of it, extrapolated: four evaluations."""
    f = {s: evaluate(subject, direction, s * step, observe, origin) for s in (1.0, -1.0, 0.5, -0.5)}
    wide = [(a - b) / (2 * step) for a, b in zip(f[1.0][0], f[-1.0][0], strict=True)]
    near = [(a - b) / step for a, b in zip(f[0.5][0], f[-0.5][0], strict=True)]
    return extrapolated(subject, wide, near, 4, f, step, 0)


def one_sided(
    subject: Subject, direction: list[Tensor], step: float, side: int, *, origin: list[Tensor] | None = None
) -> Differences:
    """Differences from one side only, of second order, extrapolated: four evaluations."""
    zero, _ = evaluate(subject, direction, 0.0, False, origin)
    f = {s: evaluate(subject, direction, side * s * step, True, origin) for s in (1.0, 0.5, 0.25)}

    def slope(h: float) -> list[Tensor]:
        return [side * (4 * b - a - 3 * z) / (2 * h * step) for a, b, z in zip(f[2 * h][0], f[h][0], zero, strict=True)]

    made = extrapolated(subject, slope(0.5), slope(0.25), 4, f, step / 2, side)
    made.surveys = [(side * s * step, survey) for s, (_, survey) in f.items() if survey is not None]
    return made


def extrapolated(
    subject: Subject, wide: list[Tensor], near: list[Tensor], order: int, f: dict, step: float, side: int
) -> Differences:
    """Richardson's extrapolation of two estimates, with its bound."""
    eps = epsilon(subject)
    values = [(order * b - a) / (order - 1) for a, b in zip(wide, near, strict=True)]
    bounds = []
    for j, (a, b) in enumerate(zip(wide, near, strict=True)):
        top = max((float(v[0][j].abs().max()) if v[0][j].numel() else 0.0) for v in f.values())
        off = (a - b).abs()
        bounds.append(off + (off.mean() if off.numel() else 0.0) + 8 * eps * top / abs(step))
    surveys = [(s * step, survey) for s, (_, survey) in f.items() if survey is not None]
    return Differences(values, bounds, step, side, surveys)


def gap(found: Sequence[Tensor], referee: Differences, relative: float = 1e-6) -> tuple[bool, float, int]:
    """Whether derivatives agree with differences; the largest difference, relative to its leaf, and its leaf."""
    worst, leaf, agrees = 0.0, 0, True
    for k, (a, d, tolerance) in enumerate(
        zip([real_vector(t) for t in found], referee.values, referee.tolerances(relative), strict=True)
    ):
        if not a.numel():
            continue
        off = torch.nan_to_num((a - d).abs(), nan=math.inf)
        scale = max(float(d.abs().max()), float(torch.nan_to_num(a).abs().max()), 1e-300)
        agrees = agrees and bool((off <= tolerance + 1e-14 * scale + 1e-300).all())
        if float(off.max()) / scale > worst:
            worst, leaf = float(off.max()) / scale, k
    return agrees, worst, leaf


def quality(found: Differences) -> float:
    """The largest bound, relative to the largest value of its leaf."""
    total = 0.0
    for v, e in zip(found.values, found.bounds, strict=True):
        if v.numel():
            size = float(v.abs().max())
            off = float(torch.nan_to_num(e, nan=math.inf).max())
            total = max(total, off / size if size > 0 else 0.0)
    return total


def best(candidates: Sequence[Differences]) -> Differences:
    """The candidate with the smallest bounds, relative to its values."""
    return min(candidates, key=quality)
