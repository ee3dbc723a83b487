"""Functions that the engine runs again, and hooks that pack saved tensors, under nested transforms."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pushforward as pf

D = torch.float64
LAYER = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Tanh()).double()


def again(body):
    return lambda x: checkpoint(body, x, use_reentrant=False)


def attended(x):
    q = x.view(1, 2, 2)
    return functional.scaled_dot_product_attention(q, q.sin(), q.cos()).view(4)


BODIES = {
    "elementwise": (again(lambda x: x.sin().exp()), lambda x: x.sin().exp()),
    "nested": (
        again(lambda x: again(lambda y: y.sin() * y)(x).exp()),
        lambda x: (x.sin() * x).exp(),
    ),
    "detached": (again(lambda x: (x.detach() * x).sin()), lambda x: (x.detach() * x).sin()),
    "norm": (again(LAYER), LAYER),
    "attention": (again(attended), attended),
    "weights": (again(lambda x: (LAYER[0].weight @ x).sin()), lambda x: (LAYER[0].weight @ x).sin()),
}


def hooked(body, pack):
    def call(x):
        with saved_tensors_hooks(pack, lambda packed: packed[0]):
            return body(x)

    return call


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


BODIES["packed"] = hooked(lambda x: x.sin().exp(), lambda t: (t.detach(),)), lambda x: x.sin().exp()
BODIES["packed by a function"] = hooked(lambda x: Sine.apply(x).exp(), lambda t: (t.detach(),)), lambda x: x.sin().exp()


def products(f, x, t):
    """Second derivatives along t by each order of nesting, and first ones by other ways."""

    def score(v):
        return (f(v) * torch.arange(1.0, 5.0, dtype=D)).sum()

    xs, ts = torch.stack([x, 2 * x]), torch.stack([t, t.cos()])

    def hvp(v, d):
        return pf.jvp(pf.grad(score), (v,), (d,))[1]

    def by_grads(v, d):
        return pf.grad(lambda w: (pf.grad(score)(w) * d).sum())(v)

    return [
        pf.linearize(f, x)[1](t),
        pf.jacrev(f)(x),
        hvp(x, t),
        pf.vmap(hvp)(xs, ts),
        pf.jvp(pf.vmap(pf.grad(score)), (xs,), (ts,))[1],
        by_grads(x, t),
        pf.vmap(by_grads)(xs, ts),
        pf.grad(lambda v: (pf.vmap(pf.grad(score))(v) * ts).sum())(xs),
        pf.hessian(score)(x),
        pf.vmap(pf.hessian(score))(xs),
    ]


@pytest.mark.parametrize("name", BODIES)
def test_as_if_it_were_not_there(name):
    generator = torch.Generator().manual_seed(0)
    x, t = torch.randn(2, 4, dtype=D, generator=generator)
    f, plain = BODIES[name]
    torch.testing.assert_close(products(f, x, t), products(plain, x, t), check_stride=False)


def test_it_is_still_run_again_under_vmap():
    runs = []

    def body(x):
        runs.append(1)
        return x.sin().exp()

    x = torch.randn(3, 4, dtype=D)
    pf.vmap(pf.grad(lambda r: again(body)(r).sum()))(x)
    assert len(runs) == 2
