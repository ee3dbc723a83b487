"""Functions that call our transforms, under `torch.compile`: a graph break at most, and the right numbers."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

x = torch.tensor([0.5, -1.0, 2.0])


def scalar(x):
    return (torch.sin(x) * x).sum()


def vector(x):
    return torch.tanh(x) * x.sum()


def linearized(x):
    out, push = pf.linearize(vector, x.cos())
    return out + push(x)


def pulled(x):
    out, pull = pf.vjp(vector, x)
    return out * pull(x)[0]


COMPILED = pf.compile(pf.grad(scalar), backend="graph")
COMPOSITIONS = {
    "grad": lambda x: pf.grad(scalar)(x * 2) + 1,
    "vmap": lambda x: pf.vmap(vector)(x.expand(4, 3)).sum(),
    "vmap(grad)": lambda x: pf.vmap(pf.grad(scalar))(x.expand(4, 3)) * 2,
    "jvp": lambda x: pf.jvp(vector, (x,), (x * 2,))[1].cos(),
    "jvp(grad)": lambda x: pf.jvp(pf.grad(scalar), (x,), (x,))[1],
    "hessian": lambda x: pf.hessian(scalar)(x) @ x,
    "jacrev": lambda x: pf.jacrev(vector)(x) @ x,
    "jacfwd": lambda x: pf.jacfwd(vector)(x) @ x,
    "linearize": linearized,
    "vjp": pulled,
    "compiled": lambda x: COMPILED(x) + 1,
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_numbers_are_right(name):
    function = COMPOSITIONS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=False, backend="eager")
    for given in (x, x * 2, torch.ones(3)):
        torch.testing.assert_close(compiled(given), function(given))


def test_the_interpreters_are_not_traced():
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module

    torch._dynamo.reset()
    torch.compile(COMPOSITIONS["vmap(grad)"], backend=backend)(x)
    names = [str(n.target) for g in graphs for n in g.graph.nodes]
    assert len(graphs) <= 2
    assert not any("sin" in n for n in names)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own modules
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo's own
def test_with_the_default_backend_and_a_backward_pass():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: pf.grad(scalar)(x).square().sum())
    given = x.clone().requires_grad_()
    ours = torch.autograd.grad(compiled(given), given)
    torch.testing.assert_close(ours, torch.autograd.grad(pf.grad(scalar)(given).square().sum(), given))
