"""Numbers that are no tensors among the inputs: a tangent of one would be lost, so it is refused, by every transform alike."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
import torch

import pushforward as pf

X = torch.tensor([0.5, 2.0])
NUMBERS = {
    "float": (2.0, 1.0, "torch.tensor(2.0)"),
    "int": (3, 1, "torch.tensor(3.0)"),
    "complex": (2j, 1j, "torch.tensor(2j)"),
    "numpy float64": (np.float64(2.0), np.float64(1.0), "torch.tensor(2.0)"),
    "numpy float32": (np.float32(2.0), np.float32(1.0), "torch.tensor(2.0)"),
    "numpy int": (np.int64(3), np.int64(1), "torch.tensor(3.0)"),
    "numpy array": (np.array([1.0, 2.0]), np.ones(2), "torch.tensor(x)"),
    "tensor tangent": (2.0, torch.tensor(1.0), "torch.tensor(2.0)"),
}


def product(x, y=1.0):
    return x * (torch.from_numpy(y) if isinstance(y, np.ndarray) else y)


def refused(call, *parts):
    """The call is refused each time, with all of these in the message."""
    for around in [contextlib.nullcontext] * 4 + [pf.no_replay]:
        with pytest.raises(pf.ArgumentError) as caught, around():
            call()
        for part in parts:
            assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tangent_of_a_number_is_refused(name):
    number, tangent, instead = NUMBERS[name]
    refused(lambda: pf.jvp(product, (number,), (tangent,)), "jvp(product)", "primals[0]", instead)
    refused(lambda: pf.jvp(product, (X, number), (X, tangent)), "primals[1]", instead)
    tree, moved = {"x": X, "y": number}, {"x": X, "y": tangent}
    refused(lambda: pf.jvp(lambda d: product(d["x"], d["y"]), (tree,), (moved,)), "primals[0]['y']", instead)
    refused(lambda: pf.hvp(lambda x, y: product(x, y).sum(), (X, number), (X, tangent)), "hvp(", "primals[1]", instead)
    refused(lambda: pf.linearize(product, X, number)[1](X, tangent), "primals[1]", instead)
    refused(lambda: pf.vmap(lambda x: pf.jvp(product, (x, number), (x, tangent)))(X), "primals[1]", instead)
    refused(lambda: pf.jvp(lambda x: pf.jvp(product, (x, number), (x, tangent))[1], (X,), (X,)), "primals[1]", instead)
    refused(lambda: pf.grad(lambda x: pf.jvp(product, (x, number), (x, tangent))[1].sum())(X), "primals[1]", instead)


@pytest.mark.parametrize("name", [n for n in NUMBERS if n != "tensor tangent"])
def test_a_derivative_by_a_number_alone_is_refused(name):
    number, tangent, instead = NUMBERS[name]
    refused(lambda: pf.linearize(product, number), "linearize(product)", "primals[0]", instead)
    refused(lambda: pf.vjp(product, number), "vjp(product)", "primals[0]", instead)
    refused(lambda: pf.hvp(product, (number,), (tangent,)), "hvp(product)", "primals[0]", instead)
    refused(lambda: pf.check(product, (number,)), "check(product)", "primals[0]", instead)
    refused(lambda: pf.routes(product, (number,), (tangent,)), "routes(product)", "primals[0]", instead)
    for what in ("grad", "grad_and_value", "jacfwd", "jacrev", "jacobian", "value_and_jacobian", "hessian"):
        refused(lambda what=what: getattr(pf, what)(product)(number), f"{what}(product", "args[0]", instead)
    for what in ("plan", "jacobian_sparsity", "hessian_sparsity"):
        refused(lambda what=what: getattr(pf, what)(product, number), f"{what}(product", "args[0]", instead)
    with pf.forward_ad.dual_level():
        refused(lambda: pf.forward_ad.make_dual(number, tangent), "make_dual", instead)


def test_integer_tensors_are_refused_alike():
    i = torch.arange(3)
    refused(lambda: pf.linearize(product, i), "linearize(product)", "primals[0]", "int64", ".double()")
    refused(lambda: pf.vjp(product, i), "vjp(product)", "primals[0]", "int64", ".double()")
    refused(lambda: pf.linearize(product, X, i[:2])[1](X, i[:2]), "primals[1]", "int64")
    refused(lambda: pf.jacobian_sparsity(product, i), "jacobian_sparsity(product", "int64")
    for what in ("grad", "jacfwd", "jacrev", "jacobian", "hessian"):
        refused(lambda what=what: getattr(pf, what)(product)(i), f"{what}(product", "args[0]", "int64", ".double()")


CONSTANTS = [3.0, 3, True, np.float64(3.0), np.array([1.0, 3.0]), torch.tensor([1, 3])]


@pytest.mark.parametrize("constant", CONSTANTS, ids=repr)
def test_numbers_are_constants_beside_what_is_differentiated(constant):
    f = lambda x, y: x * x * (torch.from_numpy(y).float() if isinstance(y, np.ndarray) else y)
    want = 2 * X * (torch.from_numpy(constant).float() if isinstance(constant, np.ndarray) else constant) * X
    zero = None if isinstance(constant, (bool, np.ndarray)) else constant * 0
    for _ in range(4):
        for tangent in (None, zero):
            torch.testing.assert_close(pf.jvp(f, (X, constant), (X, tangent))[1], want)
            torch.testing.assert_close(pf.linearize(f, X, constant)[1](X, tangent), want)
            torch.testing.assert_close(pf.hvp(lambda x, y: (f(x, y) * x).sum() / 3, (X, constant), (X, tangent))[1][0], want)
        torch.testing.assert_close(pf.vjp(f, X, constant)[1](X)[0], want)
        assert pf.vjp(f, X, constant)[1](X)[1] is None
        torch.testing.assert_close(pf.grad(lambda x, y: (f(x, y) * X).sum(), argnums=(0, 1))(X, constant)[0], want)


def test_what_is_no_number_is_carried_along():
    f = lambda x, how, extra: getattr(x, how)() if extra is None else x
    for _ in range(4):
        torch.testing.assert_close(pf.jvp(f, (X, "sin", None), (X, "sin", None))[1], X.cos() * X)
        torch.testing.assert_close(pf.linearize(f, X, "sin", None)[1](X, "sin", None), X.cos() * X)
        torch.testing.assert_close(pf.linearize(f, X, "sin", None)[1](X, None, None), X.cos() * X)


def test_an_object_with_a_tangent_of_its_own_is_refused():
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    call = lambda x, m: m(x)
    torch.testing.assert_close(pf.jvp(call, (X, one), (X, one))[1], X @ one.weight.T)
    refused(lambda: pf.jvp(call, (X, one), (X, other)), "primals[1] is a Linear", "functional_call")


def test_the_tangents_of_a_linearised_function_are_read_as_those_of_jvp():
    _, push = pf.linearize(lambda d: d["a"] * d["b"], {"a": X, "b": X + 1})
    torch.testing.assert_close(push({"b": None, "a": X}), X * (X + 1))
    torch.testing.assert_close(push({"b": 3 * X, "a": X}), X * (X + 1) + 3 * X * X)
    torch.testing.assert_close(
        pf.jvp(lambda d: d["a"] * d["b"], ({"a": X, "b": X + 1},), ({"b": 3 * X, "a": X},))[1], X * (X + 1) + 3 * X * X
    )
    torch.testing.assert_close(push({"b": X, "a": torch.zeros(2)}), X * X)
    refused(lambda: push({"a": X, "c": X}), "{'a': *, 'b': *}", "{'a': *, 'c': *}")
    refused(lambda: push(X, X), "{'a': *, 'b': *}")
    refused(lambda: push(), "1 primals", "0 tangents")
    refused(lambda: push({"a": X, "b": X.double()}), "primals[0]['b']", "float64")
    refused(lambda: push({"a": X, "b": X[:1]}), "primals[0]['b']", "[1]")
    refused(lambda: push({"a": X, "b": 1.0}), "primals[0]['b']", "a float")


def test_the_cotangents_have_the_structure_of_the_output():
    _, pull = pf.vjp(lambda x: {"a": x, "b": x * 2}, X)
    torch.testing.assert_close(pull({"b": X, "a": 5 * X})[0], 7 * X)
    refused(lambda: pull({"a": X, "c": X}), "{'a': *, 'b': *}", "{'a': *, 'c': *}")
    refused(lambda: pull([X, X]), "{'a': *, 'b': *}", "[*, *]")
    refused(lambda: pull(X, X), "{'a': *, 'b': *}", "(*, *)")
    _, pull = pf.vjp(lambda x: (x, x * 2), X)
    torch.testing.assert_close(pull([X, X])[0], 3 * X)
    torch.testing.assert_close(pull(X, X)[0], 3 * X)
    _, pull = pf.vjp(lambda x: x * 2, X)
    refused(lambda: pull(X.to(torch.complex64)), "complex64", "float32")
    refused(lambda: pull(1.0), "a float")
    refused(lambda: pull(None), "None")
    with pytest.raises(pf.ArgumentError, match=re.escape("[3]")):
        pull(torch.ones(3))
