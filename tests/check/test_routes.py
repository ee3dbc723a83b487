"""The routes compared: what runs, what is refused, how far off each is."""

import json

import pytest
import torch

import pushforward as pf


def simulation(p):
    """An explicit scheme: 6 parameters, 40 outputs."""
    y = torch.zeros(8, dtype=p.dtype)
    out = []
    for _ in range(5):
        y = y + 0.1 * torch.tanh(p.repeat(2)[:8] - y * y)
        out.append(y)
    return torch.cat(out)


@pytest.fixture(scope="module")
def report():
    return pf.routes(simulation, (torch.linspace(-1, 1, 6),), rounds=3)


def test_exact_routes_agree_with_the_reference(report):
    for name in ("pf.jvp", "torch.autograd.functional.jvp", "double backward by hand", "torch.func.jvp"):
        assert not report[name].refused, report[name].refused
        assert report[name].error < 1e-5
        assert report[name].seconds > 0
        assert report[name].peak_bytes > 0
        assert report[name].differentiable


def test_what_each_route_asks_for(report):
    assert not report["pf.jvp"].needs_requires_grad
    assert report["double backward by hand"].needs_requires_grad
    assert report["double backward by hand"].peak_bytes > report["pf.jvp"].peak_bytes


def test_differences_err_both_ways(report):
    best = min(report.central_errors)
    assert report.central_errors[0] > 10 * best
    assert report.central_errors[-1] > 10 * best
    assert min(report.central_errors) < min(report.forward_errors)


def test_table_dictionary_and_picture(report, tmp_path):
    text = str(report)
    assert "6 inputs, 40 outputs, float32" in text
    for r in report.routes:
        assert r.name in text
    assert json.loads(json.dumps(report.to_dict()))["routes"][0]["name"] == "pf.jvp"
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "routes.png")
    assert (tmp_path / "routes.png").stat().st_size > 10_000


def test_refusals_say_why():
    class OnlyBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    found = pf.routes(lambda x: OnlyBackward.apply(x) * 2, (torch.ones(3),), rounds=2)
    assert not found["pf.jvp"].refused
    assert found["pf.jvp"].error < 1e-5
    assert "RuntimeError" in found["torch.func.jvp"].refused
    assert "refused" in str(found)


def test_pytrees_and_given_tangents():
    inputs = ({"a": torch.ones(3), "n": 2}, torch.ones(3))
    tangents = ({"a": torch.zeros(3), "n": None}, torch.tensor([1.0, 0.0, 0.0]))
    found = pf.routes(lambda d, y: {"out": d["a"] * y * d["n"]}, inputs, tangents, rounds=2)
    assert found["pf.jvp"].error < 1e-6


def test_nothing_to_differentiate():
    with pytest.raises(pf.ArgumentError, match="no floating-point"):
        pf.routes(lambda x: x, (torch.arange(3),))
