"""First and second derivatives of a scalar function by every composition, against references of one order less.

The reference of the first order is a central difference of the function, that of the second order a central
difference of torch.autograd's first gradient.
"""

from __future__ import annotations

import torch

import pushforward as pf

STEP = 1e-5


def inner(a, b):
    """The real inner product."""
    return torch.real((a.conj() * b).sum())


def gradient(f, x):
    """torch.autograd's gradient."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def direction(x, seed):
    """A fixed direction like `x`."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def weighted(t):
    """A smooth scalar of every real number in `t`."""
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    k = torch.arange(t.numel(), dtype=t.dtype).reshape(t.shape)
    return (t * torch.cos(k + 1)).sum() + 0.3 * (t * t * torch.sin(k)).sum()


def check_orders(f, x, tolerance=2e-5):
    """Value under vmap, first and second derivatives of `f` at `x`."""
    v, u = direction(x, 1), direction(x, 2)
    first = (f(x + STEP * v) - f(x - STEP * v)) / (2 * STEP)
    second = (gradient(f, x + STEP * v) - gradient(f, x - STEP * v)) / (2 * STEP)
    stacked = torch.stack([x, x])

    def push(z, d=v):
        return pf.jvp(f, (z,), (d,))[1]

    got = {
        "jvp": (push(x), first),
        "grad": (inner(pf.grad(f)(x), v), first),
        "forward over reverse": (pf.jvp(pf.grad(f), (x,), (v,))[1], second),
        "reverse over forward": (pf.grad(push)(x), second),
        "reverse over reverse": (pf.grad(lambda z: inner(pf.grad(f)(z), v))(x), second),
        "forward over forward": (pf.jvp(push, (x,), (u,))[1], inner(second, u)),
        "vmap": (pf.vmap(f)(stacked), torch.stack([f(x)] * 2)),
        "vmap of grad": (pf.vmap(pf.grad(f))(stacked), torch.stack([gradient(f, x)] * 2)),
        "vmap of forward over reverse": (
            pf.vmap(lambda z: pf.jvp(pf.grad(f), (z,), (v,))[1])(stacked),
            torch.stack([second] * 2),
        ),
        "basis of forward over reverse": (
            pf.vmap(lambda d: pf.jvp(pf.grad(f), (x,), (d,))[1])(torch.stack([v, v])),
            torch.stack([second] * 2),
        ),
        "reverse over vmap of forward": (
            pf.grad(lambda z: pf.vmap(push)(z).sum())(stacked),
            torch.stack([second] * 2),
        ),
    }
    wrong = {}
    for name, (value, expected) in got.items():
        error = (value - expected).abs().max() / (1 + expected.abs().max())
        if not error < tolerance:
            wrong[name] = float(error)
    assert not wrong, wrong


def check_third(f, x, tolerance=1e-4):
    """The third derivative of `f` at `x` along one direction, by every composition that ends in a number."""
    v = direction(x, 1)

    def push(z):
        return pf.jvp(f, (z,), (v,))[1]

    def twice(z):
        return pf.jvp(push, (z,), (v,))[1]

    def pull(z):
        return inner(pf.grad(f)(z), v)

    def pull_twice(z):
        return inner(pf.grad(pull)(z), v)

    expected = (twice(x + STEP * v) - twice(x - STEP * v)) / (2 * STEP)
    got = {
        "forward, three times": pf.jvp(twice, (x,), (v,))[1],
        "reverse over forward over forward": inner(pf.grad(twice)(x), v),
        "forward over forward over reverse": pf.jvp(lambda z: pf.jvp(pull, (z,), (v,))[1], (x,), (v,))[1],
        "forward over reverse over reverse": pf.jvp(pull_twice, (x,), (v,))[1],
        "reverse, three times": inner(pf.grad(pull_twice)(x), v),
    }
    wrong = {n: float(g) for n, g in got.items() if not (g - expected).abs() < tolerance * (1 + expected.abs())}
    assert not wrong, (wrong, float(expected))
