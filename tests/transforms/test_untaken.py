"""A branch of `where` that is not taken gives no NaN gradient, under any transform: element-wise functions and movements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pushforward as pf

from .untaken import D, check_all, gradient, hessian, masked, nothing, plain_where, safe_where, written

# Points at which the branch not taken has an infinite or undefined slope.
UNARY = {
    "sqrt at 0": (torch.sqrt, [0.0, 4.0, 0.0, 2.0], lambda x: x > 0),
    "log at 0": (lambda x: x.log(), [0.0, 4.0, 1.0, 0.0], lambda x: x > 0),
    "exp overflows": (torch.exp, [800.0, -1.0, 2.0, 900.0], lambda x: x < 10),
    "pow": (lambda x: x**0.5, [-1.0, 4.0, 0.0, 2.0], lambda x: x > 0),
    "1.5th power": (lambda x: x**1.5, [0.0, 4.0, 0.0, 2.0], lambda x: x > 0),  # NaN in the second derivative only
    "reciprocal": (lambda x: 1 / x, [0.0, 4.0, 0.5, 2.0], lambda x: x != 0),
    "acos": (torch.acos, [1.0, 0.5, -1.0, 0.0], lambda x: x.abs() < 1),
    "sin(x) / x": (lambda x: x.sin() / x, [0.0, 4.0, 0.5, 0.0], lambda x: x != 0),
    "chain": (lambda x: ((x.sqrt() + 1).log() * x.rsqrt()).tanh(), [0.0, 4.0, 0.5, 0.0], lambda x: x != 0),
}


@pytest.mark.parametrize("where", [plain_where, masked, written], ids=["where", "masked_fill", "write by mask"])
@pytest.mark.parametrize("name", UNARY)
def test_element_wise_branches(name, where):
    branch, point, condition = UNARY[name]
    x = torch.tensor(point, dtype=D)
    other = nothing if where is not plain_where else (lambda x: 3 * x * x)
    f = lambda x: where(condition(x), branch, other, x).mul(torch.arange(1, 5, dtype=D)).sum()
    g = lambda x: safe_where(condition(x), branch, other, x, good=0.3).mul(torch.arange(1, 5, dtype=D)).sum()
    check_all(f, gradient(g, x), hessian(g, x), x)


W = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]], dtype=D)
X = torch.tensor([0.0, 4.0, 0.0, 1.0, 2.0, 9.0], dtype=D)


def both(f):
    """A function of `where` and x, with the real one and with the oracle."""
    return (lambda x: f(plain_where, x)), (lambda x: f(safe_where, x))


STRUCTURES = {
    "nested": lambda where, x: where(
        x > 3, lambda x: where(x > 5, torch.log, torch.sin, x), lambda x: where(x > 0, torch.sqrt, torch.cos, x), x
    ).sum(),
    "reshaped": lambda where, x: (where(x > 0, torch.sqrt, torch.exp, x).reshape(2, 3).t() * W).sum(),
    "sliced": lambda where, x: (where(x > 0, torch.sqrt, torch.exp, x)[1:-1:2] ** 2).sum(),
    "concatenated": lambda where, x: (
        torch.cat([where(x > 0, torch.sqrt, torch.exp, x), x.sin(), where(x > 1, torch.log, torch.exp, x)]) ** 2
    ).sum(),
    "stacked and expanded": lambda where, x: (
        torch.stack([where(x > 0, torch.sqrt, torch.exp, x).expand(2, 6), x.cos().expand(2, 6)]).movedim(0, 1).sin().sum()
    ),
    "after a reduction": lambda where, x: where(x.sum() > 100, lambda x: (x.min() - x.min()).sqrt() + x.sqrt().sum(), torch.sum, x),
    "several uses, all untaken": lambda where, x: (
        where(x > 0, torch.sqrt, torch.exp, x) + 2 * where(x > 0, torch.log, torch.sin, x)
    ).sum(),
    "two conditions": lambda where, x: (where(x > 0, torch.sqrt, torch.exp, x) * where(x < 5, torch.exp, torch.log, x)).sum(),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name):
    f, g = both(STRUCTURES[name])
    check_all(f, gradient(g, X), hessian(g, X), X)


MOVES = {
    "reshape": (lambda y: y.reshape(3, 2), lambda c: c.reshape(3, 2)),
    "transpose": (lambda y: y.reshape(3, 2).t(), lambda c: c.reshape(3, 2).t()),
    "expand": (lambda y: y.expand(4, 6), lambda c: c.expand(4, 6)),
    "slice": (lambda y: y[1:], lambda c: c[1:]),
    "flip": (lambda y: y.flip(0), lambda c: c.flip(0)),
    "index": (lambda y: y[torch.tensor([3, 0, 0, 2])], lambda c: c[torch.tensor([3, 0, 0, 2])]),
    "select": (lambda y: torch.stack([y[0], y[3]]), lambda c: torch.stack([c[0], c[3]])),
    "split": (lambda y: torch.cat(y.split(4)[::-1]), lambda c: torch.cat(c.split(4)[::-1])),
    "unbind": (lambda y: torch.stack(y.unbind()[::2]), lambda c: torch.stack(c.unbind()[::2])),
    "cat": (lambda y: torch.cat([y, y]), lambda c: torch.cat([c, c])),
    "pad": (lambda y: torch.nn.functional.pad(y, (1, 2)), lambda c: torch.nn.functional.pad(c, (1, 2), value=True)),
    "clone and cast": (lambda y: y.clone().float().double(), lambda c: c),
    "in place": (lambda y: y.clone().add_(1).mul_(2), lambda c: c),
}


@pytest.mark.parametrize("name", MOVES)
def test_movements_between_the_branch_and_where(name):
    move, condition = MOVES[name]
    c = X > 0
    f = lambda x: torch.where(condition(c), move(x.sqrt()), 0.5).sin().sum()
    g = lambda x: torch.where(condition(c), move(torch.where(c, x, 1.0).sqrt()), 0.5).sin().sum()
    x = X
    torch.testing.assert_close(pf.grad(f)(x), gradient(g, x))
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if "cast" in name else {}
    torch.testing.assert_close(pf.hessian(f)(x), hessian(g, x), **tolerance)
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x.expand(2, 6)), gradient(g, x).expand(2, 6))


# -- random programs -----------------------------------------------------------------------------------------------

STEPS = [
    lambda x: x.sqrt(),
    lambda x: x.log(),
    lambda x: 1 / x,
    lambda x: x.exp(),
    lambda x: x * x.rsqrt(),
    lambda x: x**1.5,
    lambda x: (x + 1).sin(),
    lambda x: x.reshape(2, 3).t().reshape(6),
    lambda x: x.flip(0),
    lambda x: torch.cat([x[3:], x[:3]]),
    lambda x: x * 0.3,
]
PLAIN = [torch.sin, torch.tanh, lambda x: x * x, lambda x: x.flip(0), lambda x: x.reshape(3, 2).t().reshape(6), lambda x: 0.5 * x]
POINTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=6, max_size=6)


@st.composite
def programs(draw):
    return (
        draw(POINTS),
        draw(st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=4)),
        draw(st.lists(st.integers(0, len(PLAIN) - 1), min_size=0, max_size=2)),
        draw(st.lists(st.integers(0, len(PLAIN) - 1), min_size=0, max_size=2)),
        draw(st.booleans()),
    )


def program(steps, before, after, shared, safe):
    """x ↦ `where` of a chain of steps that is only defined where all of x that goes into it is positive."""

    def f(x):
        base = x
        for k in before:
            base = PLAIN[k](base)
        places = torch.arange(6)
        for k in steps:
            if k in (7, 8, 9):
                places = STEPS[k](places)
        def branch(y):
            for k in steps:
                y = STEPS[k](y)
            return y

        bad = ~torch.isfinite(derivatives(branch, base.detach()[places] * 0 + base.detach(), places))
        c = ~bad
        source = torch.zeros(6, dtype=torch.bool)
        source[places] = c
        inner = torch.where(source, base, 0.8) if safe else base
        out = torch.where(c, branch(inner), base[places] * 2)
        if shared:
            out = out + torch.where(c, branch(inner).sin(), base)
        for k in after:
            out = PLAIN[k](out)
        return out.sum()

    return f


def derivatives(branch, x, places):
    """Value, slope and curvature of the branch, at the places where it puts them; not finite where any is not."""
    leaf = x.clone().requires_grad_()
    out = branch(leaf)
    (g,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), leaf, allow_unused=True) if g.requires_grad else (None,)
    h = torch.zeros_like(x) if h is None else h
    return out.detach() + g.detach()[places] + h[places]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_programs(given_program):
    point, steps, before, after, shared = given_program
    x = torch.tensor(point, dtype=D)
    f, g = program(steps, before, after, shared, False), program(steps, before, after, shared, True)
    first, second = gradient(g, x), hessian(g, x)
    if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
        return
    torch.testing.assert_close(pf.grad(f)(x), first)
    torch.testing.assert_close(pf.jacrev(pf.grad(f))(x), second)
    torch.testing.assert_close(pf.grad(lambda x: pf.grad(f)(x).sum())(x), second.sum(0))
