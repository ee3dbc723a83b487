"""The report: orders, modes, directions, state, cost."""

import pytest
import torch

import pushforward as pf
from pushforward.check import graph
from pushforward.testing import assert_derivatives


def real(*sizes, seed=0):
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Cube(torch.autograd.Function):
    """Right at the first order; its backward hides the second."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0].detach() ** 2


def test_order_two_finds_what_order_one_cannot():
    def function(x):
        return Cube.apply(x).sum() * 2

    assert pf.check(function, (real(4),)).ok
    report = pf.check(function, (real(4),), order=2)
    assert not report.ok, str(report)
    assert any(f.source.startswith("test_check.py:") for f in report.findings if f.wrong)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_orders_of_a_smooth_function(order):
    report = pf.check(lambda x: (x.sin() * x.sum()).exp().mean(), (real(4),), order=order)
    assert report.ok, str(report)
    assert report.evaluations <= 60
    assert sum("⟨w, Hv⟩" in r.what for r in report.rows) == order - 1


def test_order_two_of_a_network():
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Softplus(), torch.nn.Linear(5, 1)).double()
    report = pf.check(net, (real(4, 3),), order=2)
    assert report.ok, str(report)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_one_mode_only(mode):
    report = pf.check(torch.sin, (real(3),), modes=(mode,))
    assert report.ok
    assert {r.what.split()[0] for r in report.rows} == {mode}


def test_given_directions_are_used():
    def function(x):
        return torch.stack([x[0] ** 2, x[1] * x[1].detach()])

    x = real(2)
    first, second = torch.eye(2, dtype=torch.float64)
    assert pf.check(function, (x,), (first,)).ok
    assert not pf.check(function, (x,), (second,)).ok
    assert pf.check(function, (x,), cotangents=first, modes=("reverse",)).ok


def test_pytrees_of_inputs_and_outputs():
    def function(d, y):
        return {"a": d["w"] * y, "b": (y.sum(), d["n"])}

    assert pf.check(function, ({"w": real(3), "n": 4}, real(3, seed=1))).ok


def test_arguments_that_do_not_fit():
    with pytest.raises(pf.ArgumentError, match="order"):
        pf.check(torch.sin, (real(3),), order=0)
    with pytest.raises(pf.ArgumentError, match="modes"):
        pf.check(torch.sin, (real(3),), modes=("sideways",))
    with pytest.raises(pf.ArgumentError, match="no floating-point"):
        pf.check(lambda x: x, (torch.arange(3),))
    with pytest.raises(pf.ArgumentError, match=r"primals\[0\] has shape \[3\]"):
        pf.check(torch.sin, (real(3),), (real(4),))
    with pytest.raises(pf.ArgumentError, match="cotangents"):
        pf.check(torch.sin, (real(3),), cotangents=real(4))


def test_a_function_that_fails_is_reported():
    report = pf.check(lambda x: x @ torch.ones(7, dtype=torch.float64), (real(3),))
    assert not report.ok
    assert "the function itself fails" in report.findings[0].message
    assert report.findings[0].source.startswith("test_check.py:")


def test_check_leaves_the_world_as_it_was():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x = torch.randn(6, 3)
    kept = x.clone()
    state = torch.get_rng_state()
    pf.check(net, (x,))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    for k, v in net.state_dict().items():
        assert torch.equal(v, before[k]), k
    assert all(p.grad is None for p in net.parameters())


def test_function_that_writes_into_its_input():
    def function(x):
        x = x.mul_(2)
        return x.sin()

    x = real(3)
    kept = x.clone()
    report = pf.check(function, (x,))
    assert torch.equal(x, kept)
    assert report.findings
    assert report.findings[0].source.startswith("test_check.py:")


def test_report_reads_like_a_page():
    report = pf.check(lambda x: x * x.detach(), (real(3),))
    text = str(report)
    assert "DERIVATIVES ARE WRONG" in text
    assert "lost-derivative: `.detach()` at test_check.py:" in text
    assert max(len(line) for line in text.splitlines()) <= 150
    with pytest.raises(pf.WrongDerivativeError, match="lost-derivative"):
        report.raise_if_wrong()


def test_assert_derivatives():
    assert assert_derivatives(torch.tanh, real(3), order=2).ok
    with pytest.raises(AssertionError, match=r"pow|detach"):
        assert_derivatives(lambda x: Cube.apply(x), real(3), order=2)


def test_intermediate_values_are_walked_in_chunks(monkeypatch):
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.kept.cos()

    def function(x):
        for _ in range(12):
            x = x.tanh() + x
        h = x * 1.5
        y = Keeps.apply(h)
        h.add_(1.0)
        return y + h

    monkeypatch.setattr(graph, "CHUNKS", 20)
    monkeypatch.setattr(graph.Keyed.__init__, "__defaults__", (0, 8 * 5 * 12))
    report = pf.check(function, (real(5),))
    (found,) = [f for f in report.findings if f.wrong]
    assert found.operator == "add_"
    assert "Keeps" in found.message


def test_methods_bound_before_the_check_are_whole():
    bound = Cube.apply
    report = pf.check(lambda x: bound(x).sum(), (real(3),))
    assert report.ok, str(report)


@pytest.mark.slow
def test_transformer_block_of_twelve_million_parameters():
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(1024, 8, 4096, dropout=0.0, batch_first=True)
    assert sum(p.numel() for p in block.parameters()) > 12_000_000
    report = pf.check(block, (torch.randn(1, 16, 1024),))
    assert report.ok, str(report)
    assert report.evaluations <= 60
    assert report.seconds < 30
