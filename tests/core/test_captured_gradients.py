"""`.backward()` inside of a transform, on what depends on tensors from outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pushforward as pf

D = torch.float64
X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=D)
TRANSFORMS = {
    "vmap": lambda f: pf.vmap(f)(X),
    "jvp": lambda f: pf.jvp(f, (X[0],), (X[1],)),
    "vmap(grad)": lambda f: pf.vmap(pf.grad(f))(X),
    "grad(vmap)": lambda f: pf.grad(lambda x: pf.vmap(f)(x).sum())(X),
    "vmap(jvp)": lambda f: pf.vmap(lambda x: pf.jvp(f, (x,), (x,))[1])(X),
}


@pytest.mark.parametrize("had", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_differs_between_lanes_is_refused_and_leaves_nothing(transform, had):
    net = nn.Linear(2, 1, dtype=D)
    before = torch.ones_like(net.weight) if had else None
    net.weight.grad = before

    def f(x):
        net(x * x).sum().backward()
        return x.sum()

    for _ in range(4):
        with pytest.raises(pf.CapturedWriteError, match=r"gradient of `net\.weight`.*torch\.autograd\.grad"):
            TRANSFORMS[transform](f)
        assert net.weight.grad is before
        assert net.bias.grad is None
        if had:
            assert torch.equal(before, torch.ones_like(before))


@pytest.mark.parametrize("had", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_is_one_for_all_is_added_as_a_write_is(transform, had):
    p = nn.Parameter(torch.ones(2, dtype=D))

    def f(x):
        (p * p).sum().backward()
        return (x * x).sum()

    TRANSFORMS[transform](f)
    p.grad = torch.ones(2, dtype=D) if had else None
    TRANSFORMS[transform](f)
    assert type(p.grad) is torch.Tensor
    torch.testing.assert_close(p.grad, torch.full((2,), 2.0 + had, dtype=D))


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph:UserWarning")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_tensors_made_inside_have_gradients_of_their_own(transform):
    def f(x):
        w = torch.ones(2, dtype=D, requires_grad=True)
        for _ in range(2):
            (w * x * x).sum().backward(create_graph=True)
        grad, w.grad = w.grad, None
        return (grad * x).sum()

    expected = lambda x: (2 * x**3).sum()
    for _ in range(4):
        torch.testing.assert_close(TRANSFORMS[transform](f), TRANSFORMS[transform](expected))


def test_only_what_is_asked_for_is_looked_at():
    p, q = (nn.Parameter(torch.ones(2, dtype=D)) for _ in range(2))

    def f(x):
        y = x.clone().requires_grad_()
        (p * y * q).sum().backward(inputs=[y])
        return y.grad

    torch.testing.assert_close(pf.vmap(f)(X), torch.ones_like(X))
    assert p.grad is None
    assert q.grad is None
