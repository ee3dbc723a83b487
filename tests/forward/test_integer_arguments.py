"""Integer tensors among the arguments of element-wise operators: the derivative has the precision of the result."""

import pytest
import torch

import pushforward as pf

D = torch.float64
CALLS = {
    "div": (torch.true_divide, lambda v, n: 1 / n),
    "div of the other": (lambda v, n: torch.true_divide(n, v), lambda v, n: -n / v**2),
    "pow": (torch.pow, lambda v, n: n * v ** (n - 1)),
    "atan2": (torch.atan2, lambda v, n: n / (n**2 + v**2)),
    "xlogy": (torch.xlogy, lambda v, n: n.log()),
    "addcdiv": (lambda v, n: torch.addcdiv(v, v, n), lambda v, n: 1 + 1 / n),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dim", [0, 1])
def test_derivatives_are_not_rounded(name: str, dim: int) -> None:
    f, slope = CALLS[name]
    x, n = torch.rand(4, dtype=D) + 0.5, torch.tensor([3, 7, 11, 13])
    n = n if dim else n[0]
    expected = slope(x, n.double()).expand(4)
    for g in (f, lambda v, n: f(v.clone(), n)):
        torch.testing.assert_close(pf.jvp(lambda v: g(v, n), (x,), (torch.ones_like(x),))[1], expected, rtol=1e-14, atol=0)
        mapped = pf.vmap(lambda v: pf.jvp(lambda u: g(u, n), (v,), (torch.ones_like(v),))[1])(x.expand(2, 4))
        torch.testing.assert_close(mapped[1], expected, rtol=1e-14, atol=0)
