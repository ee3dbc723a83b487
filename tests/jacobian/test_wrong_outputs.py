"""Outputs without a derivative: of integers the Jacobian is zero, and where there is no tensor it is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pushforward as pf

X = torch.tensor([1.0, 2.0, 3.0])
WAYS = {
    "jacfwd": pf.jacfwd,
    "jacrev": pf.jacrev,
    "jacobian": pf.jacobian,
    "reverse": lambda f: pf.jacobian(f, mode="reverse"),
    "sparse": lambda f: pf.jacobian(f, sparsity="global"),
    "value_and_jacobian": lambda f: lambda x: pf.value_and_jacobian(f)(x)[1],
    "plan": lambda f: lambda x: pf.plan(f, x)(x),
    "hessian": pf.hessian,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("returned", [None, 1.0, "text", np.ones(3), [None, 2], {"a": 1.0}], ids=repr)
def test_a_function_that_returns_no_tensor_is_refused(way, returned):
    for _ in range(4):
        with pytest.raises(pf.ArgumentError, match="must return a tensor"):
            WAYS[way](lambda x: returned)(X)


@pytest.mark.filterwarnings("ignore::pushforward.DerivativeLost")
@pytest.mark.parametrize("way", [w for w in WAYS if w != "hessian"])
def test_integers_have_a_jacobian_of_zeros(way):
    for f in (lambda x: x.long(), lambda x: x > 1, lambda x: x.argmax(), lambda x: {"a": x.long(), "b": x * x}, lambda x: x[:0]):
        for _ in range(4):
            made, out = WAYS[way](f)(X), f(X)
            if isinstance(out, dict):
                torch.testing.assert_close(made["b"].to_dense(), torch.diag(2 * X))
                made, out = made["a"], out["a"]
            assert made.shape == (*out.shape, 3)
            assert not made.to_dense().any()
