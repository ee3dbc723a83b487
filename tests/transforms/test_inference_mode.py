"""Under `torch.inference_mode` nothing is recorded, but derivatives are what they are."""

import pytest
import torch

import pushforward as pf

D = torch.float64


def f(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() + (x[:1] * x.sin()).sum()


CALLS = {
    "grad": pf.grad(f),
    "vjp": lambda x: pf.vjp(torch.sin, x)[1](torch.ones_like(x))[0],
    "vjp again": lambda x: pf.vjp(lambda y: pf.grad(f)(y), x)[1](x)[0],
    "jacrev": pf.jacrev(torch.sin),
    "hessian": pf.hessian(f),
    "forward over reverse": pf.jacfwd(pf.jacrev(f)),
    "reverse over forward": pf.jacrev(pf.jacfwd(f)),
    "mapped": lambda x: pf.vmap(pf.grad(f))(torch.stack([x, x + 1])),
    "mapped hessian": lambda x: pf.vmap(pf.hessian(f))(torch.stack([x, x + 1])),
    "of a map": pf.grad(lambda x: pf.vmap(lambda v: v**2 * x)(x).sum()),
    "forward": lambda x: pf.jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [3, 12])
def test_derivatives_are_those_outside(name: str, n: int) -> None:
    x = torch.randn(n, dtype=D)
    expected = CALLS[name](x)
    for _ in range(3):
        with torch.inference_mode():
            ours, made_inside = CALLS[name](x), CALLS[name](x.clone())
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(made_inside, expected)
    torch.testing.assert_close(CALLS[name](x), expected)


def test_nothing_is_recorded_for_outside() -> None:
    w = torch.randn(3, dtype=D, requires_grad=True)
    with torch.inference_mode():
        assert not pf.grad(lambda x: (w * x**2).sum())(torch.ones(3, dtype=D)).requires_grad
