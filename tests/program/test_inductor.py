"""Programs compiled to machine code, and what happens where that is not possible."""

from __future__ import annotations

import time

import pytest
import torch

import pushforward as pf
from pushforward.program import backends

pytestmark = pytest.mark.skipif(not backends.compiler_found(), reason="there is no C++ compiler")

x, v = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.25, -0.5])


def energy(x):
    return (torch.sin(x) * x).sum()


def hvp(x, v):
    return pf.jvp(pf.grad(energy), (x,), (v,))


def test_a_hessian_vector_product_in_microseconds():
    compiled = pf.compile(hvp, backend="inductor")
    torch.testing.assert_close(compiled(x, v), hvp(x, v))
    best = min(timed(lambda: compiled(x, v)) for _ in range(50))
    eager = min(timed(lambda: hvp(x, v)) for _ in range(5))
    assert best < eager / 10  # a hundredth on a quiet machine


def timed(call, repeats=20):
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def test_captured_tensors_symbolic_sizes_writes_and_derivatives():
    weight = torch.ones(3)
    total = torch.zeros(3)

    def function(X):
        total.add_(X.detach().sum(0))
        return pf.vmap(pf.grad(lambda x: torch.tanh(x * weight).sum()))(X)

    compiled = pf.compile(function, backend="inductor", dynamic=True)
    for n, scale in ((4, 1.0), (6, 2.0)):
        X, before = torch.randn(n, 3), total.clone()
        weight = torch.full((3,), scale)
        ours = compiled(X)
        torch.testing.assert_close(total, before + X.sum(0))
        torch.testing.assert_close(ours, function(X))
    assert len(compiled.programs) == 1


def test_derivatives_of_a_compiled_function():
    compiled = pf.compile(pf.vmap(energy), backend="inductor")
    X = torch.randn(4, 3, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(X).sum(), X), torch.autograd.grad(pf.vmap(energy)(X).sum(), X)
    )


def test_random_numbers_are_those_of_the_function():
    function = pf.vmap(lambda x: x + torch.rand(3), randomness="different")
    compiled = pf.compile(function, backend="inductor")
    X = torch.ones(2, 3)
    compiled(X)
    torch.manual_seed(1)
    ours = compiled(X)
    torch.manual_seed(1)
    torch.testing.assert_close(ours, function(X))


def test_without_a_compiler_the_program_is_replayed_and_that_is_said_once(monkeypatch):
    monkeypatch.setattr(backends, "compiler_found", lambda: False)
    monkeypatch.setattr(backends, "_SAID", set())
    compiled = pf.compile(energy)
    with pytest.warns(pf.SlowFallback, match="no C\\+\\+ compiler"):
        torch.testing.assert_close(compiled(x), energy(x))
    torch.testing.assert_close(pf.compile(energy)(x), energy(x))


def test_where_the_compiler_fails_the_program_is_replayed(monkeypatch):
    def fails(*args, **kwargs):
        raise NotImplementedError("no such machine")

    monkeypatch.setattr(backends, "inductor_compile", fails)
    monkeypatch.setattr(backends, "_SAID", set())
    with pytest.warns(pf.SlowFallback, match="no such machine"):
        torch.testing.assert_close(pf.compile(energy)(x), energy(x))
    with pytest.raises(NotImplementedError):
        backends.runner("inductor", pf.trace(energy)(x).graph, {}, pf.trace(energy)(x).mode, symbolic=False)
