"""Forms of `torch.autograd.Function`: written inputs, one derivative only, odd things on the context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pushforward as pf

D = torch.float64


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class WrittenExp(Function):
    @staticmethod
    def forward(ctx, x, k):
        y = x.exp_()
        ctx.mark_dirty(y)
        ctx.save_for_backward(y)
        return y, y * k

    @staticmethod
    def backward(ctx, g, h):
        (y,) = ctx.saved_tensors
        return (g + 3 * h) * y, None


class Remembers(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.parts, ctx.box = [x.cos(), {"a": x}], SimpleNamespace(x=x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.parts[0] + 0 * (ctx.parts[1]["a"] - ctx.box.x)


class ByNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Product(Function):
    @staticmethod
    def forward(x, y):
        return x @ y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.mT, x.mT @ g

    @staticmethod
    def vmap(info, dims, x, y):
        x = x.expand(info.batch_size, *x.shape) if dims[0] is None else x.movedim(dims[0], 0)
        y = y.expand(info.batch_size, *y.shape) if dims[1] is None else y.movedim(dims[1], 0)
        return Product.apply(x, y), 0


def doubled(x):
    y = x.sin()
    z = Doubled.apply(y)
    return y * z + x


def doubled_view(x):
    y = x.sin()
    Doubled.apply(y[1:])
    return y * x


def written_exp(x):
    y = x * 2
    z, w = WrittenExp.apply(y, 3.0)
    return z * w + y


def plain_doubled(x):
    return 4 * x.sin() ** 2 + x


def plain_view(x):
    return x.sin() * x * torch.tensor([1.0, 2.0, 2.0, 2.0], dtype=D)


def plain_exp(x):
    y = (2 * x).exp()
    return 3 * y * y + y


PAIRS = {
    "written": (doubled, plain_doubled),
    "written view": (doubled_view, plain_view),
    "written and saved": (written_exp, plain_exp),
    "numpy": (lambda x: ByNumpy.apply(x) * x, lambda x: x**3),
    "fresh constant": (
        lambda x: Product.apply(x.view(2, 2), torch.arange(4.0, dtype=D).view(2, 2)).view(4),
        lambda x: (x.view(2, 2) @ torch.arange(4.0, dtype=D).view(2, 2)).view(4),
    ),
}
FIRST = {
    "remembers": (lambda x: Remembers.apply(x) * x, lambda x: x.sin() * x),
    "once": (lambda x: Once.apply(x) * x, lambda x: x.sin() * x),
}


def first_derivatives(f, x, t):
    xs, ts = torch.stack([x, 2 * x]), torch.stack([t, t.cos()])

    def score(v):
        return (f(v) * torch.arange(1.0, 5.0, dtype=D)).sum()

    return [
        f(x.clone()),
        pf.vmap(f)(xs.clone()),
        pf.jvp(f, (x,), (t,)),
        pf.vmap(lambda v, d: pf.jvp(f, (v,), (d,)))(xs, ts),
        pf.jvp(pf.vmap(f), (xs,), (ts,)),
        pf.grad(score)(x),
        pf.vmap(pf.grad(score))(xs),
        pf.grad(lambda v: pf.vmap(score)(v).sum())(xs),
        pf.jacfwd(f)(x),
        pf.jacrev(f)(x),
        pf.vmap(pf.jacfwd(f))(xs),
        pf.vmap(pf.jacrev(f))(xs),
    ]


def second_derivatives(f, x, t):
    xs, ts = torch.stack([x, 2 * x]), torch.stack([t, t.cos()])

    def score(v):
        return (f(v) * torch.arange(1.0, 5.0, dtype=D)).sum()

    def hvp(v, d):
        return pf.jvp(pf.grad(score), (v,), (d,))[1]

    def by_jvp(v, d):
        return pf.grad(lambda w: pf.jvp(score, (w,), (d,))[1])(v)

    return [
        hvp(x, t),
        pf.vmap(hvp)(xs, ts),
        pf.jvp(pf.vmap(pf.grad(score)), (xs,), (ts,))[1],
        by_jvp(x, t),
        pf.vmap(by_jvp)(xs, ts),
        pf.grad(lambda v: (pf.vmap(pf.grad(score))(v) * ts).sum())(xs),
        pf.jvp(lambda v: pf.jvp(score, (v,), (t,))[1], (x,), (t,))[1],
        pf.hessian(score)(x),
        pf.vmap(pf.hessian(score))(xs),
    ]


def point():
    return torch.randn(2, 4, dtype=D, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:slow fallback")
@pytest.mark.parametrize("name", [*PAIRS, *FIRST])
def test_first_derivatives(name):
    f, plain = {**PAIRS, **FIRST}[name]
    torch.testing.assert_close(first_derivatives(f, *point()), first_derivatives(plain, *point()), check_stride=False)


@pytest.mark.filterwarnings("ignore:slow fallback")
@pytest.mark.parametrize("name", PAIRS)
def test_second_derivatives(name):
    f, plain = PAIRS[name]
    torch.testing.assert_close(second_derivatives(f, *point()), second_derivatives(plain, *point()), check_stride=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x, t: pf.grad(lambda v: (pf.grad(f)(v) * t).sum())(x),
        lambda f, x, t: pf.grad(lambda v: pf.jvp(f, (v,), (t,))[1])(x),
        lambda f, x, t: pf.vmap(pf.grad(lambda v: (pf.grad(f)(v) * t).sum()))(torch.stack([x, t])),
        lambda f, x, t: pf.hessian(f)(x),
    ],
)
def test_a_second_derivative_of_what_has_one_only_is_an_error(call):
    with pytest.raises(pf.NotDifferentiableError, match=r"Once.*once_differentiable"):
        call(lambda v: (Once.apply(v) * v).sum(), *point())


def test_one_derivative_beside_a_captured_tensor_that_requires_grad():
    x, t = point()
    w = torch.randn(4, dtype=D, requires_grad=True)
    out, moved = pf.jvp(lambda v: Once.apply(v) * w, (x,), (t,))
    torch.testing.assert_close(moved, x.cos() * t * w)
    torch.testing.assert_close(torch.autograd.grad(moved.sum(), w)[0], x.cos() * t)
    assert out.requires_grad
