"""Weights that all lanes share: per-sample gradients in the short way equal the loop, to second order."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pushforward as pf

D = torch.float64


def data(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


FUNCTIONS = {
    "linear": (lambda w, x: F.linear(x, w).sin().sum(), (2, 3), (3,)),
    "linear of rows": (lambda w, x: (F.linear(x, w) ** 3).sum(), (2, 3), (4, 3)),
    "linear of a stack": (lambda w, x: (F.linear(x, w) ** 3).sum(), (2, 3), (2, 4, 3)),
    "matrix and vector": (lambda w, x: (w @ x).sin().sum(), (2, 3), (3,)),
    "two matrices": (lambda w, x: (w @ x @ x.T).sin().sum(), (2, 3), (3, 4)),
    "weight twice": (lambda w, x: (w @ x).sin().sum() + (w**2).sum(), (2, 3), (3,)),
    "weight alone": (lambda w, x: (w**3).sum() + 0 * x.sum(), (2, 3), (3,)),
    "convolution": (lambda w, x: (F.conv2d(x, w, padding=1) ** 2).sum(), (2, 3, 3, 3), (1, 3, 4, 5)),
    "transposed": (lambda w, x: (F.conv_transpose1d(x, w, stride=2) ** 2).sum(), (3, 2, 3), (2, 3, 4)),
    "groups": (lambda w, x: (F.conv1d(x, w, groups=3, stride=2) ** 2).sum(), (6, 1, 3), (2, 3, 7)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_shared_weights(name):
    f, w_shape, x_shape = FUNCTIONS[name]
    w, x, v = data(*w_shape), data(3, *x_shape, seed=1), data(*w_shape, seed=2)

    def reference(r):
        a = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(a, r), a, create_graph=True)
        return g.detach(), torch.autograd.grad(g, a, v)[0]

    grads, products = (torch.stack(c) for c in zip(*[reference(r) for r in x]))
    torch.testing.assert_close(pf.vmap(pf.grad(f), in_dims=(None, 0))(w, x), grads)
    twice = lambda a, r: pf.grad(lambda b: (pf.grad(f)(b, r) * v).sum())(a)
    torch.testing.assert_close(pf.vmap(twice, in_dims=(None, 0))(w, x), products)
    forward = lambda a, r: pf.jvp(lambda b: pf.grad(f)(b, r), (a,), (v,))[1]
    torch.testing.assert_close(pf.vmap(forward, in_dims=(None, 0))(w, x), products)
    through = w.clone().requires_grad_()
    per_sample = pf.vmap(pf.grad(f), in_dims=(None, 0))(through, x)
    torch.testing.assert_close(torch.autograd.grad((per_sample * v).sum(), through)[0], products.sum(0))


def test_per_sample_gradients_of_a_module_match_the_loop():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.GroupNorm(1, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3, 4),
        nn.Tanh(),
        nn.Linear(4, 5),
    ).double()
    params = {k: p.detach() for k, p in net.named_parameters()}
    x, y = data(6, 2, 4, 4, seed=3), torch.arange(6) % 5
    loss = lambda p, a, b: F.cross_entropy(pf.functional_call(net, p, (a[None],)), b[None])
    got = pf.vmap(pf.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for k in params:
        rows = []
        for a, b in zip(x, y):
            net.zero_grad()
            F.cross_entropy(net(a[None]), b[None]).backward()
            rows.append(net.get_parameter(k).grad.clone())
        torch.testing.assert_close(got[k], torch.stack(rows))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = pf.vmap(pf.grad(loss), in_dims=(None, 0, 0))({k: p.float() for k, p in params.items()}, x.float(), y)
    torch.testing.assert_close(low["5.weight"].double(), got["5.weight"], atol=3e-2, rtol=0.2)
