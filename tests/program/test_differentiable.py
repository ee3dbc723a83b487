"""Results of compiled functions are differentiated by autograd and by the transforms, to any order."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

X = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3)


def graph(function, **kwargs):
    return pf.compile(function, backend="graph", **kwargs)


def test_by_arguments_and_captured_tensors():
    weight = torch.linspace(0.5, 1.5, 3, dtype=torch.float64).requires_grad_()
    x = X.clone().requires_grad_()
    function = pf.vmap(pf.grad(lambda x: torch.tanh(x * weight).sum()))
    compiled = graph(function)
    for _ in range(2):
        ours = torch.autograd.grad(compiled(x).square().sum(), [x, weight])
        expected = torch.autograd.grad(function(x).square().sum(), [x, weight])
        torch.testing.assert_close(ours, expected)
    assert len(compiled.programs) == 1


def test_second_and_third_order():
    x = X[0].clone().requires_grad_()
    function = lambda x: (torch.sin(x) * x).prod()
    compiled = graph(function)

    def third(f):
        (a,) = torch.autograd.grad(f(x), x, create_graph=True)
        (b,) = torch.autograd.grad(a.square().sum(), x, create_graph=True)
        return torch.autograd.grad(b.square().sum(), x)[0]

    torch.testing.assert_close(third(compiled), third(function))
    assert torch.autograd.gradcheck(compiled, (x,))
    assert torch.autograd.gradgradcheck(compiled, (x,))


def test_the_users_detach_is_kept():
    x = X[0].clone().requires_grad_()
    function = lambda x: (x.detach() * x.exp()).sum()
    compiled = graph(function)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(function(x), x))
    torch.testing.assert_close(pf.grad(compiled)(X[0]), pf.grad(function)(X[0]))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_a_custom_backward_is_kept():
    x = X[0].clone().requires_grad_()
    compiled = graph(lambda x: Doubled.apply(x) * 3)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full_like(x, 6.0))


def test_only_some_inputs_require_grad():
    a, b = X[0].clone().requires_grad_(), X[1].clone()
    compiled = graph(lambda a, b: (a * b, b.sin(), (a > 0)))
    out, _, sign = compiled(a, b)
    assert out.requires_grad
    assert not sign.requires_grad
    torch.testing.assert_close(torch.autograd.grad(out.sum(), a)[0], b)
    b.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(a, b)[0].sum(), [a, b]), (b.detach(), a.detach()))
    assert len(compiled.programs) == 2


def test_parameters_gather_grad():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    penalty = lambda x: pf.vmap(pf.jacrev(model))(x).square().sum() + model(x).square().sum()
    compiled = graph(penalty)
    compiled(X).backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    penalty(X).backward()
    for a, p in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_a_write_between_call_and_backward_is_an_error():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    compiled = graph(lambda x: (x * weight.sin()).sum())
    out = compiled(X)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_rebinding_between_call_and_first_backward_is_an_error():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    compiled = graph(lambda x: (x * weight.sin()).sum())
    out = compiled(X)
    weight = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    with pytest.raises(pf.TransformError, match="rebound"):
        out.backward()
    compiled(X).backward()
    torch.testing.assert_close(weight.grad, X.sum(0) * weight.detach().cos())


def test_with_branches():
    def function(x):
        return (x.sin() if x.sum() > 0 else x.exp()).sum()

    compiled = graph(function)
    for x in (X[3], X[0], X[3]):
        a = x.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(compiled(a), a), torch.autograd.grad(function(a), a))


def test_with_symbolic_sizes():
    function = pf.vmap(lambda x: (x.sin() * x).sum())
    compiled = graph(function, dynamic=True)
    for n in (3, 5, 4):
        a = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(torch.autograd.grad(compiled(a).sum(), a), torch.autograd.grad(function(a).sum(), a))
    assert len(compiled.programs) == 1


@pytest.mark.parametrize("outer", [pf.grad, pf.hessian, pf.jacfwd, pf.jacrev, lambda f: pf.vmap(pf.grad(f), 0)])
def test_by_transforms(outer):
    function = lambda x: (torch.sin(x) * x).sum()
    compiled = graph(function)
    x = X if outer.__name__ == "<lambda>" else X[0]
    torch.testing.assert_close(outer(compiled)(x), outer(function)(x))


def test_noncontiguous_cotangents():
    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    compiled = graph(lambda a: a.sin() * 2)
    cotangent = torch.randn(4, 3, dtype=torch.float64).t()
    torch.testing.assert_close(torch.autograd.grad(compiled(a), a, cotangent)[0], 2 * a.detach().cos() * cotangent)
