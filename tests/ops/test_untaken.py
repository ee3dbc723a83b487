"""What the readings of autograd's nodes say of dead elements: never that a live one is dead.

Each operator of torch's database goes through `where` with random masks. With hooks put on the graph although nothing is
NaN, gradients must be those of torch's engine: a mask that covers too much would set a slope to zero.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from pushforward.core import untaken
from pushforward.core.dead import READINGS, SELECTING

Tensor = torch.Tensor
D = torch.float64
OPERATORS = [op for op in op_db if op.supports_autograd and D in op.dtypes]


def masks(shape, seed):
    """Whether each element is taken: by element, by row, by column."""
    generator = torch.Generator().manual_seed(seed)
    if not shape:
        return torch.tensor(seed % 2 == 0)
    if seed % 3 == 0:
        return torch.rand(shape, generator=generator) > 0.5
    if seed % 3 == 1:
        return (torch.rand(shape[0], generator=generator) > 0.5).reshape(-1, *[1] * (len(shape) - 1))
    return torch.rand(shape[-1], generator=generator) > 0.5


def masked_sum(out, seed):
    """A weighted sum of what a mask leaves of the outputs."""
    total = 0
    for o in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(o, Tensor) and o.requires_grad and o.layout is torch.strided:
            taken = torch.where(masks(o.shape, seed), o, 0)
            real = torch.view_as_real(taken.resolve_conj()).sum(-1) if taken.is_complex() else taken
            total = total + (real * torch.rand(real.shape, dtype=D, generator=torch.Generator().manual_seed(seed))).sum()
    return total


def inputs_of(sample):
    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]


def same(expected, got):
    """Equal where torch's is finite."""
    for p, q in zip(expected, got, strict=True):
        if (p is None) != (q is None):
            return False
        if p is not None and p.layout is torch.strided:
            fine = torch.isfinite(p)
            if not torch.allclose(p[fine], q[fine], rtol=1e-8, atol=1e-10):
                return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_no_live_element_is_called_dead(part, monkeypatch):
    wrong, compared = [], 0
    monkeypatch.setattr(untaken, "finite", lambda grads: False)
    for op in OPERATORS[part::8]:
        samples = itertools.islice(op.sample_inputs("cpu", D, requires_grad=True), 2)
        for seed, sample in enumerate(samples, len(op.name)):
            leaves = inputs_of(sample)
            try:
                torch.manual_seed(0)
                y = masked_sum(op(sample.input, *sample.args, **sample.kwargs), seed)
                if not isinstance(y, Tensor) or not leaves:
                    continue
                expected = torch.autograd.grad(y, leaves, retain_graph=True, allow_unused=True)
            except (RuntimeError, NotImplementedError):  # an operator that torch cannot differentiate here
                continue
            got = untaken.run_backward((y,), (torch.ones_like(y),), True, False, tuple(leaves))
            compared += 1
            if not same(expected, got):
                wrong.append((op.name, seed))
    assert not wrong
    assert compared > 50


def test_torch_names_its_nodes_as_expected():
    names = {made.__name__ for made in READINGS}
    assert {"WhereBackward0", "MaskedFillBackward0", "MaskedFillBackward1", "IndexPutBackward0"} <= {
        made.__name__ for made in SELECTING
    }
    for name in ("SinBackward0", "MulBackward0", "MmBackward0", "ViewBackward0", "SumBackward1", "SoftmaxBackward0"):
        assert name in names
    readings = {made.__name__: reading for made, reading in READINGS.items()}
    assert readings["MulBackward0"].again is not None
    assert readings["MmBackward0"].factors
    assert readings["AddBackward0"].exact
    assert not readings["SoftmaxBackward0"].exact
