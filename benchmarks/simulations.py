"""Simulations of 50 numbers in and 2000 out, as people write them: small operators, many of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .jacobian_workloads import normal

Tensor = torch.Tensor
STEPS = 40
RECURRENT = normal(50, 50)
WIDE = normal(2000, 50)


def ring(u: Tensor) -> Tensor:
    """50 cells in a ring: they diffuse and saturate; each of 40 steps is recorded."""
    seen = []
    for _ in range(STEPS):
        u = u + 0.1 * (torch.roll(u, 1) + torch.roll(u, -1) - 2 * u) + 0.05 * (u - u**3)
        seen.append(u)
    return torch.cat(seen)


def rod(u: Tensor) -> Tensor:
    """50 cells in a row with fixed ends, by slices."""
    seen = []
    for _ in range(STEPS):
        inner = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]) + 0.05 * torch.sin(u[1:-1])
        u = torch.cat([u[:1], inner, u[-1:]])
        seen.append(u)
    return torch.cat(seen)


def weather(x: Tensor) -> Tensor:
    """The model of Lorenz (1996) with 50 variables, by Runge and Kutta's method; 40 steps."""

    def rate(x: Tensor) -> Tensor:
        return (torch.roll(x, -1) - torch.roll(x, 2)) * torch.roll(x, 1) - x + 8.0

    h, seen = 0.01, []
    for _ in range(STEPS):
        k1 = rate(x)
        k2 = rate(x + h / 2 * k1)
        k3 = rate(x + h / 2 * k2)
        k4 = rate(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        seen.append(x)
    return torch.cat(seen)


def network(x: Tensor) -> Tensor:
    """A recurrent network of 50 units, driven by its input; 40 steps."""
    state, seen = x, []
    for _ in range(STEPS):
        state = torch.tanh(RECURRENT @ state + 0.1 * x)
        seen.append(state)
    return torch.cat(seen)


def epidemic(rates: Tensor) -> Tensor:
    """An epidemic of 500 days with a rate of infection for every ten of them; four numbers a day."""
    s, i, r = torch.tensor(0.99), torch.tensor(0.01), torch.tensor(0.0)
    seen = []
    for rate in rates.exp():
        for _ in range(10):
            infected, recovered = 0.1 * rate * s * i, 0.05 * i
            s, i, r = s - infected, i + infected - recovered, r + recovered
            seen += [s, i, r, infected]
    return torch.stack(seen)


def field(x: Tensor) -> Tensor:
    """50 sources in a field of 2000 cells, which diffuses for 40 steps."""
    u = torch.tanh(WIDE @ x)
    for _ in range(STEPS):
        u = u + 0.1 * (torch.roll(u, 1) + torch.roll(u, -1) - 2 * u) + 0.05 * (u - u**3)
    return u


SIMULATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "50 cells in a ring": ring,
    "50 cells in a row, by slices": rod,
    "Lorenz 1996, Runge-Kutta": weather,
    "a recurrent network": network,
    "an epidemic": epidemic,
    "a field of 2000 cells": field,
}
