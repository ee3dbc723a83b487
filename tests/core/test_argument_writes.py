"""Functions that write into their arguments: the caller's tensor changes as by a plain call, or the write is refused."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

D = torch.float64
V = torch.tensor([1.0, -0.5, 2.0], dtype=D)


def start():
    return torch.tensor([1.0, 2.0, 3.0], dtype=D)


def scaled(x):
    x.mul_(2)
    return (x * x).sum()


def put(x):
    x[0] = 0.5
    return (x**3).sum()


def by_view(x):
    y = x.view(-1)[1:]
    y += x[:1]
    return (x**3).sum()


def augmented(x):
    x += x * 2
    return (x * x).sum()


FUNCTIONS = (scaled, put, by_view, augmented)


def gradient(f):
    """The gradient at `start()`, by torch.autograd on a copy."""
    leaf = start().requires_grad_()
    return torch.autograd.grad(f(leaf.clone()), leaf)[0]


def left(f):
    """What a plain call leaves in its argument."""
    x = start()
    f(x)
    return x


@pytest.mark.parametrize("f", FUNCTIONS)
def test_forward_mode_writes_as_a_plain_call_does(f):
    x, v = start(), V.clone()
    out, tangent = pf.jvp(f, (x,), (v,))
    torch.testing.assert_close((out, tangent), (f(start()), gradient(f) @ V))
    assert torch.equal(x, left(f))
    assert torch.equal(v, V)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_lanes_write_as_a_loop_does(f):
    x = start().expand(3, 3).clone()
    torch.testing.assert_close(pf.vmap(f)(x), f(start()).expand(3))
    assert torch.equal(x, left(f).expand(3, 3))


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_gradients_of_lanes(f, lanes):
    x = start().expand(lanes, 3).clone()
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), gradient(f).expand(lanes, 3))
    torch.testing.assert_close(x, left(f).expand(lanes, 3))


def test_gradients_of_lanes_inside_of_another_differentiation():
    x = start().expand(2, 3).clone().requires_grad_()
    y = x * 1
    pf.vmap(pf.grad(scaled))(y).sum().backward()
    torch.testing.assert_close(y.detach(), left(scaled).expand(2, 3))
    torch.testing.assert_close(x.grad, torch.full((2, 3), 8.0, dtype=D))


def test_tangents_of_lanes():
    x = start().expand(3, 3).clone()
    got = pf.vmap(lambda x: pf.jvp(by_view, (x,), (V,))[1])(x)
    torch.testing.assert_close(got, (gradient(by_view) @ V).expand(3))
    assert torch.equal(x, left(by_view).expand(3, 3))


REVERSE = {
    "grad": lambda f, x: pf.grad(f)(x),
    "grad_and_value": lambda f, x: pf.grad_and_value(f)(x),
    "vjp": lambda f, x: pf.vjp(f, x),
    "jacrev": lambda f, x: pf.jacrev(f)(x),
    "linearize": lambda f, x: pf.linearize(f, x),
    "hessian": lambda f, x: pf.hessian(f)(x),
    "grad(grad)": lambda f, x: pf.grad(lambda x: pf.grad(f)(x).sum())(x),
    "jvp(grad)": lambda f, x: pf.jvp(pf.grad(f), (x,), (V,)),
    "grad(jvp)": lambda f, x: pf.grad(lambda x: pf.jvp(f, (x,), (V,))[1])(x),
    "grad(vmap)": lambda f, x: pf.grad(lambda x: pf.vmap(f)(x[None]).sum())(x),
}


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("way", REVERSE)
def test_reverse_mode_refuses_and_leaves_the_argument_alone(f, way):
    x = start()
    with pytest.raises(pf.ArgumentWriteError, match=r"\.py:\d+ into a tensor that a derivative is taken by"):
        REVERSE[way](f, x)
    assert torch.equal(x, start())
    assert not x.requires_grad


@pytest.mark.parametrize("f", FUNCTIONS)
def test_the_way_out(f):
    copied = lambda x: f(x.clone())
    x = start()
    torch.testing.assert_close(pf.grad(copied)(x), gradient(f))
    torch.testing.assert_close(pf.jvp(pf.grad(copied), (x,), (V,))[1], pf.jacrev(pf.grad(copied))(x) @ V)
    assert torch.equal(x, start())
