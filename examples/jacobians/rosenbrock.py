"""The Rosenbrock function of n = 10,000 variables: scipy's optimisers with our sparse Jacobian and Hessian.

    f(x) = Σ 100 (x[i+1] − x[i]²)² + (1 − x[i])²,    residuals r = (10 (x[i+1] − x[i]²), 1 − x[i]),    f = |r|²

The Hessian is tridiagonal: 3 products instead of 10,000. Run: python -m examples.jacobians.rosenbrock
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

import pushforward as pf

Tensor = torch.Tensor


def rosenbrock(x: Tensor) -> Tensor:
    """f(x), minimum 0 at ones."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def residuals(x: Tensor) -> Tensor:
    """2 (n − 1) numbers with the sum of squares f."""
    return torch.cat([10 * (x[1:] - x[:-1] ** 2), 1 - x[:-1]])


def minimise(n: int) -> Any:
    """By trust regions with exact Hessians."""
    from scipy.optimize import minimize

    gradient, hessian = pf.grad(rosenbrock), pf.hessian(rosenbrock, sparsity="global")
    as_tensor = lambda x: torch.from_numpy(np.ascontiguousarray(x))  # noqa: E731
    return minimize(
        lambda x: float(rosenbrock(as_tensor(x))),
        np.full(n, 0.8),
        jac=lambda x: gradient(as_tensor(x)).numpy(),
        hess=lambda x: pf.to_scipy(hessian(as_tensor(x))),
        method="trust-constr",
        options={"maxiter": 60, "gtol": 1e-6},
    )


def fit(n: int) -> Any:
    """As a nonlinear least-squares problem, the pattern known to scipy too."""
    from scipy.optimize import least_squares

    plan = pf.plan(residuals, torch.full((n,), 0.8, dtype=torch.float64), sparsity="global")
    assert plan.pattern is not None
    as_tensor = lambda x: torch.from_numpy(np.ascontiguousarray(x))  # noqa: E731
    return least_squares(
        lambda x: residuals(as_tensor(x)).numpy(),
        np.full(n, 0.8),
        jac=lambda x: pf.to_scipy(plan(as_tensor(x))),
        tr_solver="lsmr",
        x_scale=1.0,
    )


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    best = fit(size)
    print(f"least squares: {best.nfev} evaluations, {best.njev} Jacobians, |x − 1| at most {abs(best.x - 1).max():.1e}")
    found = minimise(size)
    print(f"minimise: {found.nit} steps, f = {found.fun:.1e}, |x − 1| at most {abs(found.x - 1).max():.1e}")
