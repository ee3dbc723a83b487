"""Least squares by Gauss-Newton with Levenberg's damping, on Jacobians in forward mode.

The step d solves (JᵀJ + λ diag JᵀJ) d = -Jᵀr; λ falls when the step lowers |r|² and grows until one does.

    D. W. Marquardt: An algorithm for least-squares estimation of nonlinear parameters. J. SIAM 11 (1963).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import pushforward as pf
from examples.epidemic.model import FIRST_DAY, boys_in_bed

COUNTS = Path(__file__).with_name("boarding_school_1978.csv")


@dataclass(frozen=True)
class Setting:
    """What is known of the start of the epidemic; unknown cases are a third parameter."""

    name: str
    start: float
    cases: float | None
    guess: tuple[float, ...]


SETTINGS = (
    Setting("one case the day before the first count", FIRST_DAY - 1, 1.0, (1.0, 0.2)),
    Setting("3 cases on day 1, as counted", FIRST_DAY, 3.0, (1.0, 0.2)),
    Setting("cases on day 1 unknown", FIRST_DAY, None, (1.0, 0.2, 1.0)),
)


@dataclass(frozen=True)
class Iteration:
    """A point of the way: parameters [p], half the sum of squares, damping."""

    parameters: Tensor
    misfit: float
    damping: float


@dataclass(frozen=True)
class Fit:
    """The optimum: parameters [p], their covariance [p, p], the curve at the days of the counts, the way there."""

    setting: Setting
    parameters: Tensor
    covariance: Tensor
    curve: Tensor
    path: list[Iteration]

    @property
    def reproduction(self) -> tuple[float, float]:
        """R0 = β/γ and its standard error, by the derivative of the quotient."""
        slope = pf.grad(lambda p: p[0] / p[1])(self.parameters)
        return (self.parameters[0] / self.parameters[1]).item(), (slope @ self.covariance @ slope).sqrt().item()


def read_counts() -> tuple[Tensor, Tensor]:
    """Days and boys in bed, each [14]."""
    with COUNTS.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    days, counts = ([float(row[name]) for row in rows] for name in ("day", "in_bed"))
    return torch.tensor(days, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)


def gauss_newton(residuals: Callable[[Tensor], Tensor], guess: Sequence[float]) -> tuple[Tensor, list[Iteration]]:
    """Minimise |residuals(p)|² from `guess` [p]; gives the optimum and the way there.

    Raises:
        ArithmeticError: no damping lowers the sum of squares, or a hundred steps did not reach the optimum.
    """
    point = torch.tensor(guess, dtype=torch.float64)
    jacobian_of = pf.jacfwd(residuals)
    value = residuals(point)
    misfit = (value @ value / 2).item()
    damping = 1e-2
    path = [Iteration(point, misfit, damping)]
    for _ in range(100):
        jacobian = jacobian_of(point)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ value
        while True:
            change = torch.linalg.solve(normal + damping * torch.diag(normal.diagonal()), -slope)
            value = residuals(point + change)
            lower = (value @ value / 2).item()
            # At the optimum rounding decides which is lower; a step of no length ends the search.
            arrived = (change.abs() <= 1e-6 * point.abs()).all()
            if lower < misfit or arrived:
                break
            damping *= 5
            if damping > 1e12:
                raise ArithmeticError(f"no step from {point.tolist()} lowers the sum of squares")
        point, misfit, damping = point + change, lower, damping / 10
        path.append(Iteration(point, misfit, damping))
        if arrived:
            return point, path
    raise ArithmeticError(f"no optimum after 100 steps, at {point.tolist()}")


def fit(setting: Setting) -> Fit:
    """Fit β, γ and, where they are unknown, the cases on the first day."""
    days, counts = read_counts()

    def curve(parameters: Tensor) -> Tensor:
        cases = parameters[2] if setting.cases is None else torch.tensor(setting.cases, dtype=torch.float64)
        return boys_in_bed(parameters[0], parameters[1], cases, setting.start, days)

    point, path = gauss_newton(lambda parameters: curve(parameters) - counts, setting.guess)
    jacobian = pf.jacfwd(curve)(point)
    best = curve(point)
    variance = ((best - counts) ** 2).sum() / (len(counts) - len(point))
    return Fit(setting, point, variance * torch.linalg.inv(jacobian.T @ jacobian), best, path)
