"""What the user does to gradients (hooks, a `backward` of one's own) counts in reverse mode, and nowhere else.

A gradient that passes a hook or a `backward` with `.detach()` in it is a constant to further derivatives, as in torch;
a directional derivative does not know of it, however it is made.
"""

from __future__ import annotations

import pytest
import torch
from torch.autograd.function import once_differentiable

import pushforward as pf

X, V = torch.tensor([0.3, 0.7], dtype=torch.float64), torch.tensor([1.0, 0.5], dtype=torch.float64)


def cubed(cut):
    """x³ with a derivative that is written by hand, cut off somewhere."""

    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            return cut(g, *ctx.saved_tensors)

    return lambda x: (Cubed.apply(x.sin()) * x).sum()


def in_no_grad(g, x):
    with torch.no_grad():
        g = g * 1
    return g * 3 * x * x


def hooked(hook):
    def function(x):
        y = x.sin()
        if y.requires_grad:
            y.register_hook(hook)
        return (y * y * x).sum()

    return function


class Layer(torch.nn.Module):
    def forward(self, x):
        return x.sin() ** 2


def with_module_hook(x):
    layer = Layer()
    layer.register_full_backward_hook(lambda module, into, out: (into[0].detach(),))
    return (layer(x) * x).sum()


CUT = {
    "hook": hooked(lambda g: g.detach()),
    "hook, no grad": hooked(torch.no_grad()(lambda g: g * 1)),
    "hook of a module": with_module_hook,
    "cotangent": cubed(lambda g, x: g.detach() * 3 * x * x),
    "cotangent, by data": cubed(lambda g, x: g.data * 3 * x * x),
    "cotangent, partly": cubed(lambda g, x: g * x * x + g.detach() * 2 * x * x),
    "cotangent, no grad": cubed(in_no_grad),
    "saved": cubed(lambda g, x: g * 3 * (x * x).detach()),
}


def by_torch(f):
    """Gradient, and the derivative of the gradient, by torch.autograd on plain tensors."""
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    rows = [torch.autograd.grad(e, x, retain_graph=True, allow_unused=True)[0] for e in g]
    return g.detach(), torch.stack([torch.zeros_like(X) if r is None else r for r in rows])


def by_hand(f):
    """A function that calls the engine itself."""

    def gradient(x):
        x = x if x.requires_grad else x.requires_grad_()
        return torch.autograd.grad(f(x), x, create_graph=True)[0]

    return gradient


def mapped(f):
    """The second of three equal lanes."""
    return lambda x: pf.vmap(f)(x.expand(3, -1))[1]


FIRST = {
    "grad": lambda f: pf.grad(f)(X) @ V,
    "vjp": lambda f: pf.vjp(f, X)[1](torch.ones((), dtype=X.dtype))[0] @ V,
    "jacrev": lambda f: pf.jacrev(f)(X) @ V,
    "jvp": lambda f: pf.jvp(f, (X,), (V,))[1],
    "jacfwd": lambda f: pf.jacfwd(f)(X) @ V,
    "linearize": lambda f: pf.linearize(f, X)[1](V),
    "vmap(grad)": lambda f: mapped(pf.grad(f))(X) @ V,
    "vmap(jvp)": lambda f: mapped(lambda x: pf.jvp(f, (x,), (V,))[1])(X),
    "vmap(linearize)": lambda f: mapped(lambda x: pf.linearize(f, x)[1](V))(X),
    "jvp(linearize)": lambda f: pf.jvp(lambda x: pf.linearize(f, x)[0], (X,), (V,))[1],
    "grad(linearize)": lambda f: pf.grad(lambda x: pf.linearize(f, x)[0])(X) @ V,
    "vmap(torch.autograd)": lambda f: mapped(by_hand(f))(X).detach() @ V,
    "jvp(torch.autograd)": lambda f: pf.jvp(by_hand(f), (X,), (V,))[0].detach() @ V,
}

SECOND = {
    "jvp(grad)": lambda f: pf.jvp(pf.grad(f), (X,), (V,))[1],
    "jacfwd(grad)": lambda f: pf.jacfwd(pf.grad(f))(X) @ V,
    "jacrev(grad)": lambda f: pf.jacrev(pf.grad(f))(X) @ V,
    "linearize(grad)": lambda f: pf.linearize(pf.grad(f), X)[1](V),
    "vmap(jvp(grad))": lambda f: mapped(lambda x: pf.jvp(pf.grad(f), (x,), (V,))[1])(X),
    "jvp(torch.autograd)": lambda f: pf.jvp(by_hand(f), (X,), (V,))[1].detach(),
    "linearize(torch.autograd)": lambda f: pf.linearize(by_hand(f), X)[1](V).detach(),
    "vmap(jvp(torch.autograd))": lambda f: mapped(lambda x: pf.jvp(by_hand(f), (x,), (V,))[1])(X).detach(),
    "jacrev(torch.autograd)": lambda f: pf.jacrev(by_hand(f))(X).detach() @ V,
}


@pytest.mark.parametrize("way", FIRST)
@pytest.mark.parametrize("name", CUT)
def test_first_derivatives_do_not_know_of_it(name, way):
    torch.testing.assert_close(FIRST[way](CUT[name]), by_torch(CUT[name])[0] @ V)


FORWARD = ("jvp(grad)", "jacfwd(grad)", "vmap(jvp(grad))", "jvp(torch.autograd)", "vmap(jvp(torch.autograd))")


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("name", CUT)
def test_second_derivatives_take_it_for_a_constant(name, way):
    if "no grad" in name and way in FORWARD:
        pytest.skip("forward mode cannot tell the user's no_grad in a backward pass from the engine's own: see the limitations")
    torch.testing.assert_close(SECOND[way](CUT[name]), by_torch(CUT[name])[1] @ V)


@pytest.mark.parametrize("name", ["hook", "hook, no grad", "cotangent", "cotangent, partly", "cotangent, no grad"])
def test_a_tangent_has_all_its_derivatives(name):
    plain = cubed(lambda g, x: g * 3 * x * x) if name.startswith("cotangent") else lambda x: (x.sin() ** 2 * x).sum()
    want = by_torch(plain)[1] @ V
    torch.testing.assert_close(pf.grad(lambda x: pf.jvp(CUT[name], (x,), (V,))[1])(X), want)
    torch.testing.assert_close(pf.grad(lambda x: pf.linearize(CUT[name], x)[1](V))(X), want)


@pytest.mark.parametrize("hook", [lambda g: g * 2, lambda g: g.clamp(-0.1, 0.1)])
def test_a_hook_that_changes_gradients_does_not_change_tangents(hook):
    f, plain = hooked(hook), lambda x: (x.sin() ** 2 * x).sum()
    want = pf.grad(plain)(X) @ V
    for way in ("jvp", "jacfwd", "linearize", "vmap(jvp)", "vmap(linearize)"):
        torch.testing.assert_close(FIRST[way](f), want)
    changed = by_torch(f)[0] @ V
    assert not torch.allclose(changed, want)
    for way in ("grad", "vjp", "jacrev", "vmap(grad)", "vmap(torch.autograd)"):
        torch.testing.assert_close(FIRST[way](f), changed)


def test_a_backward_marked_as_once_differentiable_is_linearised():
    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    f = lambda x: (Cubed.apply(x.sin()) * x).sum()
    want = by_torch(lambda x: (x.sin() ** 3 * x).sum())[0] @ V
    for way in ("grad", "jvp", "linearize", "vmap(linearize)"):
        torch.testing.assert_close(FIRST[way](f), want)


def test_the_hook_of_a_function_that_is_linearised_is_removed_as_any_other():
    calls = []

    def f(x):
        y = x.sin()
        if y.requires_grad:
            handle = y.register_hook(calls.append)
            y.register_hook(lambda g: calls.append("kept"))
            handle.remove()
        return y.sum()

    pf.linearize(f, X)[1](V)
    assert calls == []
    pf.grad(lambda x: pf.grad(f)(x).sum())(X)
    assert calls.count("kept") == len(calls) > 0


def test_one_mask_for_values_and_products_where_the_function_runs_again():
    f = lambda x: torch.nn.functional.dropout(CUT["cotangent"](x) * torch.ones(50, dtype=x.dtype))
    out, push = pf.linearize(f, X)
    assert torch.equal(out == 0, push(V) == 0)
    assert torch.equal(push(V), push(V))


@pytest.mark.parametrize("name", [name for name in CUT if name.startswith("cotangent")])
@pytest.mark.parametrize("mapping", [False, True])
def test_forward_over_forward_does_not_know_of_it_either(name, mapping):
    whole = cubed(lambda g, x: g * 3 * x * x)

    def twice(f):
        along = lambda h: lambda x: pf.jvp(h, (x,), (V,))[1]
        return (mapped(along(along(f))) if mapping else along(along(f)))(X)

    torch.testing.assert_close(twice(CUT[name]), V @ by_torch(whole)[1] @ V)
