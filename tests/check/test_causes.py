"""The tools that look for causes, on functions without a fault: none of them accuses anybody."""

import warnings

import pytest
import torch

from pushforward.check.check import Examination
from pushforward.check.differences import STEP, base_step
from pushforward.check.graph import first_forward, first_reverse
from pushforward.check.kinks import beside
from pushforward.check.local import LocalCheck
from pushforward.check.losses import losses
from pushforward.check.repeat import repeated
from tests.check.right import KINKS, SMOOTH, built

ALL = {**SMOOTH, **KINKS}


def real(*sizes, seed=0):
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def prepared(name):
    made, inputs = ALL[name]
    examination = Examination(built(made), inputs, None, None, ("forward", "reverse"), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = examination.wide()
        repeated(subject, dict)
    direction = examination.direction(subject)
    cotangents = examination.weights(subject.values(subject.point))
    return subject, direction, cotangents, STEP * base_step(subject.point, direction)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(ALL))
def test_no_operator_of_a_right_function_is_suspected(name):
    subject, direction, _, _ = prepared(name)
    local = LocalCheck(reverse=True)
    subject.push(direction, local)
    assert not local.suspects


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_no_node_of_a_right_function_is_suspected(name):
    if name in ("newton", "shifted_logsumexp"):
        pytest.skip("a detached value moves, which is harmless there")
    subject, direction, cotangents, step = prepared(name)
    assert first_forward(subject, direction, step, None) is None
    found = first_reverse(subject, direction, cotangents, step, None)
    assert found is None or "carries no gradient" in found.message


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_no_event_of_a_right_function_is_blamed(name):
    subject, direction, _, step = prepared(name)
    found = losses(subject, direction, step, beside(subject.point, 1e-6, 1))
    assert found is None or name == "shifted_logsumexp" or not found.blamed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function",
    [
        lambda z: (z.conj() * z.exp()).abs(),
        lambda z: torch.fft.fft(z).conj() * z,
        lambda z: torch.view_as_real(z * 2j).sum(),
        lambda z: (z @ z.conj()).imag + z.angle(),
    ],
)
def test_complex_operators_are_judged_rightly(function):
    z = torch.complex(real(4), real(4, seed=1))
    examination = Examination(function, (z,), None, None, ("forward", "reverse"), 0)
    local = LocalCheck(reverse=True)
    examination.given.push(examination.direction(examination.given), local)
    assert not local.suspects
    assert examination.run(1).ok


@pytest.mark.filterwarnings("ignore")
def test_wrong_operator_in_place_is_found_and_repaired():
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g

    def function(x):
        y = x.sin()
        return Doubles.apply(y) * 3

    examination = Examination(function, (real(4),), None, None, ("forward", "reverse"), 0)
    report = examination.run(1)
    assert [f.operator for f in report.findings if f.wrong] == ["Doubles"], str(report)
