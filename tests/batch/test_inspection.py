"""Looking at traced values, and what happens to those that escape; errors leave nothing behind."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf
from pushforward.core.level import THREAD
from pushforward.core.torch_private import TorchDispatchMode, mode_count

D = torch.float64


@pytest.fixture
def x():
    return torch.arange(6.0, dtype=D).reshape(2, 3)


def look(into):
    def f(r):
        into.append((repr(r), f"{r}", str(r.sum())))
        print(r)
        torch.testing.assert_close(r, r.clone())
        assert not torch.isnan(r).any()
        return r * 2

    return f


def test_a_mapped_value_says_what_it_is(x, capsys):
    seen = []
    torch.testing.assert_close(pf.vmap(look(seen))(x), x * 2)
    shown, formatted, _ = seen[0]
    assert len(seen) == 1
    assert shown == formatted
    assert shown.startswith("<2 lanes of float64[3], stacked at dim 0: tensor([[0., 1., 2.]")
    assert "2 lanes" in capsys.readouterr().out
    pf.vmap(lambda r: seen.append(repr(torch.zeros(2))) or r)(x)
    assert seen[-1] == "<uniform over 2 lanes: tensor([0., 0.])>"


def test_a_dual_number_says_what_it_is(x):
    seen = []
    pf.jvp(lambda r: seen.append(repr(r)) or r, (x[0],), (x[1],), strict=True)
    assert seen == [
        "<dual: primal tensor([0., 1., 2.], dtype=torch.float64), tangent tensor([3., 4., 5.], dtype=torch.float64)>",
    ]
    pf.vmap(lambda r: pf.jvp(lambda z: seen.append(repr(z)) or z, (r,), (r,))[1])(x)
    assert seen[1].startswith("<dual: primal <2 lanes of float64[3]")


def test_an_escaped_dual_number_names_its_transform(x):
    kept = []

    def model(r):
        kept.append(r * 2)
        return r

    pf.jvp(model, (x[0],), (x[1],))
    line = model.__code__.co_firstlineno
    with pytest.raises(pf.EscapedValueError, match=rf"jvp of model \(test_inspection.py:{line}\), which has ended"):
        kept[0] + 1


def test_an_escaped_mapped_value_is_the_stack_of_its_lanes(x):
    kept = []
    pf.vmap(lambda r: kept.append(r.sin()) or r)(x)
    with pytest.warns(pf.EscapedValue, match="the stack of its lanes"):
        torch.testing.assert_close(kept[0] + 0, x.sin())


def sample(r):
    b = torch.zeros(3, dtype=D)
    b[0] = r[0]
    y = (r.sin() * b.sum() + r.exp()).cumsum(0)
    if y.sum() > 5:
        y = y * 2
    w = y.clone().requires_grad_()
    g = torch.autograd.grad((w * w).sum(), w)[0]
    return torch.linalg.norm(g) + pf.grad(lambda z: (z**3).sum())(r).sum() + pf.jvp(torch.tanh, (r,), (r,))[1].sum()


class Stop(Exception):
    pass


class Failing(TorchDispatchMode):
    """Raises at the k-th operator."""

    def __init__(self, k):
        super().__init__()
        self.left = k

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left < 0:
            raise Stop
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("transform", ["vmap", "jvp", "vmap of grad", "jvp of vmap", "grad of vmap"])
def test_an_error_at_any_operator_leaves_no_level_behind(transform, x):
    calls = {
        "vmap": lambda: pf.vmap(sample)(x),
        "jvp": lambda: pf.jvp(sample, (x[0],), (x[1],))[1],
        "vmap of grad": lambda: pf.vmap(pf.grad(sample))(x),
        "jvp of vmap": lambda: pf.jvp(pf.vmap(sample), (x,), (x,))[1],
        "grad of vmap": lambda: pf.grad(lambda z: pf.vmap(sample)(z).sum())(x),
    }
    call = calls[transform]
    want = call()
    for k in range(10_000):
        try:
            with Failing(k):
                call()
        except Stop:
            assert THREAD.levels == []
            assert THREAD.order == 0
            assert mode_count() == 0
        else:
            break
    assert k > 20
    torch.testing.assert_close(call(), want)
