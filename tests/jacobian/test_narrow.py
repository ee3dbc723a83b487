"""Functions that narrow inside: cut at the narrowest place, and never where the program is not the function."""

import dataclasses

import pytest
import torch

import pushforward as pf
from pushforward.jacobian import planner
from pushforward.jacobian.narrow import Flow, find
from pushforward.jacobian.problem import Problem

D = torch.float64
W = torch.randn(3, 40, dtype=D, generator=torch.Generator().manual_seed(0)) / 6
U = torch.randn(40, 3, dtype=D, generator=torch.Generator().manual_seed(1))

C = torch.linspace(1, 2, 40, dtype=D)


def narrow(x):
    return torch.tanh(U @ torch.sin(W @ x.cos())).exp()


def cut_of(f, *leaves):
    problem = Problem(f, tuple(range(len(leaves))), leaves, {}, False, "test")
    problem.outs = problem.plain(*leaves)
    return find(problem)


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    monkeypatch.setattr(planner, "WORTH_TRACING", 0.0)
    monkeypatch.setattr(planner, "WORTH_IMPORTING", 0.0)
    # So small a function takes microseconds, and which way is best would hang on how busy the machine is.
    measure = planner.measure
    monkeypatch.setattr(planner, "measure", lambda problem: dataclasses.replace(measure(problem), seconds=1e-3))


def rnd(*shape, seed=2):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def test_the_narrow_place_is_found_and_used():
    x = rnd(40)
    plan = pf.plan(narrow, x)
    assert plan.mode == "narrow"
    assert plan.passes == 6
    assert "through 3 numbers" in plan.candidate.note
    for point in (x, rnd(40, seed=5)):
        torch.testing.assert_close(plan(point), torch.autograd.functional.jacobian(narrow, point))
    with pytest.raises(pf.ArgumentError, match="cannot be saved"):
        plan.save("nowhere.npz")


def masked(x):
    s = x.exp().sum()
    return torch.where(x > 0, s, s**2)


CUTS = {
    "two values": (lambda x: x.sum() * C + (x**2).mean(0, keepdim=True) * C.cos(), 2),
    "two values that become one": (lambda x: (x.sum() * (x**2).sum()) * C, 1),
    "narrow twice": (lambda x: narrow(narrow(x)), 3),
    "through a reduction and a mask": (masked, 1),
    "no narrow place": (lambda x: x.sin() * x.sum(), None),
    "wide inside": (lambda x: x.repeat(5).sin()[:40], None),
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name):
    f, width = CUTS[name]
    x = rnd(40)
    found = cut_of(f, x)
    assert (found.width if found else None) == width
    torch.testing.assert_close(pf.plan(f, x)(x), torch.autograd.functional.jacobian(f, x))


def test_several_inputs_and_outputs():
    f = lambda p: {
        "y": narrow(p["a"] + p["b"].reshape(-1)),
        "z": torch.sin(W @ p["b"].reshape(-1)).sum() * torch.ones(30, dtype=D),
    }
    p = {"a": rnd(40), "b": rnd(8, 5)}
    plan = pf.plan(f, p)
    torch.testing.assert_close(plan(p), torch.func.jacrev(f)(p))


def test_what_a_traced_program_does_not_know_is_not_cut():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return z.clone()

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    for f in (
        lambda x: U @ (W @ x.detach()) + x * 0,
        lambda x: U @ Twice.apply(W @ x),
        lambda x: U @ (W @ x) if x.sum() > -1e9 else x,
        lambda x: (U @ (W @ x)).mul_(2),
    ):
        x = rnd(40)
        plan = pf.plan(f, x)
        assert plan.mode != "narrow"
        torch.testing.assert_close(plan(x), torch.autograd.functional.jacobian(f, x))


def test_a_captured_value_that_changed_is_noticed():
    captured = {"scale": 1.0}
    f = lambda x: captured["scale"] * narrow(x)
    plan = pf.plan(f, rnd(40))
    assert plan.mode == "narrow"
    captured["scale"] = 2.0
    with pytest.raises(pf.PatternError, match="is not the function"):
        plan(rnd(40))


def test_maximum_flow_of_a_small_network():
    flow = Flow(6)
    for a, b, c in [
        (0, 1, 16),
        (0, 2, 13),
        (1, 2, 10),
        (2, 1, 4),
        (1, 3, 12),
        (3, 2, 9),
        (2, 4, 14),
        (4, 3, 7),
        (3, 5, 20),
        (4, 5, 4),
    ]:
        flow.add(a, b, float(c))
    assert flow.maximum(0, 5, float("inf")) == 23  # Cormen, Leiserson, Rivest, Stein, figure 26.1


def test_jacobian_looks_at_every_point_and_a_plan_at_the_first():
    scale = {"by": 1.0}
    f = lambda x: narrow(x) * scale["by"]
    x = rnd(40)
    plan, jacobian = pf.plan(f, x), pf.jacobian(f)
    expected = jacobian(x)
    torch.testing.assert_close(plan(x), expected)
    value, found, aux = pf.plan(lambda x: (f(x), "aux"), x, has_aux=True).value_and_jacobian(x + 1)
    torch.testing.assert_close(value, f(x + 1))
    assert aux == "aux"
    value, found = plan.value_and_jacobian(x + 1)
    torch.testing.assert_close(value, f(x + 1))
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(f, x + 1))
    scale["by"] = 2.0  # the plan takes what the function captured as it was; `jacobian` looks
    torch.testing.assert_close(plan(x), expected)
    with pytest.raises(pf.PatternError, match="not the function any more"):
        jacobian(x)


def test_a_plan_through_a_cut_compiles() -> None:
    x = rnd(40)
    plan = pf.plan(narrow, x)
    assert plan.mode == "narrow"
    compiled = pf.compile(plan, backend="graph")  # warnings are errors: it is recorded, not run as it is
    torch.testing.assert_close(compiled(x), plan(x))
    torch.testing.assert_close(compiled(2 * x), plan(2 * x))


@pytest.mark.parametrize("chunk", [None, 7])
def test_dense_jacobians_in_chunks_compile(chunk: int | None) -> None:
    x, y = rnd(20), rnd(4, seed=3)
    for transform in (pf.jacfwd, pf.jacrev):
        f = transform(lambda x, y: torch.outer(x.sin(), y).sum(0) * y, (0, 1), chunk_size=chunk)
        torch.testing.assert_close(pf.compile(f, backend="graph")(x, y), f(x, y))
