"""Pytrees of tangents, cotangents and results: keys of dicts in any order, and numbers that are no tensors."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

import pushforward as pf
from pushforward.core import tree

D = torch.float64
A, B, U, V = (torch.tensor(v, dtype=D) for v in (1.0, 2.0, 3.0, 5.0))


def f(p):
    return {"u": p["a"] * 10, "v": p["b"] * 100}


def loss(p):
    return p["a"] ** 2 * 10 + p["b"] ** 2 * 100


P, T = {"a": A, "b": B}, {"b": U, "a": V}
BY_NAME = {
    "jvp": (lambda: pf.jvp(f, (P,), (T,))[1], {"u": V * 10, "v": U * 100}),
    "linearize": (lambda: pf.linearize(f, P)[1](T), {"u": V * 10, "v": U * 100}),
    "vjp": (lambda: pf.vjp(f, P)[1]({"v": U, "u": V})[0], {"a": V * 10, "b": U * 100}),
    "vjp, nested": (lambda: pf.vjp(lambda p: (f(p), p["a"]), P)[1](({"v": U, "u": V}, A))[0], {"a": V * 10 + A, "b": U * 100}),
    "hvp": (lambda: pf.hvp(loss, (P,), (T,))[1], {"a": 20 * V, "b": 200 * U}),
    "vmap": (
        lambda: pf.vmap(lambda x: {"u": x, "v": x * 2} if x > 0 else {"v": x * 20, "u": x * 10})(torch.tensor([1.0, -1.0], dtype=D)),
        {"u": torch.tensor([1.0, -10.0], dtype=D), "v": torch.tensor([2.0, -20.0], dtype=D)},
    ),
    "program": (lambda: pf.trace(f)(P)({"b": U, "a": V}), {"u": V * 10, "v": U * 100}),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_values_go_by_their_keys_and_not_by_their_order(name):
    call, expected = BY_NAME[name]
    for _ in range(4):
        out = call()
        assert out.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(out[key], value, msg=key)


def test_other_structures_are_refused_in_words():
    for call, said in {
        lambda: pf.vjp(lambda x: (x, x * 2), A)[1]({"x": A, "y": B}): r"\{'x': \*, 'y': \*\}, the output has \(\*, \*\)",
        lambda: pf.linearize(f, P)[1]({"a": A, "c": B}): r"\(\{'a': \*, 'c': \*\},\), the primals have \(\{'a': \*, 'b': \*\},\)",
        lambda: pf.jvp(f, (P,), ([A, B],)): r"tangents have \(\[\*, \*\],\), the primals have \(\{'a': \*, 'b': \*\},\)",
        lambda: pf.vmap(lambda x: (x, x) if x > 0 else {"a": x})(torch.tensor([1.0, -1.0])): r"returned \(\*, \*\), lane 1 returned",
        lambda: pf.trace(f)(P)((A, B)): r"structure",
    }.items():
        with pytest.raises(pf.ArgumentError, match=said):
            call()


def test_orders_of_every_kind_of_dict():
    for kind in (dict, collections.OrderedDict, lambda p: collections.defaultdict(int, p)):
        like, other = kind({"a": 1, "b": {"c": 2, "d": [3, 4]}}), kind({"b": {"d": (30, 40), "c": 20}, "a": 10})
        assert tree.flat_like(other, tree.flat(like)[1]) == [10, 20, 30, 40]
        assert tree.flat_like(kind({"a": 1}), tree.flat(like)[1]) is None
    pair = collections.namedtuple("pair", "x y")
    assert tree.flat_like(pair({"b": 2, "a": 1}, 3), tree.flat(pair({"a": 0, "b": 0}, 0))[1]) == [1, 2, 3]


@pytest.mark.parametrize("number", [2.0, np.float64(2.0), np.ones(2), 2j])
def test_a_number_that_is_no_tensor_has_no_tangent(number):
    square = lambda x, *rest: x * x
    with pytest.raises(pf.ArgumentError, match=r"primals\[0\].*torch.tensor"):
        pf.jvp(square, (number,), (1.0,))
    with pytest.raises(pf.ArgumentError, match=r"primals\[1\].*torch.tensor"):
        pf.jvp(square, (A, number), (A, 1.0))
    with pytest.raises(pf.ArgumentError, match=r"primals\[0\].*torch.tensor"):
        pf.linearize(square, number)
    with pytest.raises(pf.ArgumentError, match=r"primals\[1\].*torch.tensor"):
        pf.linearize(square, A, number)[1](A, 1.0)
    for zero in (None, 0.0):
        torch.testing.assert_close(pf.jvp(square, (A, number), (A, zero))[1], 2 * A * A)
        torch.testing.assert_close(pf.linearize(square, A, number)[1](A, zero), 2 * A * A)


def test_other_leaves_are_constants():
    scaled = lambda x, n, how: x * n if how == "times" else x
    torch.testing.assert_close(pf.jvp(scaled, (A, 3, "times"), (B, None, None))[1], 3 * B)
    torch.testing.assert_close(pf.jvp(scaled, (A, 3, "times"), (B, 3, "times"))[1], 3 * B)
    torch.testing.assert_close(pf.linearize(scaled, A, 3, "times")[1](B, None, None), 3 * B)
    with pytest.raises(pf.ArgumentError, match=r"torch\.tensor"):
        pf.jvp(lambda n: n * 3, (2,), (1.0,))
