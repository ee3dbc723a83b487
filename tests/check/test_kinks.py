"""Kinks: found, measured, told from errors."""

import pytest
import torch

import pushforward as pf


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def kinks_of(report):
    return [f for f in report.findings if f.kind == "kink"]


def test_one_sided_derivatives_at_a_kink():
    report = pf.check(torch.relu, (vector(0.0, 1.0),), (vector(1.0, 0.0),), vector(1.0, 0.0))
    (kink,) = kinks_of(report)
    assert report.ok
    assert kink.details["reach"] == 0.0
    assert "from the left 0, from the right 1" in kink.message
    assert "forward mode gives 0 (the left one)" in kink.message
    assert "reverse mode gives 0 (the left one)" in kink.message
    assert "moved by" in kink.message


def test_modes_that_differ_at_a_kink_are_told():
    class Right(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clamp(min=0)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g * (ctx.saved_tensors[0] >= 0)

        @staticmethod
        def jvp(ctx, t):
            return t * (ctx.saved_tensors[0] > 0)

    report = pf.check(lambda x: Right.apply(x) + x.abs(), (vector(0.0, 1.0),), (vector(1.0, 0.0),), vector(1.0, 0.0))
    assert report.ok, str(report)
    text = kinks_of(report)[0].message
    assert "from the left -1, from the right 2" in text
    assert "forward mode gives 0 (between them)" in text
    assert "reverse mode gives 1 (between them)" in text


def test_distance_and_step_of_a_near_kink():
    report = pf.check(lambda x: (x - 0.5).abs(), (vector(0.5 + 1e-6, 2.0),), (vector(1.0, 0.0),))
    (kink,) = kinks_of(report)
    assert report.ok
    assert kink.operator == "abs"
    assert kink.details["elements"] == 1
    assert kink.details["margin"] == pytest.approx(1e-6, rel=1e-6)
    assert kink.details["reach"] == pytest.approx(1e-6, rel=1e-6)
    assert "smaller step" in kink.message
    assert kink.source.startswith("test_kinks.py:")


def test_comparison_from_one_side():
    report = pf.check(lambda x: (x - 0.5).abs(), (vector(0.5 + 1e-12, 2.0),), (vector(1.0, 0.0),))
    assert report.ok
    assert "from the right side" in kinks_of(report)[0].message


def test_python_branch_is_a_kink():
    def function(x):
        if float(x.detach().sum()) > 0:
            return x * 2
        return x * x.cos()

    report = pf.check(function, (vector(0.5, -0.5 + 2e-9),))
    (kink, *_) = kinks_of(report)
    assert report.ok, str(report)
    assert "another way" in kink.message


def test_boolean_branch_is_a_kink():
    def function(x):
        if x.sum() > 0:
            return x * 2
        return x * 3

    report = pf.check(function, (vector(0.5, -0.5 + 1e-9),))
    assert report.ok, str(report)
    assert {k.operator for k in kinks_of(report)} & {"gt", "if / while"}


def test_wrong_rule_beside_a_kink_is_still_found():
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    report = pf.check(lambda x: Half.apply(torch.relu(x)) + x, (vector(1e-7, 1.0, 0.0),))
    assert not report.ok
    assert any(f.kind == "wrong-rule" and f.operator == "Half" for f in report.findings)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x.floor() + x, vector(1.0 + 1e-8, 2.5)),
        (lambda x: torch.remainder(x, 1.0), vector(1.0 - 1e-8, 0.5)),
        (lambda x: x.clamp(-1, 1), vector(1.0, -1.0 + 1e-8, 0.3)),
        (lambda x: torch.linalg.vector_norm(x, float("inf")), vector(1.0, 1.0 - 1e-8, 0.1)),
        (lambda x: x.amax(0), vector(1.0, 1.0 - 1e-8, 0.1)),
        (lambda x: torch.nn.functional.hardtanh(x), vector(1.0, 0.5)),
        (lambda x: torch.nn.functional.elu(x, 0.5), vector(1e-8, 0.5)),
        (lambda x: torch.nn.functional.max_pool1d(x[None, None], 2)[0, 0], vector(1.0, 1.0 + 1e-8, 0.5, 0.2)),
        (lambda x: x.cummax(0).values, vector(1.0, 1.0 + 1e-8, 0.5)),
        (lambda x: torch.cdist(x[None, :1], x[None, 1:], p=1), vector(1.0, 1.0 + 1e-8)),
    ],
)
def test_every_kind_of_kink_explains_itself(function, x):
    report = pf.check(function, (x,))
    assert report.ok, str(report)


def test_agreement_across_a_harmless_kink_needs_no_words():
    report = pf.check(lambda x: torch.where(x > 0, x, x * 1.0), (vector(1e-9, 1.0),))
    assert report.ok
    assert not report.findings


def test_narrow_type_explains_its_large_step():
    report = pf.check(lambda x: torch.relu(x - 0.3), (torch.tensor([0.3001, 1.0]),))
    assert report.ok
    (kink,) = kinks_of(report)
    assert "need a large step" in kink.message


class Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] > 0)


def test_kink_inside_of_a_function_of_the_user():
    for x in (vector(0.0, 1.0), vector(1e-8, 1.0)):
        report = pf.check(lambda x: Rectify.apply(x) * 2, (x,))
        assert report.ok, str(report)
        assert any(k.operator in ("clamp", "Rectify") for k in kinks_of(report))


def test_kink_of_an_operator_without_known_decisions():
    @torch.library.custom_op("check_tests::hidden_abs", mutates_args=())
    def hidden_abs(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(abs(x.detach().numpy()))

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    hidden_abs.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].sign().add(1e-300).sign(), setup_context=setup)
    report = pf.check(lambda x: hidden_abs(x) * 3, (vector(0.0, 1.0),))
    assert report.ok, str(report)
    (kink,) = kinks_of(report)
    assert "hidden_abs" in kink.operator
    assert kink.source.startswith("test_kinks.py:")
    assert not pf.check(lambda x: hidden_abs(x) * x.detach(), (vector(0.0, 1.0),)).ok
