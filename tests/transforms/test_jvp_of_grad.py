"""`jvp(grad(f))` records the payloads of dual numbers where it can, and gives the same where it cannot."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import pushforward as pf
from pushforward.forward import gradient

D = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


X, V, C = normal(4, 3), normal(4, 3, seed=1), normal(3, 3, seed=2)


@pytest.fixture
def tried(monkeypatch):
    """How often payloads were recorded, and how often that was given up."""
    counts = {"tried": 0, "given up": 0}
    work, give_up = gradient.gradient, gradient.give_up

    def counted(*args):
        counts["tried"] += 1
        return work(*args)

    def gave_up(func):
        counts["given up"] += 1
        give_up(func)

    monkeypatch.setattr(gradient, "gradient", counted)
    monkeypatch.setattr(gradient, "give_up", gave_up)
    return counts


def products(f, x=X, v=V):
    """Value, gradient and Hessian times v, by autograd."""
    z = x.detach().clone().requires_grad_()
    y = f(z)
    (g,) = torch.autograd.grad(y, z, create_graph=True)
    h = torch.autograd.grad((g * v).sum(), z)[0] if g.requires_grad else torch.zeros_like(z)
    return y.detach(), g.detach(), h


def twice_used(x):
    a = x.sin()
    return (a * a).sum() + (a @ C).exp().mean()


PLAIN = {
    "elementwise": lambda x: (x.sin() * x.exp()).sum(),
    "product": lambda x: (x @ C @ x.T).tanh().sum(),
    "twice used": twice_used,
    "softmax": lambda x: F.cross_entropy(x @ C, torch.tensor([0, 1, 2, 0])),
    "norm": lambda x: F.layer_norm(x @ C, (3,)).pow(3).sum(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None] @ C).sin().sum(),
    "convolution": lambda x: F.conv1d(x[None], C.view(1, 3, 3)[:, :1].expand(2, 4, 3)).sin().sum(),
    "index": lambda x: x[torch.tensor([0, 0, 3])].prod(0).sum() + x[1:, None, ..., 0].pow(2).sum(),
    "branch": lambda x: (x * x).sum() if x.sum() > 100 else x.pow(3).sum(),
    "choice": lambda x: torch.where(x > 0, x.exp(), x * x).sum(),
    "inverse": lambda x: torch.linalg.inv(x.T @ x + torch.eye(3, dtype=D)).sum(),
    "linear": lambda x: (x @ C).sum(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_records_payloads(name, tried):
    f = PLAIN[name]
    y, g, h = products(f)
    got, moved = pf.jvp(pf.grad(f), (X,), (V,))
    torch.testing.assert_close((got, moved), (g, h))
    assert not got.requires_grad
    assert not moved.requires_grad
    (gradient_, value), (d_gradient, d_value) = pf.jvp(pf.grad_and_value(f), (X,), (V,))
    torch.testing.assert_close((gradient_, value, d_gradient, d_value), (g, y, h, (g * V).sum()))
    assert tried["tried"] >= 2
    assert not tried["given up"]


def test_arguments_captured_values_and_results_beside(tried):
    def f(w, x):
        return ((x @ w["a"]).sin() * w["b"]).sum(), x * 2

    w, dw = {"a": C, "b": normal(3)}, {"a": normal(3, 3, seed=5), "b": normal(3, seed=6)}

    def whole(w, x):
        c = x.cos()  # a dual number that the function captures
        return pf.grad(lambda w, x: (f(w, x)[0] + (c * x).sum(), f(w, x)[1]), argnums=(0, 1), has_aux=True)(w, x)

    (g, aux), (dg, d_aux) = pf.jvp(whole, (w, X), (dw, V))
    flat = [w["a"], w["b"], X]

    def by_hand(*flat):
        z = [t.detach().requires_grad_() if not t.requires_grad else t for t in flat]
        y = f({"a": z[0], "b": z[1]}, z[2])[0] + (z[2].cos().detach() * z[2]).sum()
        return torch.autograd.grad(y, z, create_graph=True)

    step = 1e-6
    ahead = by_hand(*[t + step * d for t, d in zip(flat, (dw["a"], dw["b"], V), strict=True)])
    back = by_hand(*[t - step * d for t, d in zip(flat, (dw["a"], dw["b"], V), strict=True)])
    got = [g[0]["a"], g[0]["b"], g[1]]
    torch.testing.assert_close(got, [t.detach() for t in by_hand(*flat)])
    moved = [dg[0]["a"], dg[0]["b"], dg[1]]
    torch.testing.assert_close(
        moved, [((p - q) / (2 * step)).detach() for p, q in zip(ahead, back, strict=True)], rtol=1e-6, atol=1e-8
    )
    torch.testing.assert_close((aux, d_aux), (X * 2, V * 2))
    assert tried["tried"]


def test_deeper_nestings():
    f = PLAIN["twice used"]
    third = lambda x: pf.jvp(lambda x: pf.jvp(pf.grad(f), (x,), (V,))[1], (x,), (V,))[1]
    z = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(z), z, create_graph=True)
    (h,) = torch.autograd.grad((g * V).sum(), z, create_graph=True)
    (t,) = torch.autograd.grad((h * V).sum(), z)
    torch.testing.assert_close(third(X), t)
    torch.testing.assert_close(pf.grad(lambda x: (pf.jvp(pf.grad(f), (x,), (V,))[1] * V).sum())(X), t)
    torch.testing.assert_close(pf.jvp(pf.grad(lambda x: (pf.grad(f)(x) * V).sum()), (X,), (V,))[1], t)
    torch.testing.assert_close(pf.jvp(pf.grad(lambda x: pf.jvp(f, (x,), (V,))[1]), (X,), (V,))[1], t)
    rows = normal(2, 4, 3, seed=9)
    torch.testing.assert_close(
        pf.vmap(lambda v: pf.jvp(pf.grad(f), (X,), (v,))[1])(rows), torch.stack([products(f, v=v)[2] for v in rows])
    )


def test_what_outside_is_differentiated_by_stays_connected():
    w = C.clone().requires_grad_()
    f = lambda x: (x @ w).sin().sum()
    g, h = pf.jvp(pf.grad(f), (X,), (V,))
    (by_g,) = torch.autograd.grad(g.pow(2).sum(), w, retain_graph=True)
    (by_h,) = torch.autograd.grad(h.pow(2).sum(), w)
    a = C.clone().requires_grad_()
    z = X.clone().requires_grad_()
    (g2,) = torch.autograd.grad((z @ a).sin().sum(), z, create_graph=True)
    (h2,) = torch.autograd.grad((g2 * V).sum(), z, create_graph=True)
    torch.testing.assert_close(by_g, torch.autograd.grad(g2.pow(2).sum(), a, retain_graph=True)[0])
    torch.testing.assert_close(by_h, torch.autograd.grad(h2.pow(2).sum(), a)[0])
    with torch.no_grad():
        assert not pf.jvp(pf.grad(f), (X,), (V,))[1].requires_grad


class Fake(torch.autograd.Function):
    """A square whose backward says that it is a cube."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


def with_hook(x):
    y = x.sin()
    y.register_hook(lambda g: 2 * g)
    return (y * y).sum()


def with_gradient_inside(x):
    z = x.detach().requires_grad_()
    (g,) = torch.autograd.grad((z**3).sum(), z, create_graph=True)
    return (g * x).sum()


def with_writes(x):
    y = x * 1
    y[0] = x[1] * x[2]
    y.mul_(x)
    return y.sum()


def by_buffer(x):
    out = torch.zeros(4, 3, dtype=D)
    for k in range(4):
        out[k] = (x[k] * x[0]).sin()
    return out.sum()


LOOKING = {
    "hook": (with_hook, lambda x: 2 * (x.sin() * x.sin()).sum()),
    "writes": (with_writes, with_writes),
    "buffer": (by_buffer, by_buffer),
    "checkpoint": (
        lambda x: checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum(),
        lambda x: x.sin().exp().sum(),
    ),
    "backward of its own": (lambda x: Fake.apply(x).sum(), lambda x: (x**3).sum()),
}


@pytest.mark.parametrize("name", LOOKING)
def test_gives_up_where_the_graph_matters(name, tried):
    f, equivalent = LOOKING[name]
    _, g, h = products(equivalent)
    for _ in range(2):
        torch.testing.assert_close(pf.jvp(pf.grad(f), (X,), (V,)), (g, h))
    assert tried["given up"] == tried["tried"] == 1  # remembered


def test_draws_are_drawn_once():
    torch.manual_seed(3)
    mask = F.dropout(torch.ones(4, 3, dtype=D), 0.5)
    after = torch.rand(2)
    torch.manual_seed(3)
    g, h = pf.jvp(pf.grad(lambda x: (F.dropout(x, 0.5) ** 3).sum()), (X,), (V,))
    assert torch.equal(torch.rand(2), after)
    torch.testing.assert_close((g, h), (3 * X**2 * mask**3, 6 * X * V * mask**3))


def test_captured_counters_and_inputs_are_written_once():
    count, buffer = torch.zeros(()), X.clone()

    def f(x):
        count.add_(1)
        buffer.mul_(2)
        return (x**3).sum()

    torch.testing.assert_close(pf.jvp(pf.grad(f), (X,), (V,))[1], 6 * X * V)
    assert count.item() == 1
    assert torch.equal(buffer, 2 * X)


def test_kinks_and_branches_that_are_not_taken():
    zero = torch.zeros(3, dtype=D)
    one = torch.ones(3, dtype=D)
    for f in (
        lambda x: torch.where(x > 0, x.sqrt(), x).sum(),
        lambda x: torch.where(x > 0, x.log() * x, x * x).sum(),
        lambda x: x.norm() ** 2,
        lambda x: x.relu().sum() + x.abs().sum() + x.clamp(0, 1).sum(),
    ):
        code = f.__code__
        short = pf.jvp(pf.grad(f), (zero,), (one,))
        gradient._GIVEN_UP.add(code)
        try:
            long = pf.jvp(pf.grad(f), (zero,), (one,))
        finally:
            gradient._GIVEN_UP.discard(code)
        torch.testing.assert_close(short, long)
        assert all(t.isfinite().all() for t in short)


def test_statistics_that_autograd_takes_for_constants():
    """`native_layer_norm` gives a mean that has a tangent and no gradient; a gradient's derivative is that of the gradient."""
    f = lambda x: (
        (torch.native_layer_norm(x, (3,), None, None, 1e-5)[0] ** 3).sum()
        + (torch.native_layer_norm(x, (3,), None, None, 1e-5)[1] ** 2).sum()
    )
    only = lambda x: (torch.native_layer_norm(x, (3,), None, None, 1e-5)[0] ** 3).sum()
    _, g, h = products(only)
    torch.testing.assert_close(pf.jvp(pf.grad(f), (X,), (V,)), (g, h))
    moved = lambda x: pf.jvp(lambda x: torch.native_layer_norm(x, (3,), None, None, 1e-5)[2].sin().sum(), (x,), (V,))[1]
    step = 1e-6
    unit = torch.eye(12, dtype=D).view(12, 4, 3)
    want = torch.stack([(moved(X + step * e) - moved(X - step * e)) / (2 * step) for e in unit]).view(4, 3)
    torch.testing.assert_close(pf.grad(moved)(X), want, rtol=1e-6, atol=1e-8)
