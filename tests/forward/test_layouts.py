"""Tangents that lie in memory otherwise than their primals: what can be viewed of one can be of the other."""

from typing import Any

import pytest
import torch

import pushforward as pf

D = torch.float64
LAYOUTS: dict[str, Any] = {
    "rows": lambda t: t,
    "columns": lambda t: t.t().contiguous().t(),
    "strided": lambda t: t.repeat_interleave(2, 0)[::2],
    "wide": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "expanded": lambda t: t[:1].expand(t.shape),
}
FUNCTIONS: dict[str, Any] = {
    "all": lambda v: v.view(-1).sin(),
    "turned": lambda v: v.t().view(-1).sin(),
    "split": lambda v: v.view(v.shape[0], 2, 2).sum(1) ** 2,
    "written": lambda v: v.clone().mul_(v).sum(0),
}


def can(f: Any, x: torch.Tensor) -> bool:
    """Whether a function can view its argument as it wants to."""
    try:
        f(x)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("of_tangent", LAYOUTS)
@pytest.mark.parametrize("of_primal", LAYOUTS)
def test_any_layout_of_the_tangent(of_primal: str, of_tangent: str, name: str) -> None:
    f, x = FUNCTIONS[name], LAYOUTS[of_primal](torch.randn(3, 4, dtype=D))
    if not can(f, x):
        pytest.skip("the primal cannot be viewed so")
    t = LAYOUTS[of_tangent](torch.randn(3, 4, dtype=D))
    before = t.clone()
    J = pf.jacrev(f)(x)
    torch.testing.assert_close(pf.jvp(f, (x,), (t,))[1], (J * t).sum((-2, -1)))
    torch.testing.assert_close(t, before)
    torch.testing.assert_close(pf.jacfwd(f)(x), J)
    torch.testing.assert_close(pf.hessian(lambda v: f(v).sum())(x), pf.jacrev(pf.grad(lambda v: f(v).sum()))(x))


@pytest.mark.parametrize("n", [2, 5])
def test_a_tangent_that_lies_otherwise_on_the_way(n: int) -> None:
    weight, x, t = torch.randn(n, n, dtype=D), torch.randn(n, n, dtype=D), torch.randn(n, n, dtype=D)

    def f(v: torch.Tensor) -> torch.Tensor:
        y = torch.addcmul(weight.t(), v, v)
        flat = y.t().view(-1)
        flat.mul_(2)  # which is still a view of `y`
        return flat * y.reshape(-1)

    J = pf.jacrev(lambda v: (2 * (weight.t() + v * v)).t().reshape(-1) * (2 * (weight.t() + v * v)).reshape(-1))(x)
    for _ in range(4):
        torch.testing.assert_close(pf.jvp(f, (x,), (t,))[1], (J * t).sum((-2, -1)))
        torch.testing.assert_close(pf.jacfwd(f)(x), J)
