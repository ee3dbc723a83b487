"""Embeddings with `max_norm`, which shortens rows in place; and other writes that autograd does not see."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

import pushforward as pf

D = torch.float64
PLACES = torch.tensor([[0, 1], [1, 2], [4, 4]])


@pytest.fixture(autouse=True)
def _nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        yield


def table(seed=0):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=D)


def looked_up(weight, places):
    return functional.embedding(places, weight, max_norm=1.0)


def loss(weight, places):
    return looked_up(weight * 1.0, places).square().sum()


def test_lanes_share_a_table_from_outside():
    ours, theirs = table(), table()
    got = pf.vmap(lambda k: looked_up(ours, k))(PLACES)
    torch.testing.assert_close(got, torch.stack([looked_up(theirs, k) for k in PLACES]))
    torch.testing.assert_close(ours, theirs)
    ours = table()
    torch.testing.assert_close(pf.vmap(pf.vmap(lambda k: looked_up(ours, k[None])))(PLACES)[:, :, 0], got)
    torch.testing.assert_close(ours, theirs)


def test_lanes_with_tables_of_their_own():
    tables = torch.stack([table(k) for k in range(3)])
    expected = torch.stack([looked_up(t.clone(), k) for t, k in zip(tables, PLACES, strict=True)])
    torch.testing.assert_close(pf.vmap(lambda t, k: looked_up(t.clone(), k))(tables, PLACES), expected)
    torch.testing.assert_close(pf.vmap(looked_up)(tables.clone(), PLACES), expected)


@pytest.mark.parametrize("bags", [False, True])
def test_derivatives_pass_as_in_reverse_mode(bags):
    look = functional.embedding_bag if bags else functional.embedding
    f = lambda w: look(PLACES, w * 1.0, max_norm=1.0)
    w, v = table().requires_grad_(), table(1)
    out = f(w)
    u = torch.randn(out.shape, dtype=D)
    gradient = torch.autograd.grad(out, w, u)[0]
    w = w.detach()
    value, tangent = pf.jvp(f, (w,), (v,))
    torch.testing.assert_close(value, out.detach())
    torch.testing.assert_close((tangent * u).sum(), (gradient * v).sum())
    torch.testing.assert_close(pf.vjp(f, w)[1](u)[0], gradient)


def test_a_gradient_for_each_lane():
    module = torch.nn.Embedding(5, 3, max_norm=1.0)
    f = lambda w, k: pf.functional_call(module, {"weight": w}, (k,)).square().sum()

    def gradient(w, k):
        w = w.clone().requires_grad_()
        return torch.autograd.grad(f(w, k), w)[0]

    expected = torch.stack([gradient(table(), k) for k in PLACES])
    shared = table()
    torch.testing.assert_close(pf.vmap(pf.grad(f), in_dims=(None, 0))(shared, PLACES), expected)
    assert (shared[:3].norm(dim=1) <= 1 + 1e-6).all()  # as in a loop, the shared rows are shorter from now on
    torch.testing.assert_close(pf.vmap(pf.grad(f))(torch.stack([table()] * 3), PLACES), expected)
    torch.testing.assert_close(pf.grad(lambda w: pf.vmap(lambda k: loss(w, k))(PLACES).sum())(table()), expected.sum(0))


@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_a_buffer_keeps_its_history_when_lanes_write_what_autograd_does_not_see(how):
    def f(x, factor):
        y = x * 2
        if how == "detach":
            y.detach().mul_(factor)
        else:
            with torch.no_grad():
                y.mul_(factor)
        return y.square().sum()

    x, factors = torch.arange(3.0, dtype=D), torch.tensor([2.0, 3.0], dtype=D)
    rows = []
    for factor in factors:
        leaf = x.clone().requires_grad_()
        rows.append(torch.autograd.grad(f(leaf, factor), leaf)[0])
    torch.testing.assert_close(pf.grad(lambda x: pf.vmap(lambda k: f(x, k))(factors).sum())(x), sum(rows))
    torch.testing.assert_close(pf.vmap(pf.grad(f), in_dims=(None, 0))(x, factors), torch.stack(rows))
