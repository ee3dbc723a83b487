"""`torch.autograd.Function` under every transform: the oracle is torch.autograd on the plain class, example by example."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pushforward as pf

D = torch.float64


def _value(x, w):
    return x.round() * w


def _backward(x, w, g):
    return g * x.cos() * w, g * x.round()  # not the derivative of the body: only the user's rule can give it


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, power):
        ctx.save_for_backward(x, w)
        ctx.power = power
        return _value(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        assert ctx.power == 2
        return *_backward(x, w, g), None


class NewStyle(torch.autograd.Function):
    @staticmethod
    def forward(x, w, power):
        return _value(x, w)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, ctx.power = inputs
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return *_backward(x, w, g), None


class WithJvp(NewStyle):
    @staticmethod
    def jvp(ctx, dx, dw, _):
        x, w = ctx.saved_tensors
        return dx * x.cos() * w + dw * x.round()


class WithVmap(NewStyle):
    calls = 0

    @staticmethod
    def vmap(info, in_dims, x, w, power):
        WithVmap.calls += 1
        assert info.batch_size == 4
        x = x if in_dims[0] is None else x.movedim(in_dims[0], 0)
        w = w if in_dims[1] is None else w.movedim(in_dims[1], 0)
        return WithVmap.apply(x, w, power), 0


class SavesOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, power):
        y = x.exp()
        ctx.save_for_backward(y, w)
        return y * w, y

    @staticmethod
    def backward(ctx, g, h):
        y, w = ctx.saved_tensors
        return g * y * w + h * y, g * y, None


CLASSES = [OldStyle, NewStyle, WithJvp, WithVmap, SavesOutput]


def call(cls, x, w):
    out = cls.apply(x, w, 2)
    return out[0].sin() + out[1] if isinstance(out, tuple) else out.sin()


def loss(cls):
    return lambda x, w: (call(cls, x, w) * torch.arange(1.0, x.numel() + 1, dtype=D).reshape(x.shape)).sum()


def reference_grad(f, x, w):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    return torch.autograd.grad(f(x, w), (x, w))


def reference_hvp(f, x, w, v):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    (g,) = torch.autograd.grad(f(x, w), x, create_graph=True)
    return torch.autograd.grad((g * v).sum(), (x, w))


def reference_jvp(cls, x, w, dx, dw):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = call(cls, x, w)
    u = torch.zeros_like(y, requires_grad=True)
    g = torch.autograd.grad(y, (x, w), u, create_graph=True)
    return torch.autograd.grad((g[0] * dx).sum() + (g[1] * dw).sum(), u)[0]


@pytest.fixture(name="data")
def _data():
    g = torch.Generator().manual_seed(0)
    make = lambda *s: torch.randn(*s, generator=g, dtype=D) * 1.5
    return make(4, 3), make(4, 3), make(4, 3), make(4, 3)


pytestmark = pytest.mark.filterwarnings("ignore::pushforward.SlowFallback")


@pytest.mark.parametrize("cls", CLASSES)
def test_value_and_per_sample_gradients(cls, data):
    x, w, _, _ = data
    torch.testing.assert_close(pf.vmap(lambda a, b: call(cls, a, b))(x, w), call(cls, x, w))
    got = pf.vmap(pf.grad(loss(cls), argnums=(0, 1)))(x, w)
    want = [torch.stack(c) for c in zip(*[reference_grad(loss(cls), a, b) for a, b in zip(x, w)])]
    torch.testing.assert_close(list(got), want)
    got = pf.vmap(pf.grad(loss(cls), argnums=(0, 1)), in_dims=(0, None))(x, w[0])
    want = [torch.stack(c) for c in zip(*[reference_grad(loss(cls), a, w[0]) for a in x])]
    torch.testing.assert_close(list(got), want)


@pytest.mark.parametrize("cls", CLASSES)
def test_gradient_through_vmap(cls, data):
    x, w, _, _ = data
    total = lambda a, b: pf.vmap(loss(cls), in_dims=(0, None))(a, b).sum()
    want = reference_grad(lambda a, b: sum(loss(cls)(r, b) for r in a), x, w[0])
    torch.testing.assert_close(pf.grad(total, argnums=(0, 1))(x, w[0]), want)
    a, b = x.clone().requires_grad_(), w[0].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(total(a, b), (a, b)), want)


@pytest.mark.parametrize("cls", CLASSES)
def test_forward_mode(cls, data):
    x, w, dx, dw = data
    out, tangent = pf.jvp(lambda a, b: call(cls, a, b), (x, w), (dx, dw))
    torch.testing.assert_close(out, call(cls, x, w))
    torch.testing.assert_close(tangent, reference_jvp(cls, x, w, dx, dw))
    got = pf.vmap(lambda a, b, c, d: pf.jvp(lambda p, q: call(cls, p, q), (a, b), (c, d))[1])(x, w, dx, dw)
    torch.testing.assert_close(got, reference_jvp(cls, x, w, dx, dw))
    got = pf.jvp(lambda a, b: pf.vmap(lambda p, q: call(cls, p, q))(a, b), (x, w), (dx, dw))[1]
    torch.testing.assert_close(got, reference_jvp(cls, x, w, dx, dw))


@pytest.mark.parametrize("cls", CLASSES)
def test_second_order(cls, data):
    x, w, dx, _ = data
    want = reference_hvp(loss(cls), x, w, dx)
    got = pf.jvp(lambda a: pf.grad(loss(cls))(a, w), (x,), (dx,))[1]
    torch.testing.assert_close(got, want[0])
    got = pf.grad(lambda a: (pf.grad(loss(cls))(a, w) * dx).sum())(x)
    torch.testing.assert_close(got, want[0])
    got = pf.grad(lambda a: pf.jvp(lambda p: loss(cls)(p, w), (a,), (dx,))[1])(x)
    torch.testing.assert_close(got, want[0])
    rows = [reference_hvp(loss(cls), a, b, c)[0] for a, b, c in zip(x, w, dx)]
    got = pf.vmap(lambda a, b, c: pf.jvp(lambda p: pf.grad(loss(cls))(p, b), (a,), (c,))[1])(x, w, dx)
    torch.testing.assert_close(got, torch.stack(rows))
    got = pf.grad(lambda b: (pf.vmap(pf.grad(loss(cls)), in_dims=(0, None))(x, b) * dx).sum())(w[0])
    torch.testing.assert_close(got, sum(reference_hvp(loss(cls), a, w[0], c)[1] for a, c in zip(x, dx)))
    got = pf.jvp(lambda a: pf.jvp(lambda p: loss(cls)(p, w), (a,), (dx,))[1], (x,), (dx,))[1]
    torch.testing.assert_close(got, (want[0] * dx).sum())


def test_own_vmap_is_called(data):
    x, w, _, _ = data
    before = WithVmap.calls
    pf.vmap(lambda a, b: WithVmap.apply(a, b, 2))(x, w)
    assert WithVmap.calls == before + 1


def test_checkpoint_of_both_kinds(data):
    x, w, dx, _ = data
    f = lambda a, b: (a * b).sin().sum()
    for reentrant in (False, True):
        g = lambda a, b, reentrant=reentrant: checkpoint(f, a, b, use_reentrant=reentrant)
        torch.testing.assert_close(pf.vmap(pf.grad(g))(x, w), w * (x * w).cos())
        torch.testing.assert_close(pf.jvp(lambda a, g=g: g(a, w), (x,), (dx,))[1], (w * (x * w).cos() * dx).sum())
