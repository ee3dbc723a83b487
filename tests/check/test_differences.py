"""Differences: their accuracy, and that the bounds hold."""

import math

import pytest
import torch

from pushforward.check.differences import STEP, base_step, central, gap, one_sided, quality
from pushforward.check.subject import subject_of, wide_subject_of


def real(*sizes, seed=0):
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


FUNCTIONS = {
    "sin": (torch.sin, torch.cos),
    "exp": (torch.exp, torch.exp),
    "fast": (lambda x: torch.sin(200 * x), lambda x: 200 * torch.cos(200 * x)),
    "tiny": (lambda x: 1e-9 * x**3, lambda x: 3e-9 * x**2),
    "large": (lambda x: 1e9 + x**2, lambda x: 2 * x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_bound_covers_the_error(name, scale):
    if name in ("exp", "fast") and scale > 1:
        pytest.skip("overflows or turns too fast")
    function, derivative = FUNCTIONS[name]
    x = scale * real(20)
    v = scale * real(20, seed=1)
    subject = subject_of(function, (x,))
    found = central(subject, [v], STEP * base_step([x], [v]))
    error = (found.values[0] - derivative(x) * v).abs()
    assert bool((error <= 4 * found.bounds[0] + 1e-300).all())


def test_central_differences_are_good_to_nine_digits():
    x, v = real(50), real(50, seed=1)
    found = central(subject_of(torch.tanh, (x,)), [v], STEP)
    exact = (1 - torch.tanh(x) ** 2) * v
    assert float((found.values[0] - exact).abs().max()) < 1e-9
    assert quality(found) < 1e-7


@pytest.mark.parametrize("side", [1, -1])
def test_one_sided_differences_stay_on_their_side(side):
    def function(x):
        return torch.where(side * x >= 0, x.exp(), torch.full_like(x, math.nan))

    x, v = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    found = one_sided(subject_of(function, (x,)), [v], 1e-4, side)
    assert float((found.values[0] - 1).abs().max()) < 1e-7


def test_gap_names_the_leaf():
    x = real(4)
    subject = subject_of(lambda x: (x.sin(), {"a": x.cos()}), (x,))
    v = real(4, seed=1)
    found = central(subject, [v], STEP)
    right = [x.cos() * v, -x.sin() * v]
    assert gap(right, found)[0]
    agrees, off, leaf = gap([right[0], right[1] * 1.01], found)
    assert not agrees
    assert off == pytest.approx(0.01, rel=0.1)
    assert leaf == 1
    assert subject.output_names == ["output[0]", "output[1]['a']"]


def test_complex_leaves_are_real_directions():
    z = torch.complex(real(3), real(3, seed=1))
    v = torch.complex(real(3, seed=2), real(3, seed=3))
    subject = subject_of(torch.exp, (z,))
    found = central(subject, [v], STEP)
    assert gap([z.exp() * v], found)[0]


def test_sizes_zero_and_one():
    for n in (0, 1):
        x, v = real(n), real(n, seed=1)
        found = central(subject_of(torch.sin, (x,)), [v], STEP)
        assert gap([x.cos() * v], found)[0]


def test_float64_copy_widens_captured_tensors_and_factories():
    weight = torch.randn(3, 3)
    seen = []

    def function(x):
        buffer = torch.zeros(3)
        buffer[0] = x[0]
        y = torch.nn.functional.linear(x, weight) + buffer + x.float()
        seen.append(y.dtype)
        return y

    x = torch.randn(3)
    wide = wide_subject_of(function, (x,))
    out = wide.values(wide.point)[0]
    assert seen == [torch.float64]
    expected = weight.double() @ x.double() + x.double()
    expected[0] += x[0].double()
    assert torch.allclose(out, expected, rtol=1e-14)
    assert weight.dtype is torch.float32
    assert torch.get_default_dtype() is torch.float32


def test_module_is_copied_into_float64():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    wide = wide_subject_of(module, (torch.randn(5, 3),))
    assert {x.dtype for x in wide.point} == {torch.float64}
    assert len(wide.point) == 5
    wide.values(wide.point)
    assert module[0].weight.dtype is torch.float32
    assert int(module[1].num_batches_tracked) == 0
