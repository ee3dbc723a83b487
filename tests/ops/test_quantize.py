"""Fake quantisation: values bit for bit as in a loop, straight-through derivatives, and torch's own formulas where they are learnt."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch.ao.quantization import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

import pushforward as pf

aten = torch.ops.aten
BOUNDS = (0, 63)
LANES = 3


@pytest.fixture(autouse=True)
def _nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        yield


def tensor_numbers(x, scale, zero):
    on = torch.ones(1)
    return aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, scale, zero, on, *BOUNDS)


def channels(x, scale, zero):
    return aten.fake_quantize_per_channel_affine_cachemask(x, scale, zero, 1, *BOUNDS)


def channels_between(x, scale, zero):
    return aten.fake_quantize_per_channel_affine_cachemask(x, scale, zero.float() + 0.3, 1, *BOUNDS)


def learnt(x, scale, zero):
    return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero.float() + 0.4, *BOUNDS, 0.5)


def learnt_channels(x, scale, zero):
    return torch._fake_quantize_learnable_per_channel_affine(x, scale, zero.float() + 0.4, 1, *BOUNDS, 0.5)


def numbers(size, seed=0):
    g = torch.Generator().manual_seed(seed)
    scale = 0.01 + 0.1 * torch.rand(LANES, size, generator=g)
    return scale, torch.randint(0, 9, (LANES, size), dtype=torch.int32, generator=g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("f", [tensor_numbers, channels, channels_between, learnt, learnt_channels])
def test_values_are_those_of_the_loop_bit_for_bit(f, dtype):
    x = (3 * torch.randn(LANES, 5, 6, generator=torch.Generator().manual_seed(1))).to(dtype)
    x[0, 0, 0], x[1, 1, 1] = float("nan"), float("inf")
    given = (x, *numbers(6 if "channels" in f.__name__ else 1))
    for is_mapped in itertools.product((True, False), repeat=3):
        if not any(is_mapped):
            continue
        args = [a if m else a[0] for a, m in zip(given, is_mapped, strict=True)]
        got = pf.vmap(f, in_dims=tuple(0 if m else None for m in is_mapped))(*args)
        rows = [f(*[a[k] if m else a for a, m in zip(args, is_mapped, strict=True)]) for k in range(LANES)]
        if isinstance(got, torch.Tensor):
            got, rows = (got,), [(r,) for r in rows]
        for g, column in zip(got, zip(*rows, strict=True), strict=True):
            assert torch.equal(g, torch.stack(column)), is_mapped


def test_lanes_that_are_switched_off():
    x, on = torch.randn(2, 4), torch.tensor([1, 0])
    scale, zero = torch.tensor([0.5]), torch.tensor([3])
    f = lambda x, on: aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, scale, zero, on, *BOUNDS)
    out, mask = pf.vmap(f)(x, on)
    assert torch.equal(out[0], f(x[0], on[0])[0])
    assert torch.equal(out[1], x[1])
    assert mask[1].all()


@pytest.mark.parametrize(
    ("f", "size"), [(torch._fake_quantize_learnable_per_tensor_affine, 1), (torch._fake_quantize_learnable_per_channel_affine, 6)]
)
def test_forward_mode_is_the_transpose_of_torch_where_scale_and_zero_are_learnt(f, size):
    torch.manual_seed(0)
    axis = () if size == 1 else (1,)
    at = (3 * torch.randn(5, 6), 0.05 + 0.1 * torch.rand(size), 9 * torch.rand(size) - 2)
    function = lambda *a: f(*a, *axis, -8, 31, 0.5)
    u, along = torch.randn(5, 6), tuple(torch.randn_like(a) for a in at)
    inputs = [a.clone().requires_grad_() for a in at]
    expected = torch.autograd.grad(function(*inputs), inputs, u)
    for k in range(3):
        one = tuple(v if j == k else torch.zeros_like(v) for j, v in enumerate(along))
        tangent = pf.jvp(function, at, one)[1]
        torch.testing.assert_close((tangent * u).sum(), (expected[k] * along[k]).sum(), rtol=1e-4, atol=1e-4)
    pulled = pf.vmap(lambda *a: pf.vjp(function, *a[:3])[1](a[3]))(*[torch.stack([a, a]) for a in (*at, u)])
    for got, e in zip(pulled, expected, strict=True):
        torch.testing.assert_close(got[1], e, rtol=1e-5, atol=1e-5)
    # the reverse formula, differentiated: against differences of it, in the scale, away from its steps
    pull = lambda s: pf.vjp(function, at[0], s, at[2])[1](u)[1]
    small = 1e-3 * at[1]
    inside = pf.jvp(pull, (at[1],), (small,))[1]
    x, (s, _) = at[0], (at[1], at[2])
    zero = (at[2] + 0.5).clamp(-8, 31).trunc() if size == 1 else at[2].round().clamp(-8, 31)
    place = torch.round(zero + x / s)
    slope = torch.where((place >= -8) & (place <= 31), x / s**2 * small, torch.zeros(())) * u * 0.5
    torch.testing.assert_close(inside, slope.sum().reshape(1) if size == 1 else slope.sum(0), rtol=1e-3, atol=1e-4)


def test_a_scale_that_is_not_learnt_has_no_derivative():
    scale = torch.tensor([0.1])
    f = lambda s: torch.fake_quantize_per_tensor_affine(torch.ones(3), s, torch.tensor([0], dtype=torch.int32), *BOUNDS)
    with pytest.raises(pf.NotDifferentiableError, match="scale"):
        pf.jvp(f, (scale,), (scale,))


OBSERVED = {
    "tensor": {"observer": MovingAverageMinMaxObserver, "quant_min": 0, "quant_max": 255},
    "channels": {
        "observer": MovingAveragePerChannelMinMaxObserver,
        "quant_min": -128,
        "quant_max": 127,
        "dtype": torch.qint8,
        "qscheme": torch.per_channel_symmetric,
        "ch_axis": 0,
    },
}


@pytest.mark.parametrize("which", OBSERVED)
def test_a_module_trained_for_quantisation(which):
    torch.manual_seed(0)
    x = torch.randn(4, 5)
    module = FakeQuantize(**OBSERVED[which])
    module(0.7 * x)  # so that some values are out of bounds
    module.disable_observer()
    loss = lambda x: (module(x) ** 3).sum()
    variable = x.clone().requires_grad_()
    gradient = torch.autograd.grad(loss(variable), variable, create_graph=True)[0]
    curved = torch.autograd.grad(gradient, variable, x)[0]
    gradient = gradient.detach()
    assert (gradient == 0).any()
    torch.testing.assert_close(pf.vmap(pf.grad(loss))(torch.stack([x, x]))[1], gradient)
    torch.testing.assert_close(pf.jvp(loss, (x,), (x,))[1], (gradient * x).sum())
    torch.testing.assert_close(pf.hvp(loss, (x,), (x,))[1], curved)
    torch.testing.assert_close(torch.einsum("abcd,cd->ab", pf.hessian(loss)(x), x), curved)
    torch.testing.assert_close(pf.vmap(lambda x: pf.hvp(loss, (x,), (x,))[1])(x[None])[0], curved)


def test_statistics_that_lanes_would_write_differently_are_refused():
    x = torch.randn(2, 3, 4)
    observing = FakeQuantize(**OBSERVED["tensor"])
    fused = FusedMovingAvgObsFakeQuantize()
    for module in (observing, fused):
        with pytest.raises(pf.CapturedWriteError):
            pf.vmap(module)(x)
    with pytest.raises(pf.CapturedWriteError):
        pf.jvp(fused, (x,), (x,))
