"""A run that is given up, because the function looks at its graph, leaves no trace in memory from outside."""

from __future__ import annotations

import warnings

import pytest
import torch

import pushforward as pf

D = torch.float64
W = torch.randn(4, 4, dtype=D, generator=torch.Generator().manual_seed(1)).requires_grad_()


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def points():
    return torch.randn(2, 3, 4, dtype=D, generator=torch.Generator().manual_seed(0))


TRANSFORMS = {
    "vmap": lambda f, x, t: pf.vmap(f)(x),
    "jvp": lambda f, x, t: pf.jvp(f, (x[0],), (t[0],)),
    "vmap(jvp)": lambda f, x, t: pf.vmap(lambda a, b: pf.jvp(f, (a,), (b,)))(x, t),
    "vmap(grad)": lambda f, x, t: pf.vmap(pf.grad(lambda a: f(a).sum()))(x),
    "jvp(grad)": lambda f, x, t: pf.jvp(pf.grad(lambda a: f(a).sum()), (x[0],), (t[0],)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_counter_counts_one_run(name):
    calls = torch.zeros(())

    def f(x):
        calls.add_(1)
        y = Sine.apply((W @ x).sin())
        if y.requires_grad:
            assert y.grad_fn is not None
        return y

    def plain(x):
        return (W @ x).sin().sin()

    x, t = points()
    torch.testing.assert_close(TRANSFORMS[name](f, x, t), TRANSFORMS[name](plain, x, t))
    assert calls.item() == 1


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)])
@pytest.mark.parametrize("name", ["vmap", "jvp", "vmap(jvp)"])
def test_inputs_are_written_once(name, part):
    def f(x):
        x[part].mul_(2)
        y = W @ x
        if y.requires_grad:
            y.register_hook(lambda g: g)
        return y

    def plain(x):
        x = x.clone()
        x[part] *= 2
        return W @ x

    x, t = points()
    given = x.clone()
    torch.testing.assert_close(TRANSFORMS[name](f, given, t), TRANSFORMS[name](plain, x, t))
    wanted = x.clone()
    wanted[:, part] *= 2
    torch.testing.assert_close(given[0], wanted[0])


@pytest.mark.parametrize("views", [False, True])
def test_a_buffer_of_the_function_around_is_written_once(views):
    def around(x):
        total, seen = torch.zeros(4, dtype=D), torch.zeros(2, 4, dtype=D)
        row = seen[1]

        def score(z):
            total.add_(1)
            if views:
                row.add_(x)
                seen[0, 0] += x[1]
            return Sine.apply(z).sum()

        return pf.grad(score)(x), total, seen, row

    x = points()[0]
    gradient, total, seen, row = pf.vmap(around)(x)
    torch.testing.assert_close(gradient, x.cos())
    torch.testing.assert_close(total, torch.ones(3, 4, dtype=D))
    want = torch.zeros(3, 2, 4, dtype=D)
    if views:
        want[:, 1], want[:, 0, 0] = x, x[:, 1]
    torch.testing.assert_close(seen, want)
    torch.testing.assert_close(row, want[:, 1])


def test_a_buffer_is_written_once_where_lanes_leave():
    def around(x):
        seen = torch.zeros(4, dtype=D) + x

        def score(z):
            seen.add_(1)
            if z.sum() > 0:
                z = 2 * z
            seen.mul_(2)
            return Sine.apply(z).sum()

        return pf.grad(score)(x), seen

    x = points()[0]
    gradient, seen = pf.vmap(around)(x)
    scale = torch.where(x.sum(1) > 0, 2.0, 1.0)[:, None]
    torch.testing.assert_close(gradient, scale * (scale * x).cos())
    torch.testing.assert_close(seen, 2 * (x + 1))


def test_nobody_listens_to_warnings_after_an_error():
    def fails(x):
        if x.sum() > 0:
            x = 2 * x
        raise ValueError

    shown = warnings.showwarning
    with pytest.raises(ValueError):
        pf.vmap(fails)(points()[0])
    assert warnings.showwarning is shown
