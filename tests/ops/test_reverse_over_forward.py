"""Reverse mode over forward mode: what a tangent rule calls must have a derivative itself."""

import pytest
import torch
import torch.nn.functional as F

import pushforward as pf

ACTIVATIONS = [
    F.celu,
    F.elu,
    F.gelu,
    F.hardswish,
    F.hardsigmoid,
    F.hardtanh,
    F.leaky_relu,
    F.logsigmoid,
    F.mish,
    F.relu,
    F.relu6,
    F.selu,
    F.sigmoid,
    F.silu,
    F.softplus,
    F.softsign,
    F.tanh,
    F.tanhshrink,
    F.softshrink,
    F.hardshrink,
    torch.sinc,
    torch.logit,
]


@pytest.mark.parametrize("f", ACTIVATIONS, ids=lambda f: f.__name__)
def test_activations(f):
    x = torch.tensor([0.2, 0.7, 0.45, 0.9], dtype=torch.float64)
    v = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def slope(x):
        return pf.jvp(f, (x,), (v,))[1]

    got = pf.grad(lambda x: slope(x).sum())(x)
    h = 1e-6
    expected = (slope(x + h) - slope(x - h)) / (2 * h)  # element-wise, so one step for all
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
    batched = pf.vmap(pf.grad(lambda x, v: (pf.jvp(f, (x,), (v,))[1]).sum()))(x[:, None], v[:, None])
    torch.testing.assert_close(batched[:, 0], got)
    weight = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)  # captured: recorded below

    def total(weight):
        return pf.vmap(lambda x, v: pf.jvp(lambda y: f(y * weight), (x,), (v,))[1])(x / 1.5, v).sum()

    total(weight).backward()
    expected = (total(weight.detach() + h) - total(weight.detach() - h)) / (2 * h)
    torch.testing.assert_close(weight.grad, expected, rtol=1e-6, atol=1e-7)
