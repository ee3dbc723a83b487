"""The 2-D Brusselator, a stiff reaction-diffusion system, integrated by scipy with our sparse Jacobian.

    du/dt = 1 + u² v − 4.4 u + α ∇²u + f(x, y, t)        dv/dt = 3.4 u − u² v + α ∇²v

on the unit square, periodic, α = 0.1 (Hairer, Wanner: Solving Ordinary Differential Equations II, 1996, p. 152, without
the forcing). With N × N cells there are 2 N² unknowns, 20,000 for N = 100; each depends on six.
Run: python -m examples.jacobians.brusselator
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pushforward as pf

Tensor = torch.Tensor
ALPHA = 0.1


def right_hand_side(cells: int) -> Callable[[Tensor], Tensor]:
    """dy/dt for y of 2 · cells² numbers: all u, then all v."""
    scale = ALPHA * (cells - 1) ** 2

    def laplace(a: Tensor) -> Tensor:
        return torch.roll(a, 1, 0) + torch.roll(a, -1, 0) + torch.roll(a, 1, 1) + torch.roll(a, -1, 1) - 4 * a

    def f(y: Tensor) -> Tensor:
        u, v = y.reshape(2, cells, cells)
        reaction = u * u * v
        du = 1 + reaction - 4.4 * u + scale * laplace(u)
        dv = 3.4 * u - reaction + scale * laplace(v)
        return torch.stack([du, dv]).reshape(-1)

    return f


def start(cells: int) -> Tensor:
    """u = 22 y (1 − y)^1.5, v = 27 x (1 − x)^1.5."""
    s = torch.linspace(0, 1, cells, dtype=torch.float64)
    u = (22 * s * (1 - s) ** 1.5).expand(cells, cells).T
    v = (27 * s * (1 - s) ** 1.5).expand(cells, cells)
    return torch.stack([u, v]).reshape(-1)


def integrate(cells: int, until: float) -> tuple[Any, pf.JacobianPlan]:
    """The solution by implicit BDF steps, and the plan of the Jacobian."""
    from scipy.integrate import solve_ivp

    f, y0 = right_hand_side(cells), start(cells)
    plan = pf.plan(f, y0, sparsity="global")
    solution = solve_ivp(
        lambda _, y: f(torch.from_numpy(y)).numpy(),
        (0.0, until),
        y0.numpy(),
        method="BDF",
        jac=lambda _, y: pf.to_scipy(plan(torch.from_numpy(np.ascontiguousarray(y)))),
        rtol=1e-4,
        atol=1e-6,
    )
    return solution, plan


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    begun = time.perf_counter()
    solved, made = integrate(size, 0.1)
    seconds = time.perf_counter() - begun
    made.explain()
    print(f"{solved.nfev} evaluations, {solved.njev} Jacobians, {solved.nlu} factorisations in {seconds:.1f} s")
