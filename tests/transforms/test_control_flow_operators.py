"""`torch.cond`, `scan` and `while_loop` under every composition, against loops and central differences."""

import pytest
import torch

import pushforward as pf

D = torch.float64
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=D)
STEP = 1e-6


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))


def running(x):
    last, all_of_them = torch._higher_order_ops.scan(lambda carry, y: (carry * 0.5 + y * y, carry * y), torch.zeros((), dtype=D), x)
    return torch.cat([last[None], all_of_them])


def counted(x):
    return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin() + x), (torch.tensor(0), x))[1]


def until(x):
    return torch.while_loop(lambda x: x.sum() < 5, lambda x: (x.square() + 1,), (x,))[0]


FUNCTIONS = [branches, running, counted, until]
along = torch.tensor([1.0, -0.5, 2.0], dtype=D)


def slope(f):
    """The central difference along a direction."""
    ahead, back = f(X[0] + STEP * along), f(X[0] - STEP * along)
    return (ahead - back) / (2 * STEP)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_control_flow_operators(f):
    g = lambda x: f(x).square().sum()
    torch.testing.assert_close(pf.vmap(f)(X), torch.stack([f(x) for x in X]))
    torch.testing.assert_close(pf.jvp(f, (X[0],), (along,))[1], slope(f), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close((pf.grad(g)(X[0]) * along).sum(), slope(g), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pf.vmap(pf.grad(g))(X), torch.stack([pf.grad(g)(x) for x in X]))
    product = slope(pf.grad(g))
    for way in (
        lambda x: pf.jvp(pf.grad(g), (x,), (along,))[1],
        lambda x: pf.grad(lambda x: pf.jvp(g, (x,), (along,))[1])(x),
        lambda x: pf.grad(lambda x: (pf.grad(g)(x) * along).sum())(x),
    ):
        torch.testing.assert_close(way(X[0]), product, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(pf.vmap(way)(X), torch.stack([way(x) for x in X]))
