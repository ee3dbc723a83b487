"""The examples, at sizes for a test, against differences, closed forms and known solutions."""

import time

import numpy as np
import pytest
import torch

import pushforward as pf
from examples.jacobians import brusselator, bundle, poisson, rosenbrock

pytest.importorskip("scipy")
pytestmark = pytest.mark.filterwarnings("ignore")
D = torch.float64


def difference(f, x, v, h=1e-6):
    return (f(x + h * v) - f(x - h * v)) / (2 * h)


def test_brusselator_of_20000_unknowns():
    f, y = brusselator.right_hand_side(100), brusselator.start(100)
    begun = time.process_time()
    plan = pf.plan(f, y, sparsity="global")
    jacobian = plan(y)
    assert time.process_time() - begun < 3.0
    assert (plan.n, plan.m, plan.nnz) == (20000, 20000, 120000)
    assert plan.colours <= 12
    for seed in range(3):
        v = torch.randn(20000, dtype=D, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(jacobian @ v, difference(f, y, v), rtol=1e-6, atol=1e-4)
    # Entry by entry: central differences along each colour see every place once.
    colours = torch.from_numpy(plan.colouring.columns if plan.colouring.forward else plan.colouring.rows)
    if plan.colouring.forward:
        got = jacobian.to_sparse_coo().coalesce()
        rows, cols = got.indices()
        for c in range(plan.colouring.forward):
            column = difference(f, y, (colours == c).to(D))
            mine = colours[cols] == c
            torch.testing.assert_close(got.values()[mine], column[rows[mine]], rtol=1e-6, atol=1e-4)


def test_brusselator_integrates():
    solution, _ = brusselator.integrate(16, 0.5)
    assert solution.success
    assert solution.njev >= 1
    from scipy.integrate import solve_ivp

    f = brusselator.right_hand_side(16)
    y0 = brusselator.start(16).numpy()
    other = solve_ivp(lambda t, y: f(torch.from_numpy(y)).numpy(), (0, 0.5), y0, method="RK45", rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(solution.y[:, -1], other.y[:, -1], rtol=2e-3, atol=2e-3)


def test_bundle_adjustment_has_twelve_places_in_a_row():
    scene, cameras, points = bundle.example()
    f = lambda c, p: bundle.residuals(scene, c, p)
    plan = pf.plan(f, cameras, points, argnums=(0, 1), sparsity="global")
    assert set(plan.pattern.row_counts) == {12}
    assert plan.colours == 12
    got = plan(cameras, points)
    want = torch.func.jacrev(f, (0, 1))(cameras, points)
    for s, w in zip(got, want, strict=True):
        torch.testing.assert_close(s.to_dense().reshape(w.shape), w)


def test_newton_solves_the_nonlinear_poisson_equation():
    solution, history = poisson.newton(24)
    _, exact = poisson.equations(24)
    torch.testing.assert_close(solution, exact, rtol=1e-7, atol=1e-8)
    assert len(history) <= 7
    assert history[-1] < 1e-8
    assert history[-2] / history[-3] < 1e-2  # quadratic


def test_rosenbrock_of_10000_variables_by_least_squares():
    result = rosenbrock.fit(10_000)
    assert result.success
    np.testing.assert_allclose(result.x, 1, atol=1e-6)
    assert result.njev < 30


def test_rosenbrock_by_exact_hessians():
    result = rosenbrock.minimise(500)
    np.testing.assert_allclose(result.x, 1, atol=1e-4)
    x = torch.randn(10_000, dtype=D)
    h = pf.hessian(rosenbrock.rosenbrock, sparsity="global")(x)
    assert h.values().numel() == 29_998
    v = torch.randn(10_000, dtype=D)
    torch.testing.assert_close(h @ v, pf.hvp(rosenbrock.rosenbrock, (x,), (v,))[1])
