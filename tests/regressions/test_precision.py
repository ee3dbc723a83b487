"""A short way does not compute in another precision than the operator: under autocast some products are lowered, others not."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

W, V = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))[0], torch.ones(4)
PRODUCTS = {
    "matmul": lambda x: W @ x,
    "mv": lambda x: torch.mv(W, x),
    "mv of a method": lambda x: W.mv(x),
    "dot": lambda x: torch.dot(V, x),
    "dot with itself": lambda x: torch.dot(x, x),
    "vdot": lambda x: torch.vdot(x, V),
    "linear": lambda x: torch.nn.functional.linear(x, W),
    "einsum": lambda x: torch.einsum("i,ij->j", x, W),
    "outer": lambda x: torch.outer(x, x),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_autocast_lowers_what_it_lowers_for_one_lane(name):
    f, x = PRODUCTS[name], torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = torch.stack([f(r) for r in x])
        got = pf.vmap(f)(x)
        inside = pf.vmap(lambda r: pf.jvp(f, (r,), (r,))[0])(x)
    assert got.dtype is inside.dtype is want.dtype
    tight = 1e-6 if want.dtype is torch.float32 else 3e-2
    torch.testing.assert_close(got, want, rtol=tight, atol=tight)
    torch.testing.assert_close(inside, want, rtol=tight, atol=tight)
