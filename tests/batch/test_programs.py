"""Random programs: every transform gives what the loop over lanes gives."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pushforward as pf

from .programs import Plain, Runner, branching, energy, programs

D = torch.float64
MANY = int(os.environ.get("PUSHFORWARD_PROGRAMS", "100"))


class Ours:
    """Nested calls by the transforms."""

    inner_map = staticmethod(lambda a: pf.vmap(branching)(a))
    inner_grad = staticmethod(lambda a: pf.grad(energy)(a))
    inner_push = staticmethod(lambda a: pf.jvp(lambda z: z.sin() * z, (a,), (torch.ones_like(a),))[1])


def lanes(seed, count):
    return torch.randn(count, 3, dtype=D, generator=torch.Generator().manual_seed(seed))


def gradient(f, x):
    x = x.detach().clone().requires_grad_()
    y = f(x).sum()
    if not y.requires_grad:
        return torch.zeros_like(x)
    g = torch.autograd.grad(y, x, allow_unused=True)[0]
    return torch.zeros_like(x) if g is None else g


def pushed(f, x, v):
    x = x.detach().clone().requires_grad_()
    y = f(x)
    if not y.requires_grad:
        return torch.zeros_like(y)
    u = torch.zeros_like(y).requires_grad_()
    g = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)[0]
    if g is None or not g.requires_grad:
        return torch.zeros_like(y)
    out = torch.autograd.grad(g, u, v, allow_unused=True)[0]
    return torch.zeros_like(y) if out is None else out.detach()


def compare(program, seed, count):
    x, v = lanes(seed, count), lanes(seed + 1, count)
    plain, ours = Runner(program, Plain), Runner(program, Ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pf.TransformWarning)
        near = {"rtol": 1e-8, "atol": 1e-10}
        torch.testing.assert_close(pf.vmap(ours)(x), torch.stack([plain(r) for r in x]).detach(), **near)
        want = torch.stack([gradient(plain, r) for r in x])
        torch.testing.assert_close(pf.vmap(pf.grad(lambda r: ours(r).sum()))(x), want, **near)
        torch.testing.assert_close(pf.grad(lambda r: pf.vmap(ours)(r).sum())(x), want, **near)
        rates = torch.stack([pushed(plain, r, t) for r, t in zip(x, v, strict=True)])
        torch.testing.assert_close(pf.jvp(ours, (x[0],), (v[0],))[1], rates[0], **near)
        torch.testing.assert_close(pf.jvp(pf.vmap(ours), (x,), (v,))[1], rates, **near)
        torch.testing.assert_close(pf.vmap(lambda r, t: pf.jvp(ours, (r,), (t,))[1])(x, v), rates, **near)


@settings(
    max_examples=MANY,
    deadline=None,
    derandomize=MANY <= 100,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(programs(), st.integers(0, 1000), st.sampled_from([1, 2, 5]))
def test_transforms_agree_with_the_loop(program, seed, count):
    compare(program, seed, count)


COUNTEREXAMPLES = [
    # A list made before lanes left, read after it; a variable of `grad` made from a value of fewer lanes.
    ((("assign", 0, ("picked", ("masked", ("variable", 0)), ("inner_grad", ("variable", 1))), 0),), 0, 5),
    # A view multiplied in place while autograd records, its base written afterwards.
    ((("view", 0, ("variable", 0), 0),), 0, 1),
    # `grad` by a value of which a view was asked before lanes left: the graph must be recorded in what goes on.
    (
        (
            (
                "if",
                ("not", ("first", ("variable", 0), 0.03)),
                (("view", 0, ("input", 1), 0),),
                (("view", 0, ("inner_grad", ("variable", 0)), 0),),
            ),
        ),
        1,
        2,
    ),
]


@pytest.mark.parametrize(("program", "seed", "count"), COUNTEREXAMPLES)
def test_programs_that_once_differed(program, seed, count):
    compare(program, seed, count)
