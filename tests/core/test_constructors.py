"""`torch.tensor(x)` of one tensor is a constant in every mode; of a list it is the stack of its values."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

X, V = torch.tensor([0.3, 0.7], dtype=torch.float64), torch.tensor([1.0, 0.5], dtype=torch.float64)
COPIES = {
    "tensor": lambda x: torch.tensor(x * 2),
    "tensor of a number": lambda x: torch.tensor((x * 2).sum()),
    "tensor with a dtype": lambda x: torch.tensor(x * 2, dtype=torch.float32).double(),
    "new_tensor": lambda x: x.new_tensor(x * 2),
    "new_tensor of a constant": lambda x: torch.ones(1, dtype=x.dtype).new_tensor(data=x * 2),
}
FIRST = {
    "grad": lambda f: pf.grad(f)(X) @ V,
    "jvp": lambda f: pf.jvp(f, (X,), (V,))[1],
    "linearize": lambda f: pf.linearize(f, X)[1](V),
    "vmap(grad)": lambda f: pf.vmap(pf.grad(f))(X.expand(3, 2))[1] @ V,
    "vmap(jvp)": lambda f: pf.vmap(lambda x: pf.jvp(f, (x,), (V,))[1])(X.expand(3, 2))[1],
    "jvp(vmap)": lambda f: pf.jvp(lambda x: pf.vmap(f)(x.expand(3, 2))[1], (X,), (V,))[1],
}


@pytest.mark.filterwarnings("ignore::pushforward.DerivativeLost", "ignore:To copy construct:UserWarning")
@pytest.mark.parametrize("way", FIRST)
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_a_constant_in_every_mode(name, way):
    f = lambda x: (COPIES[name](x) * x.sin()).sum()
    x = X.clone().requires_grad_()
    want = torch.autograd.grad(f(x), x)[0] @ V
    torch.testing.assert_close(FIRST[way](f), want)


@pytest.mark.filterwarnings("ignore::pushforward.DerivativeLost", "ignore:To copy construct:UserWarning")
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_a_constant_to_second_derivatives(name):
    f = lambda x: (COPIES[name](x) * x.sin()).sum()
    want = -(COPIES[name](X) * X.sin()) * V
    torch.testing.assert_close(pf.jvp(pf.grad(f), (X,), (V,))[1], want)
    torch.testing.assert_close(pf.grad(lambda x: pf.grad(f)(x) @ V)(X), want)


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: torch.tensor(x * 2),
        lambda x: x.new_tensor(x * 2),  # said once for each line
    ],
)
def test_that_a_tangent_ends_in_a_copy_is_said(copy):
    with pytest.warns(pf.DerivativeLost, match="copies the numbers of a differentiated value"):
        pf.jvp(copy, (X,), (V,))
    with pytest.raises(pf.DerivativeLostError):
        pf.jvp(copy, (X,), (V,), strict=True)
    with pytest.warns(UserWarning, match="To copy construct"):  # torch's own word, where no tangent is lost
        assert torch.equal(copy(X), X * 2)


def test_a_copy_shares_no_memory_and_may_be_a_variable():
    def f(x):
        y = torch.tensor(x)
        y += 1
        z = torch.tensor(x, requires_grad=True)
        (g,) = torch.autograd.grad((z**2).sum(), z)
        return x, y, g

    x, y, g = pf.vmap(f)(X.expand(3, 2))
    assert torch.equal(x, X.expand(3, 2))
    assert torch.equal(y, X.expand(3, 2) + 1)
    assert torch.equal(g, 2 * X.expand(3, 2))


def test_a_list_is_the_stack_of_its_values():
    f = lambda x: (torch.tensor([x[0] * 2, 1.0], dtype=x.dtype) * x).sum()
    want = torch.stack([4 * X[0], torch.ones((), dtype=X.dtype)]) @ V
    for way in FIRST.values():
        torch.testing.assert_close(way(f), want)


FACTORIES = {
    "zeros_like": lambda x, **k: torch.zeros_like(x, **k),
    "ones_like": lambda x, **k: torch.ones_like(x, **k),
    "full_like": lambda x, **k: torch.full_like(x, 2.0, **k),
    "rand_like": lambda x, **k: torch.rand_like(x, **k),
    "empty_like": lambda x, **k: torch.empty_like(x, **k),
    "new_zeros": lambda x, **k: x.new_zeros(x.shape, **k),
    "new_ones": lambda x, **k: x.new_ones(x.shape, **k),
    "new_full": lambda x, **k: x.new_full(x.shape, 1.5, **k),
    "new_empty": lambda x, **k: x.new_empty(x.shape, **k),
    "new_tensor": lambda x, **k: x.new_tensor([1.0, 2.0, 3.0], **k),
    "new_tensor of values": lambda x, **k: x.new_tensor([x[0], 2.0, 3.0], **k),
    "tensor": lambda x, **k: torch.tensor([x[0], 2.0, 3.0], **k),
    "zeros": lambda x, **k: torch.zeros(x.shape, **k),
    "arange": lambda x, **k: torch.arange(3.0, **k),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_what_is_made_to_require_grad_does_so_in_every_call(name):
    make = FACTORIES[name]

    def f(x):
        z = make(x, requires_grad=True)
        assert z.requires_grad
        (g,) = torch.autograd.grad((z * x * x).sum(), z, create_graph=True)
        w = make(x).detach().nan_to_num()
        assert not w.requires_grad
        return (g + 0 * w).sum()

    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for _ in range(6):
        torch.testing.assert_close(pf.vmap(f, randomness="same")(x), (x * x).sum(1))
        torch.testing.assert_close(pf.jvp(f, (x[0],), (x[1],))[0], torch.tensor(14.0))
        if "values" not in name:  # outside of vmap and jvp `new_tensor` is torch's, and reads them
            torch.testing.assert_close(pf.grad(f)(x[0]), 2 * x[0])
        torch.testing.assert_close(pf.vmap(pf.grad(f), randomness="same")(x), 2 * x)
        torch.testing.assert_close(pf.vmap(lambda x: pf.jvp(f, (x,), (x,))[1], randomness="same")(x), 2 * (x * x).sum(1))
