"""Modules that take their sizes from their first input, called for the first time inside of a transform."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import pushforward as pf

MODULES = {
    "linear": (lambda: nn.LazyLinear(3, dtype=torch.float64), (4,)),
    "several": (lambda: nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2)).double(), (4,)),
    "conv": (lambda: nn.Sequential(nn.LazyConv1d(3, 2), nn.Flatten(0), nn.LazyLinear(2)).double(), (2, 6)),
    "norm": (lambda: nn.LazyBatchNorm1d(dtype=torch.float64).eval(), (6, 4)),
}
TRANSFORMS = {
    "vmap": lambda m, x: pf.vmap(m)(x),
    "jvp": lambda m, x: pf.jvp(m, (x[0],), (x[1],))[1],
    "vmap(jvp)": lambda m, x: pf.vmap(lambda r: pf.jvp(m, (r,), (r,))[1])(x),
    "grad": lambda m, x: pf.grad(lambda r: m(r).square().sum())(x[0]),
    "vmap(grad)": lambda m, x: pf.vmap(pf.grad(lambda r: m(r).square().sum()))(x),
    "jacfwd": lambda m, x: pf.jacfwd(m)(x[0]),
    "jacrev": lambda m, x: pf.jacrev(m)(x[0]),
    "hessian": lambda m, x: pf.hessian(lambda r: m(r).square().sum())(x[0]),
    "linearize": lambda m, x: pf.linearize(m, x[0])[1](x[1]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", MODULES)
def test_the_first_call_initialises_once_as_a_plain_call_does(name, transform):
    make, sizes = MODULES[name]
    x = torch.randn(5, *sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    plain = make()
    plain(x[0])
    after = torch.get_rng_state()
    torch.manual_seed(0)
    lazy = make()
    for _ in range(5):
        out = TRANSFORMS[transform](lazy, x)
        assert torch.equal(torch.get_rng_state(), after)
        torch.testing.assert_close(out, TRANSFORMS[transform](plain, x))
    for (key, p), (other, q) in zip(plain.state_dict().items(), lazy.state_dict().items(), strict=True):
        assert key == other
        assert torch.equal(p, q)
    assert {type(p) for p in lazy.parameters()} == {nn.Parameter}
    assert all(p.is_leaf and p.requires_grad for p in lazy.parameters())


def test_a_module_that_was_made_before_the_import_is_refused():
    program = """
import torch
lazy = torch.nn.LazyLinear(2)
import pushforward as pf
for transform in (lambda: pf.vmap(lazy)(torch.ones(3, 4)), lambda: pf.jvp(lazy, (torch.ones(4),), (torch.ones(4),))):
    try:
        transform()
    except pf.TransformError as e:
        print("Call it once before" in str(e))
lazy(torch.ones(4))
print(tuple(pf.vmap(lazy)(torch.ones(3, 4)).shape))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:3] == ["True", "True", "(3, 2)"], ran.stderr
