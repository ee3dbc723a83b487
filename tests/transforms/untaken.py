"""The oracle for branches that are not taken: the point is kept out of them (the "double where"), and torch runs it alone."""

from __future__ import annotations

import math

import torch

import pushforward as pf

D = torch.float64
INF, NAN = math.inf, math.nan


def safe_where(c, a, b, *operands, good=1.5):
    """`where(c, a(x…), b(x…))`, each branch only evaluated where it is taken."""
    inside = [torch.where(c, x, torch.full_like(x, good)) for x in operands]
    outside = [torch.where(c, torch.full_like(x, good), x) for x in operands]
    return torch.where(c, a(*inside), b(*outside))


def plain_where(c, a, b, *operands, good=None):
    return torch.where(c, a(*operands), b(*operands))


def masked(c, a, b, *operands, good=None):
    del b
    return a(*operands).masked_fill(~c, 0)


def written(c, a, b, *operands, good=None):
    del b
    out = a(*operands).clone()
    out[~c] = 0
    return out


def nothing(*x):
    return torch.zeros_like(x[0])


def gradient(f, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, create_graph=True)[0].detach()


def hessian(f, x):
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
    if not g.requires_grad:
        return torch.zeros(x.numel(), x.numel(), dtype=D)
    rows = [torch.autograd.grad(e, leaf, retain_graph=True, allow_unused=True)[0] for e in g.reshape(-1)]
    return torch.stack([torch.zeros_like(x) if r is None else r for r in rows]).reshape(x.numel(), x.numel())


def check_all(f, first, second, x):
    """Every way to a first and a second derivative of a scalar function."""
    assert torch.isfinite(first).all()
    assert torch.isfinite(second).all()
    close = torch.testing.assert_close
    v = torch.linspace(-1, 2, x.numel(), dtype=D).reshape(x.shape)
    rows = torch.stack([x, x.flip(0), x])
    product = (second @ v.reshape(-1)).reshape(x.shape)
    shape = (*x.shape, *x.shape)
    close(pf.grad(f)(x), first)
    close(pf.vjp(f, x)[1](torch.tensor(2.0, dtype=D))[0], 2 * first)
    close(pf.jacrev(f)(x), first)
    close(pf.jacrev(lambda x: torch.stack([f(x), 2 * f(x)]))(x), torch.stack([first, 2 * first]))
    close(pf.vmap(pf.grad(f))(rows)[::2], torch.stack([first, first]))
    close(pf.vmap(lambda v: pf.vjp(f, x)[1](v)[0])(torch.ones(2, dtype=D)), torch.stack([first, first]))
    close(pf.vjp(pf.linearize(f, x)[1], v)[1](torch.tensor(1.0, dtype=D))[0].detach(), first)
    close(pf.jvp(pf.grad(f), (x,), (v,))[1], product)
    close(pf.hvp(f, x, v)[1], product)
    close(pf.grad(lambda x: (pf.grad(f)(x) * v).sum())(x), product)
    close(pf.grad(lambda x: pf.jvp(f, (x,), (v,))[1])(x), product)
    close(pf.hessian(f)(x), second.reshape(shape))
    close(pf.jacrev(pf.jacrev(f))(x), second.reshape(shape))
    close(pf.jacrev(pf.jacfwd(f))(x), second.reshape(shape))
    close(pf.vmap(pf.hessian(f))(rows)[::2], second.reshape(shape).expand(2, *shape))
    close(pf.jvp(lambda x: pf.vjp(f, x)[1](torch.tensor(1.0, dtype=D))[0], (x,), (v,))[1], product)
