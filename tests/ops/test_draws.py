"""Draws that move with their parameters: forward mode is the transpose of torch's reverse mode, on the same draw."""

from __future__ import annotations

import warnings

import pytest
import torch

import pushforward as pf

D = torch.float64
DRAWS = {
    "gamma": lambda a: torch.distributions.Gamma(a, 2.0).rsample(),
    "beta": lambda a: torch.distributions.Beta(a, a + 1).rsample(),
    "dirichlet": lambda a: torch.distributions.Dirichlet(a).rsample(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_forward_mode_of_a_draw(name):
    def f(a):
        torch.manual_seed(0)
        return DRAWS[name](a)

    a, v, u = 0.5 + torch.rand(2, 3, dtype=D), torch.randn(2, 3, dtype=D), torch.randn(2, 3, dtype=D)
    leaf = a.clone().requires_grad_()
    out = f(leaf)
    gradient = torch.autograd.grad(out, leaf, u)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        value, tangent = pf.jvp(f, (a,), (v,))
    torch.testing.assert_close(value, out.detach())
    torch.testing.assert_close((tangent * u).sum(), (gradient * v).sum())
