"""Kinks: steps that cross one, how far away it lies, and a comparison that does not cross.

Every decision of the function is compared at x − hv, x and x + hv (`decisions`). Where one differs, the difference
quotient is not the derivative. The comparison is then repeated with a smaller step, from the side that does not
cross, or at a point a little beside x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .differences import Differences, base_step, central, evaluate, one_sided
from .subject import Subject, moved
from .survey import Look, Survey, crossings

Tensor = torch.Tensor
LISTED = 8


@dataclass
class Kink:
    """A decision that differs within the step."""

    operator: str
    source: str
    elements: int  # how many of its elements decide differently
    of: int
    margin: float | None  # the smallest distance in the operator's own input, where it has one
    reach: float | None  # the smallest step along the direction that gets there, estimated; 0: exactly at x
    sides: tuple[int, ...]  # on which sides of x it is crossed
    branch: bool = False  # the run took another way altogether

    def sentence(self, step: float) -> str:
        """What a person should know of it."""
        if self.branch:
            return f"the Python code takes another way from here on, within a step of {step:.1e}"
        part = f"{self.elements} of {self.of} elements"
        if self.reach == 0.0:
            return f"{part} of `{self.operator}` lie exactly on its kink"
        away = "" if self.margin is None else f", the nearest {self.margin:.1e} away from it"
        at = "" if self.reach is None else f"; a step of {self.reach:.1e} gets there"
        return f"the step of {step:.1e} crossed the kink of `{self.operator}` in {part}{away}{at}"


@dataclass
class Settled:
    """A comparison that crosses nothing: differences, where, and how it was found."""

    differences: Differences
    origin: list[Tensor] | None  # None: at x itself
    how: str


def crosses(base: Survey, found: Differences) -> list[float]:
    """The places (in steps of the direction) at which the function decided differently than at x."""
    bad = []
    for s, survey in found.surveys:
        different, branch = crossings(base, survey)
        if different or branch is not None:
            bad.append(s)
    return bad


def kinks(subject: Subject, direction: list[Tensor], base: Survey, found: Differences) -> list[Kink]:
    """The operators whose decision differs within the step, looked at more closely: three evaluations."""
    wanted: dict[int, set[int]] = {}
    branches: dict[int, set[int]] = {}
    widest: dict[int, float] = {}
    for s, survey in found.surveys:
        side = 1 if s > 0 else -1
        different, branch = crossings(base, survey)
        if different or branch is not None:
            widest[side] = s if abs(s) > abs(widest.get(side, 0.0)) else widest[side]
        for k in different:
            wanted.setdefault(k, set()).add(side)
        if branch is not None:
            branches.setdefault(branch, set()).add(side)
    shown = sorted(wanted)[:LISTED]
    made = []
    if shown:
        looks = {0.0: Look(shown)}
        for s in widest.values():
            looks[s] = Look(shown)
        for s, look in looks.items():
            subject.values(moved(subject.point, direction, s), look)
        made = [_kink(base, k, wanted[k], looks) for k in shown]
    for k, sides in sorted(branches.items())[:1]:
        decided = [j for j in shown if j < k and base.names[j] == "_local_scalar_dense"]
        if not decided:
            place = min(k, len(base.names) - 1)
            made.append(
                Kink(base.names[place], base.sources[place], 1, 1, None, None, tuple(sorted(sides)), branch=True)
            )
    return sorted(made, key=lambda m: (m.reach is None, m.reach or 0.0))


def _kink(base: Survey, k: int, sides: set[int], looks: dict[float, Look]) -> Kink:
    """What the looks at one operator tell."""
    name, source = base.names[k], base.sources[k]
    at = looks[0.0].seen.get(k)
    if name == "_local_scalar_dense":
        return Kink("if / while", source, 1, 1, None, None, tuple(sorted(sides)), branch=True)
    changed: Tensor | None = None
    margin: float | None = None
    reach: float | None = None
    total = 1
    for s, look in looks.items():
        there = look.seen.get(k)
        if s == 0.0 or there is None or at is None:
            continue
        for j, (p, q) in enumerate(zip(at[0], there[0], strict=False)):
            if p.shape != q.shape:
                continue
            differs = p != q
            total = max(total, p.numel())
            changed = differs if changed is None or changed.shape != differs.shape else changed | differs
            if j < len(at[1]) and bool(differs.any()):
                m0, m1 = at[1][j][differs].double(), there[1][j][differs].double()
                ways = (s * m0 / (m0 - m1)).abs()
                margin = min(float(m0.abs().min()), margin if margin is not None else float("inf"))
                reach = min(float(ways.min()), reach if reach is not None else float("inf"))
            elif (
                not at[1]
                and p.dtype is torch.bool
                and at[2] is not None
                and at[2].shape == p.shape
                and bool(differs.any())
            ):
                values = at[2].detach()[differs].double()
                margin = float(values.max() - values.min())
                reach = 0.0 if margin == 0.0 else reach
    return Kink(
        name, source, int(changed.sum()) if changed is not None else 1, total, margin, reach, tuple(sorted(sides))
    )


def settle(subject: Subject, direction: list[Tensor], base: Survey, found: list[Kink], step: float) -> Settled | None:
    """A comparison that crosses no kink: a smaller step, one side, or another point; None if there is none."""
    reaches = [m.reach for m in found if m.reach is not None]
    nearest = min(reaches) if reaches else None
    smaller = [step / 30, step / 1000] if nearest is None else [0.4 * nearest]
    smaller = [h for h in smaller if h >= step * 1e-4]
    for h in smaller[:2]:
        made = central(subject, direction, h)
        if not crosses(base, made):
            return Settled(made, None, f"with a smaller step ({h:.1e})")
    sides = {side for m in found for side in m.sides}
    if len(sides) == 1 and all(m.reach != 0.0 for m in found):
        side = -next(iter(sides))
        made = one_sided(subject, direction, step, side)
        if not crosses(base, made):
            return Settled(made, None, f"from the {'right' if side > 0 else 'left'} side, which crosses nothing")
    for seed, (distance, h) in enumerate(((1e-3, step / 30), (1e-2, step / 30), (1e-2, step / 3000))):
        origin = beside(subject.point, distance, seed)
        survey = Survey()
        subject.values(origin, survey)
        made = central(subject, direction, h, origin=origin)
        if not crosses(survey, made):
            return Settled(made, origin, f"at a point moved by {distance:.0e} of the inputs' size")
    return None


def beside(point: list[Tensor], distance: float, seed: int) -> list[Tensor]:
    """A point near x, each entry moved by its own random part of `distance`."""
    generator = torch.Generator().manual_seed(1000 + seed)
    made = []
    for x in point:
        size = float(x.abs().max()) if x.numel() else 0.0
        kind = torch.float64 if not x.is_complex() else torch.complex128
        w = torch.empty(x.shape, dtype=torch.float64).uniform_(-1, 1, generator=generator).to(kind)
        made.append(x + (distance * (size or 1.0) * w).to(device=x.device, dtype=x.dtype))
    return made


def both_sides(subject: Subject, direction: list[Tensor], step: float) -> tuple[list[Tensor], list[Tensor]]:
    """The derivatives from the left and from the right, by differences of second order."""
    zero, _ = evaluate(subject, direction, 0.0, False)
    made = []
    for side in (-1, 1):
        one, _ = evaluate(subject, direction, side * step, False)
        two, _ = evaluate(subject, direction, 2 * side * step, False)
        made.append([side * (4 * a - b - 3 * z) / (2 * step) for a, b, z in zip(one, two, zero, strict=True)])
    return made[0], made[1]


__all__ = ["Kink", "Settled", "base_step", "both_sides", "crosses", "kinks", "settle"]
