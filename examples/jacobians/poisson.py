"""Newton's method for a nonlinear Poisson equation: −∇²u + u³ = g on the unit square, u = 0 on its border.

Five-point differences on N × N inner points. Each step solves J δ = −F with the sparse Jacobian; the error falls
quadratically.
Run: python -m examples.jacobians.poisson
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

import pushforward as pf

Tensor = torch.Tensor


def equations(n: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """F(u) for u of n² numbers, and the solution that g was made for, sin πx sin πy up to the differences."""
    h = 1 / (n + 1)
    s = torch.arange(1, n + 1, dtype=torch.float64) * h
    exact = torch.sin(math.pi * s)[:, None] * torch.sin(math.pi * s)[None]

    def operator(u: Tensor) -> Tensor:
        p = torch.nn.functional.pad(u, (1, 1, 1, 1))
        laplace = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u
        return -laplace / h**2 + u**3

    g = operator(exact)
    return lambda u: (operator(u.reshape(n, n)) - g).reshape(-1), exact.reshape(-1)


def newton(n: int, tolerance: float = 1e-8, most: int = 20) -> tuple[Tensor, list[float]]:
    """The solution, and the largest residual before each step."""
    from scipy.sparse.linalg import spsolve

    residual, _ = equations(n)
    u = torch.zeros(n * n, dtype=torch.float64)
    both = pf.value_and_jacobian(residual, sparsity="global")
    history = []
    for _ in range(most):
        value, jacobian = both(u)
        history.append(float(value.abs().max()))
        if history[-1] < tolerance:
            break
        step = spsolve(pf.to_scipy(jacobian).tocsc(), -value.numpy())
        u = u + torch.from_numpy(step)
    return u, history


if __name__ == "__main__":
    for k, size in enumerate(newton(100)[1]):
        print(f"step {k}: largest residual {size:.2e}")
