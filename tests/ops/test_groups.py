"""Products of groups of matrices, and of bytes."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch.nn.functional import grouped_mm

import pushforward as pf

BYTES = (torch.randint(-9, 9, (3, 17, 8), dtype=torch.int8), torch.randint(-9, 9, (3, 8, 16), dtype=torch.int8))
STACKS = (torch.randn(3, 4, 8, 16), torch.randn(3, 4, 16, 8))
ENDS = torch.tensor([[2, 4, 6, 8], [1, 2, 3, 8], [0, 8, 8, 8]], dtype=torch.int32)
CASES = {
    "bytes": (torch._int_mm, BYTES),
    "stacks": (grouped_mm, STACKS),
    "ends": (lambda a, b, ends: grouped_mm(a, b, offs=ends), (STACKS[0][:, 0], STACKS[1], ENDS)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_loop(name):
    f, given = CASES[name]
    for is_mapped in itertools.product((True, False), repeat=len(given)):
        if not any(is_mapped):
            continue
        args = [a if m else a[0] for a, m in zip(given, is_mapped, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pf.SlowFallback)
            got = pf.vmap(f, in_dims=tuple(0 if m else None for m in is_mapped))(*args)
        rows = [f(*[a[k] if m else a for a, m in zip(args, is_mapped, strict=True)]) for k in range(3)]
        torch.testing.assert_close(got, torch.stack(rows))


def test_derivatives_of_groups():
    a, b = STACKS[0][0], STACKS[1][0]
    da, db = STACKS[0][1], STACKS[1][1]
    torch.testing.assert_close(pf.jvp(grouped_mm, (a, b), (da, db))[1], da @ b + a @ db)
    f = lambda a: grouped_mm(a, b).square().sum()
    torch.testing.assert_close(pf.jvp(pf.grad(f), (a,), (da,))[1], 2 * (da @ b) @ b.mT)
    torch.testing.assert_close(pf.vmap(pf.grad(f))(STACKS[0]), torch.stack([2 * (a @ b) @ b.mT for a in STACKS[0]]))
