"""Normalisations: every mapped argument, every composition to second order, third derivatives, running statistics."""

import math

import pytest
import torch

import pushforward as pf
from tests.ops.orders import check_orders, weighted
from tests.ops.subsets import check_no_lanes, check_subsets

F = torch.nn.functional
D = torch.float64


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


W4, B4 = real(4, seed=1), real(4, seed=2)
MEAN, VAR = real(4, seed=3), real(4, seed=4).square() + 0.5

NORMS = {
    "layer": lambda x, w, b: F.layer_norm(x, (4,), w, b, 0.1),
    "layer of two dimensions": lambda x, w, b: F.layer_norm(
        x.reshape(3, 2, 2), (2, 2), w.reshape(2, 2), b.reshape(2, 2)
    ),
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=0.1),
    "batch with positions": lambda x, w, b: (
        F.batch_norm(x.t().reshape(2, 4, 3)[:1].expand(2, 4, 3) * x[0, 0], None, None, w, b, True)
        if x.shape == (6, 4)
        else F.batch_norm(x.reshape(3, 4, 1).expand(3, 4, 2) * torch.arange(1.0, 3, dtype=D), None, None, w, b, True)
    ),
    "batch in evaluation": lambda x, w, b: F.batch_norm(x, MEAN, VAR, w, b, training=False, eps=0.1),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b, 0.1),
    "instance": lambda x, w, b: F.instance_norm(x.reshape(1, 4, 3), None, None, w, b, eps=0.1),
    "rms": lambda x, w, b: F.rms_norm(x, (4,), w, 0.1) + b,
}


@pytest.mark.parametrize("name", NORMS)
def test_orders(name):
    norm = NORMS[name]
    check_orders(lambda x: weighted(norm(x[:3], x[3], x[4])), real(5, 4))


@pytest.mark.parametrize("name", NORMS)
def test_subsets(name):
    check_subsets(NORMS[name], real(3, 4), W4, B4)
    check_no_lanes(NORMS[name], real(3, 4), W4, B4)


def all_gradients(norm):
    def gradients(x, w, b):
        return pf.grad(lambda *a: weighted(norm(*a)), argnums=(0, 1, 2))(x, w, b)

    return gradients


@pytest.mark.parametrize("name", NORMS)
def test_gradients_by_subsets(name):
    check_subsets(all_gradients(NORMS[name]), real(3, 4), W4, B4, tolerance=1e-10)


@pytest.mark.parametrize("name", ["layer", "batch", "group", "instance", "batch in evaluation"])
def test_third_order(name):
    """Every nesting of three differentiations along a curve, against a central difference of the second."""
    norm, w = NORMS[name], real(3, 4, seed=5)
    a, b, c = real(3, 4, seed=6), real(3, 4, seed=7), real(3, 4, seed=8)

    def f(t):
        return (norm(a + t * b + t * t * c, W4, B4).reshape(3, 4) * w).sum()

    def forward(g):
        return lambda t: pf.jvp(g, (t,), (torch.ones_like(t),))[1]

    at, h = torch.tensor(0.3, dtype=D), 1e-4
    plain = lambda t: torch.autograd.grad(f(t), t)[0]
    first = [plain((at + k * h).requires_grad_()) for k in (-1, 0, 1)]
    expected = (first[0] - 2 * first[1] + first[2]) / h**2
    for kinds in [(p, q, r) for p in (forward, pf.grad) for q in (forward, pf.grad) for r in (forward, pf.grad)]:
        got = kinds[0](kinds[1](kinds[2](f)))(at)
        assert math.isclose(got, expected, rel_tol=1e-4, abs_tol=1e-4), kinds


def test_statistics_have_tangents():
    """All results of the operators themselves: mean and rstd too."""
    x, v, h = real(3, 4), real(3, 4, seed=9), 1e-6
    for f in (
        lambda z: torch.native_layer_norm(z, (4,), W4, B4, 0.1),
        lambda z: torch.native_batch_norm(z, W4, B4, None, None, True, 0.1, 0.1),
        lambda z: torch.native_group_norm(z, W4, B4, 3, 4, 1, 2, 0.1),
    ):
        for t, high, low in zip(pf.jvp(f, (x,), (v,))[1], f(x + h * v), f(x - h * v), strict=True):
            torch.testing.assert_close(t, (high - low) / (2 * h), rtol=1e-5, atol=1e-7)


def test_half_precision():
    """Statistics of half precision are those of torch's kernels."""
    x, v = real(3, 4).bfloat16(), real(3, 4, seed=9).bfloat16()
    out, tangent = pf.jvp(lambda z: F.layer_norm(z, (4,)), (x,), (v,))
    assert out.dtype is tangent.dtype is torch.bfloat16
    wide = pf.jvp(lambda z: F.layer_norm(z, (4,)), (x.float(),), (v.float(),))[1]
    torch.testing.assert_close(tangent.float(), wide, rtol=2e-2, atol=2e-2)


# -- running statistics -----------------------------------------------------------------------------------------------


def module():
    return torch.nn.BatchNorm1d(4).double()


DIFFERENTIATED = {
    "grad": lambda m, x: pf.grad(lambda z: m(z).pow(3).sum())(x),
    "jvp": lambda m, x: pf.jvp(m, (x,), (x,)),
    "forward over reverse": lambda m, x: pf.jvp(pf.grad(lambda z: m(z).pow(3).sum()), (x,), (x,)),
    "reverse over reverse": lambda m, x: pf.grad(lambda y: pf.grad(lambda z: m(z).pow(3).sum())(y).sum())(x),
    "forward over forward": lambda m, x: pf.jvp(lambda z: pf.jvp(m, (z,), (x,))[1], (x,), (x,)),
    "reverse over forward": lambda m, x: pf.grad(lambda z: pf.jvp(m, (z,), (x,))[1].pow(2).sum())(x),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_one_update_per_call(name):
    """The buffers of a module in training end as after one eager call, and are plain tensors."""
    x, m, eager = real(5, 4), module(), module()
    eager(x)
    DIFFERENTIATED[name](m, x)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(m.state_dict()[key], value, rtol=1e-14, atol=1e-14)
        assert type(m.state_dict()[key]) is torch.Tensor


def test_captured_statistics_are_not_written_per_lane():
    m = module()
    with pytest.raises(pf.CapturedWriteError, match="running statistics"):
        pf.vmap(m)(real(2, 5, 4))
    assert torch.equal(m.running_mean, torch.zeros(4, dtype=D))
    assert pf.vmap(m.eval())(real(2, 5, 4)).shape == (2, 5, 4)


@pytest.mark.parametrize("where", ["mapped", "made inside"])
def test_statistics_of_each_lane(where):
    """Buffers that are mapped, or copied inside of the function, get the statistics of their lane."""
    m, xs = module(), real(3, 5, 4)
    parameters, buffers = dict(m.named_parameters()), dict(m.named_buffers())

    def f(x, own=None):
        own = {k: v.clone() for k, v in (own or buffers).items()}
        out = pf.functional_call(m, (parameters, own), (x,))
        return out, own["running_mean"], own["running_var"]

    stacked = {k: torch.stack([v] * 3) for k, v in buffers.items()}
    got = pf.vmap(f)(xs, stacked) if where == "mapped" else pf.vmap(f)(xs)
    for lane in range(3):
        for g, e in zip(got, f(xs[lane]), strict=True):
            torch.testing.assert_close(g[lane], e)


@pytest.mark.parametrize("norm", ["torch.batch_norm", "torch.native_batch_norm", "torch.instance_norm"])
def test_statistics_made_inside_of_any_form(norm):
    """The functions that write their statistics without saying so."""

    def f(x):
        mean, var = torch.zeros(4, dtype=D), torch.ones(4, dtype=D)
        end = () if norm.endswith("native_batch_norm") else (False,)
        out = getattr(torch, norm.removeprefix("torch."))(x, None, None, mean, var, True, 0.1, 1e-5, *end)
        return out[0] if isinstance(out, tuple) else out, mean, var

    x = real(3, 5, 4, 2)
    for way in (f, lambda x: pf.jvp(f, (x,), (x * x,))[1][0], lambda x: pf.grad(lambda z: weighted(f(z)[0]))(x)):
        one = way(x[0])
        got = pf.vmap(way)(x)
        for g, *e in zip(got, *map(way, x), strict=True) if isinstance(one, tuple) else [(got, *map(way, x))]:
            torch.testing.assert_close(g, torch.stack(e))


def test_statistics_carry_tangents_of_buffers():
    """A buffer that is differentiated keeps its own share, 1 − momentum; the batch adds a constant."""
    x = real(5, 4)

    def f(mean):
        mean = mean.clone()
        F.batch_norm(x, mean, VAR.clone(), training=True, momentum=0.25)
        return mean

    torch.testing.assert_close(pf.jvp(f, (MEAN,), (W4,))[1], 0.75 * W4)


def test_legacy_forms():
    """The forms that declare their writes, under jvp: results, statistics and tangents."""
    x, v = real(5, 4), real(5, 4, seed=1)
    tangent = pf.jvp(lambda z: F.batch_norm(z, None, None, W4, B4, True), (x,), (v,))[1]
    for call in (
        lambda z, m, s: torch.ops.aten._native_batch_norm_legit(z, W4, B4, m, s, True, 0.1, 1e-5),
        lambda z, m, s: torch.ops.aten._batch_norm_with_update(z, W4, B4, m, s, 0.1, 1e-5),
    ):
        mean, var = MEAN.clone(), VAR.clone()
        plain = call(x, mean.clone(), var.clone())
        out, moved = pf.jvp(lambda z, call=call, mean=mean, var=var: call(z, mean, var)[0], (x,), (v,))
        torch.testing.assert_close(out, plain[0])
        torch.testing.assert_close(moved, tangent)
        eager = MEAN.clone(), VAR.clone()
        call(x, *eager)
        torch.testing.assert_close((mean, var), eager)
