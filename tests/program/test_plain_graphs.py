"""Below every transform, and every nesting of them, `make_fx` sees plain ATen operators on plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import pushforward as pf

x, t = torch.linspace(-1, 1, 3), torch.tensor([1.0, -2.0, 0.5])
X = torch.linspace(-2, 2, 12).reshape(4, 3)


def scalar(x):
    return (torch.sin(x) * x).sum() + x.prod()


def vector(x):
    return torch.tanh(x) * x.sum()


def both(pair):
    out, function = pair
    return out, function(t)


NESTINGS = {
    "vmap": (pf.vmap(vector), X),
    "jvp": (lambda x: pf.jvp(vector, (x,), (t,)), x),
    "vjp": (lambda x: both(pf.vjp(vector, x)), x),
    "grad": (pf.grad(scalar), x),
    "linearize": (lambda x: both(pf.linearize(vector, x)), x),
    "jacfwd": (pf.jacfwd(vector), x),
    "jacrev": (pf.jacrev(vector), x),
    "hessian": (pf.hessian(scalar), x),
    "hvp": (lambda x: pf.hvp(scalar, (x,), (t,)), x),
    "vmap(grad)": (pf.vmap(pf.grad(scalar)), X),
    "vmap(jvp)": (lambda X: pf.vmap(lambda v: pf.jvp(vector, (x,), (v,))[1])(X), X),
    "vmap(vmap)": (lambda X: pf.vmap(lambda a: pf.vmap(lambda b: torch.dot(a, b))(X))(X), X),
    "jvp(grad)": (lambda x: pf.jvp(pf.grad(scalar), (x,), (t,)), x),
    "jvp(jvp)": (lambda x: pf.jvp(lambda x: pf.jvp(vector, (x,), (t,))[1], (x,), (t,)), x),
    "jvp(vmap)": (lambda X: pf.jvp(pf.vmap(scalar), (X,), (X,)), X),
    "grad(grad)": (pf.grad(lambda x: pf.grad(scalar)(x).square().sum()), x),
    "grad(jvp)": (pf.grad(lambda x: pf.jvp(scalar, (x,), (t,))[1]), x),
    "grad(vmap)": (pf.grad(lambda X: pf.vmap(scalar)(X).sum()), X),
    "vmap(hessian)": (pf.vmap(pf.hessian(scalar)), X),
    "jvp(vmap(grad))": (lambda X: pf.jvp(pf.vmap(pf.grad(scalar)), (X,), (X,)), X),
    "vmap(jvp(grad))": (pf.vmap(lambda x: pf.jvp(pf.grad(scalar), (x,), (t,))[1]), X),
}


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", NESTINGS)
def test_the_graph_is_plain_and_computes_the_same(name, mode):
    function, argument = NESTINGS[name]
    module = make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(argument)
    for node in module.graph.nodes:
        if node.op == "call_function":
            assert str(node.target).startswith(("aten.", "<built-in function getitem>")), node.format_node()
        if node.op == "get_attr":
            assert type(getattr(module, node.target)) in (torch.Tensor, torch.nn.Parameter)
    ours, expected = tree_leaves(module(argument * 1.5)), tree_leaves(function(argument * 1.5))
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)
