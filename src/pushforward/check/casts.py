"""Integer casts: a staircase has derivative zero, and what the cast rounds away is lost.

The derivative of `x.long()` is zero on each step, by differences and by every mode, so nothing disagrees. What tells
a lost derivative from a harmless index is the next step of the staircase: there the output jumps.
"""

from __future__ import annotations

import torch

from .differences import evaluate
from .report import Finding
from .subject import Subject, moved, real_vector
from .survey import Look, Survey

Tensor = torch.Tensor
EXAMINED = 3


def lost_in_casts(
    subject: Subject, direction: list[Tensor], base: Survey, tangent: list[Tensor] | None, step: float
) -> list[Finding]:
    """A finding for each cast at whose next step the output jumps: four evaluations for one cast."""
    wanted = base.casts[:EXAMINED]
    if not wanted:
        return []
    here, there = Look(wanted), Look(wanted)
    subject.values(subject.point, here)
    subject.values(moved(subject.point, direction, step), there)
    found = []
    for k in wanted:
        if k not in here.seen or k not in there.seen:
            continue
        u, later = here.seen[k][2], there.seen[k][2]
        if u is None or later is None or u.shape != later.shape:
            continue
        reach = next_step(u.double(), (later.double() - u.double()) / step)
        if reach is None:
            continue
        small = max(1e-4 * reach, 1e-3 * step)
        above, _ = evaluate(subject, direction, reach + small, False)
        below, _ = evaluate(subject, direction, reach - small, False)
        for j, (a, b) in enumerate(zip(above, below, strict=True)):
            slope = real_vector(tangent[j]) if tangent is not None else torch.zeros_like(a)
            jump = (a - b - 2 * small * slope).abs()
            size = max(float(a.abs().max()), 1e-300) if a.numel() else 1.0
            jumps = jump > 1e-9 * size + 10 * small * slope.abs()
            if bool(jumps.any()) and float(jump.max()) > 1e-7 * size:
                whole = bool((slope[jumps] == 0).any())
                found.append(
                    Finding(
                        "lost-derivative",
                        "_to_copy",
                        base.sources[k],
                        ("forward", "reverse"),
                        f"the cast to an integer type at {base.sources[k]} is a staircase: its derivative is zero, "
                        "and the output jumps by "
                        f"{float(jump.max()):.2e} where the next whole number is reached. Keep the value in floating "
                        "point, or use a straight-through estimator.",
                        wrong=whole,
                    )
                )
                break
    return found


def next_step(u: Tensor, rate: Tensor) -> float | None:
    """The smallest step along the direction at which the whole part of an element changes."""
    up = u.floor() + 1
    up = torch.where(up == 0, torch.ones_like(up), up)
    down = u.ceil() - 1
    down = torch.where(down == 0, -torch.ones_like(down), down)
    target = torch.where(rate > 0, up, down)
    moving = rate != 0
    if not bool(moving.any()):
        return None
    reach = ((target - u)[moving] / rate[moving]).abs()
    reach = reach[torch.isfinite(reach)]
    return float(reach.min()) if reach.numel() else None
