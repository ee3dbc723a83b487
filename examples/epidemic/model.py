"""The SIR model of an epidemic, integrated by the classical Runge-Kutta method of order 4.

    dS/dt = -βSI/N        dI/dt = βSI/N - γI

S boys can still be infected, I lie in bed, N = 763 in all. β is infections per sick boy and day at the start, γ the
rate of recovery per day, R0 = β/γ the boys whom the first one infects.

    W. O. Kermack, A. G. McKendrick: A contribution to the mathematical theory of epidemics. Proc. R. Soc. A 115 (1927).
"""

from __future__ import annotations

import torch
from torch import Tensor

BOYS = 763.0
FIRST_DAY, LAST_DAY = 1.0, 14.0
STEPS_PER_DAY = 10
TIMES = torch.linspace(FIRST_DAY, LAST_DAY, 5000, dtype=torch.float64)


def boys_in_bed(beta: Tensor, gamma: Tensor, cases: Tensor, start: float, times: Tensor) -> Tensor:
    """Boys in bed at `times` [m] (days, from `start` to the last day), with `cases` of them in bed on day `start`.

    The model is integrated on a grid of ten steps a day; one more step, of its own length for each time and all of
    them at once, leads from the grid to the times asked for. So 5,000 times cost hardly more than 14.
    """
    # With the state (S, I) as y, the model has the form of Lotka and Volterra: dy/dt = y * (c + y A).
    zero = torch.zeros_like(beta)
    growth = torch.stack([zero, -gamma])
    mixing = torch.stack([zero, beta / BOYS, -beta / BOYS, zero]).reshape(2, 2)
    length = 1.0 / STEPS_PER_DAY
    state = torch.stack([BOYS - cases, cases]).reshape(1, 2)
    grid = [state]
    for _ in range(round((LAST_DAY - start) * STEPS_PER_DAY)):
        state = runge_kutta(state, length, growth, mixing)
        grid.append(state)
    since_start = times - start
    # Rounding must not place a time that lies on the grid one point too early.
    behind = torch.floor(since_start * STEPS_PER_DAY + 1e-9)
    states = torch.cat(grid)[behind.long()]
    rest = (since_start - behind * length)[:, None]
    return runge_kutta(states, rest, growth, mixing)[:, 1]


def runge_kutta(state: Tensor, length: Tensor | float, growth: Tensor, mixing: Tensor) -> Tensor:
    """One step of `length` days (a number, or one for each state [k, 1]) from the states [k, 2]."""

    def rate(at: Tensor) -> Tensor:
        return at * torch.addmm(growth, at, mixing)

    first = rate(state)
    second = rate(state + length / 2 * first)
    third = rate(state + length / 2 * second)
    fourth = rate(state + length * third)
    return state + length / 6 * (first + 2 * (second + third) + fourth)


def infected(beta: Tensor, gamma: Tensor, first_cases: Tensor) -> Tensor:
    """Boys in bed at 5,000 times from day 1 to day 14, with `first_cases` of them in bed on day 1."""
    return boys_in_bed(beta, gamma, first_cases, FIRST_DAY, TIMES)


def example_inputs() -> dict[str, float]:
    """Near the values that fit the counts best; `python -m examples.epidemic` finds them."""
    return {"beta": 1.788, "gamma": 0.456, "first_cases": 2.09}


def example_labels() -> dict[str, object]:
    """Names and units of the report and the picture."""
    return {
        "title": "Influenza in a boarding school, 1978",
        "output": "boys in bed",
        "output_unit": "boys",
        "along": TIMES,
        "along_name": "day",
        "input_units": {"beta": "1/day", "gamma": "1/day", "first_cases": "boy"},
    }
