"""`debug_nans`: the first operator, its role, the line, in every nesting."""

import inspect

import pytest
import torch

import pushforward as pf

F = torch.nn.functional
zeros = torch.zeros(2)
ones = torch.ones(2)


def here(offset):
    return f"test_nans.py:{inspect.currentframe().f_back.f_lineno + offset}"


def caught(run):
    with pytest.raises(pf.NanError) as found, pf.debug_nans():
        run()
    return found.value


CASES = {
    "plain value": (lambda: torch.log(-ones), "value", "log"),
    "division": (lambda: (zeros / zeros) + 1, "value", "div"),
    "in place": (lambda: ones.clone().sub_(1).log_(), "value", "log_"),
    "vmap": (lambda: pf.vmap(torch.log)(-ones), "value", "log"),
    "tangent": (lambda: pf.jvp(torch.sqrt, (zeros,), (ones,)), "tangent", "sqrt"),
    "cotangent": (lambda: pf.grad(lambda x: x.sqrt().sum())(zeros), "cotangent", "SqrtBackward0"),
    "vmap of grad": (lambda: pf.vmap(pf.grad(torch.sqrt))(zeros), "cotangent", "SqrtBackward0"),
    "grad of vmap": (lambda: pf.grad(lambda x: pf.vmap(torch.sqrt)(x).sum())(zeros), "cotangent", "SqrtBackward0"),
    "jvp of jvp": (
        lambda: pf.jvp(lambda x: pf.jvp(lambda x: x**1.5, (x,), (ones,))[1], (zeros,), (ones,)),
        "tangent",
        None,
    ),
    "jvp of grad": (lambda: pf.jvp(pf.grad(lambda x: (x**1.5).sum()), (zeros,), (ones,)), None, None),
    "vmap of jvp": (lambda: pf.vmap(lambda x: pf.jvp(torch.sqrt, (x,), (torch.ones(()),)))(zeros), "tangent", "sqrt"),
    "backward": (lambda: torch.zeros(2, requires_grad=True).sqrt().sum().backward(), "cotangent", "SqrtBackward0"),
    "jacrev": (lambda: pf.jacrev(lambda x: x.norm())(zeros), "cotangent", None),
    "softmax of a masked row": (lambda: torch.softmax(torch.full((2, 2), float("-inf")), -1), "value", "_softmax"),
}


@pytest.mark.parametrize("name", CASES)
def test_role_and_operator(name):
    run, role, operator = CASES[name]
    error = caught(run)
    assert role in (None, error.role)
    assert operator in (None, error.operator)
    assert error.source.startswith("test_nans.py:")


def test_line_of_a_value_and_of_a_cotangent():
    def function(x):
        y = x * 2
        z = y.sqrt()
        return (z + 1).sum()

    line = here(-3)
    assert caught(lambda: function(-ones)).source == line
    assert caught(lambda: pf.grad(function)(zeros)).source == line
    assert caught(lambda: pf.jvp(function, (zeros,), (ones,))).source == line


def test_line_within_a_custom_backward():
    class Inverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g / (ctx.saved_tensors[0] * 0)

    line = here(-2)
    assert caught(lambda: pf.grad(lambda x: Inverse.apply(x).sum())(ones)).source == line


def test_range_of_the_inputs():
    text = str(caught(lambda: torch.log(torch.tensor([3.0, -2.0, 0.0]))))
    assert "shape [3], from -2 to 3, 1 of 3 are 0" in text
    assert "1 of 3 elements" in text
    assert "[1]" in text


def test_masks_and_uninitialised_memory_are_no_finding():
    with pf.debug_nans():
        scores = torch.randn(2, 3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf"))
        torch.softmax(scores, -1)
        q = torch.randn(1, 2, 4, 8)
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch.empty(100).fill_(float("inf")).fill_(0)
        assert torch.isinf(torch.full((2,), float("inf"))).all()


def test_infinities_can_be_allowed():
    with pf.debug_nans(infinities=False):
        assert torch.isinf(torch.log(zeros)).all()
        with pytest.raises(pf.NanError):
            torch.log(-ones)


def test_nothing_stays_behind():
    with pf.debug_nans():
        pass
    assert torch.isnan(torch.log(-ones)).all()


def test_check_names_what_overflows_only_in_the_type_given():
    report = pf.check(lambda x: (x * 1e25) ** 2 / 1e50, (torch.tensor([1.0, 2.0]),))
    assert report.rows
    assert any(f.kind in ("rounding", "nan") for f in report.findings), str(report)
