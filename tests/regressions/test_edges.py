"""Edges of calls: nothing to differentiate, values that all lanes must share, ranks that only the lanes would make right."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import pushforward as pf

D = torch.float64


@pytest.mark.parametrize("jacobian", [pf.jacfwd, pf.jacrev, pf.jacobian])
@pytest.mark.parametrize(("n", "m"), [(0, 0), (3, 0), (0, 2)])
def test_empty_jacobians(jacobian, n, m):
    def f(x):
        return x.sin()[:m] if m <= n else x.sum().expand(m)

    assert jacobian(f)(torch.ones(n, dtype=D)).shape == (m, n)


def test_an_empty_hessian():
    assert pf.hessian(lambda x: x.sin().sum())(torch.ones(0, dtype=D)).shape == (0, 0)


def test_outputs_without_lanes_that_all_share():
    x = torch.zeros(0, 3, dtype=D)
    constant, moved = torch.arange(2.0), pf.vmap(lambda r: (torch.arange(2.0), r.sum()), out_dims=(None, 0))(x)
    torch.testing.assert_close(moved[0], constant)
    assert moved[1].shape == (0,)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_what_differs_between_lanes_is_not_returned_for_one_of_them(chunk_size):
    x = torch.randn(3, 4, dtype=D)
    with pytest.raises(pf.ArgumentError, match="differs between lanes"):
        pf.vmap(lambda r: r, out_dims=None, chunk_size=chunk_size)(x)
    shared = pf.vmap(lambda r: (r, torch.ones(2)), out_dims=(0, None), chunk_size=chunk_size)(x)[1]
    torch.testing.assert_close(shared, torch.ones(2))


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: functional.layer_norm(x, (3, 4)), (3, 4)),
        (lambda x: functional.layer_norm(x, (3, 4), torch.ones(3, 4), torch.ones(3, 4)), (3, 4)),
        (lambda x: torch.mv(torch.ones(4, 4), x), (3, 4, 4)),
        (lambda x: torch.mv(x, torch.ones(4)), (3, 4)),
        (lambda x: torch.dot(torch.ones(4), x), (3, 4, 4)),
        (lambda x: torch.mm(torch.ones(2, 4), x), (3, 4)),
        (lambda x: torch.mm(x, x), (3, 2, 4, 4)),
        (lambda x: torch.bmm(x, x), (3, 4, 4)),
        (lambda x: torch.outer(x, x), (3, 4, 4)),
        (lambda x: torch.addmv(x, torch.ones(2, 4), torch.ones(4)), (3, 2, 2)),
        (lambda x: torch.lu_unpack(x, torch.ones(2, dtype=torch.int32)), (3, 2)),
        (lambda x: functional.pad(x, (1, 1, 1, 1)), (3, 4)),
        (lambda x: torch.constant_pad_nd(x, (1, 1, 1, 1)), (3, 4)),
        (lambda x: x.expand(-1, 4), (3, 4)),
        (lambda x: x.flip(1), (3, 4)),
        (lambda x: x.roll(1, 1), (3, 4)),
        (lambda x: x.rot90(), (3, 4)),
        (lambda x: x.tril(), (3, 4)),
        (lambda x: torch.cat([x, x], 1), (3, 4)),
        (lambda x: torch.stack([x, x], 2), (3, 4)),
        (lambda x: x.index_select(1, torch.tensor([0])), (3, 4)),
        (lambda x: x.gather(1, torch.tensor([0])), (3, 4)),
        (lambda x: x.scatter(1, torch.tensor([0]), 0.0), (3, 4)),
        (lambda x: x.squeeze(1), (3, 4)),
        (lambda x: x.unsqueeze(2), (3, 4)),
        (lambda x: x.unfold(1, 1, 1), (3, 4)),
        (lambda x: x.renorm(2, 1, 1.0), (3, 4)),
        (lambda x: x.sum(1), (3, 4)),
        (lambda x: x.cumsum(-2), (3, 4)),
        (lambda x: x.sort(1).values, (3, 4)),
        (lambda x: torch.fft.fft(x, dim=1), (3, 4)),
    ],
)
def test_lanes_do_not_lend_a_dimension(f, shape):
    x = torch.ones(shape)
    with pytest.raises((RuntimeError, IndexError)):
        f(x[0])
    with pytest.raises((RuntimeError, IndexError)):
        pf.vmap(f)(x)


def test_attention_with_fewer_heads_of_keys():
    q, k = torch.randn(3, 2, 2, 5, 4, dtype=D), torch.randn(3, 1, 2, 6, 4, dtype=D)
    f = functional.scaled_dot_product_attention
    want = torch.stack([f(a, b, b) for a, b in zip(q, k, strict=True)])
    torch.testing.assert_close(pf.vmap(lambda a, b: f(a, b, b))(q, k), want)


def test_results_of_a_jvp_can_be_written_with_values_of_the_lanes():
    x, ts = torch.randn(4, dtype=D), torch.randn(3, 4, dtype=D)

    def f(t):
        out, moved = pf.jvp(torch.sin, (x,), (t,))
        out.add_(t)
        moved[0] = 0
        return out, moved

    out, moved = pf.vmap(f)(ts)
    torch.testing.assert_close(out, x.sin() + ts)
    torch.testing.assert_close(moved[:, 1:], x.cos()[1:] * ts[:, 1:])
    assert not moved[:, 0].any()
