"""At kinks and ties forward mode takes the factors of torch's reverse mode; and nothing is NaN at a norm's zero."""

import pytest
import torch
import torch.nn.functional as F

import pushforward as pf

D = torch.float64
TIED = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0], [-2.0, -2.0, 5.0]], dtype=D)
OTHER = torch.tensor([[1.0, 2.0, 4.0], [0.0, -1.0, 1.0], [-2.0, 3.0, 5.0]], dtype=D)

ONE = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "amax of all": lambda x: x.amax(),
    "max of all": lambda x: x.max(),
    "min of all": lambda x: x.min(),
    "max": lambda x: x.max(1)[0],
    "aminmax": lambda x: torch.stack(torch.aminmax(x, dim=1)),
    "median": lambda x: x.median(1)[0],
    "median of all": lambda x: x.median(),
    "mode": lambda x: x.mode(1)[0],
    "kthvalue": lambda x: x.kthvalue(2, 1)[0],
    "sort": lambda x: x.sort(dim=1, stable=True)[0],
    "topk": lambda x: x.topk(2, 1)[0],
    "cummax": lambda x: x.cummax(1)[0],
    "cummin": lambda x: x.cummin(0)[0],
    "relu": torch.relu,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(0, 3),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_max": lambda x: x.clamp_max(3),
    "clamp with crossed bounds": lambda x: x.clamp(2, 0),
    "std": lambda x: x.std(1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, 1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "norm 1.5": lambda x: torch.linalg.vector_norm(x, 1.5, 1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -float("inf"), 1),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0, 1) + 0 * x.sum(),
    "prod": lambda x: x.prod(1),
    "scatter_reduce amax": lambda x: x.scatter_reduce(1, torch.tensor([[0, 2, 2]] * 3), x, "amax"),
    "masked": lambda x: x.masked_fill(x == 0, 7.0),
}
TWO = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp by tensors": lambda x, y: x.clamp(y, y.flip(0)),
    "clamp_min by a tensor": lambda x, y: torch.clamp_min(x, y),
    "clamp_max by a tensor": lambda x, y: torch.clamp_max(x, y),
    "copysign": torch.copysign,
    "where": lambda x, y: torch.where(x > y, x, y),
    "nextafter": torch.nextafter,
    "dist": lambda x, y: torch.dist(x, x.clone() + 0 * y),
    "hypot": lambda x, y: torch.hypot(x, y + 10),
}


def compare(f, *args):
    """The Jacobian by forward mode against torch.autograd's rows."""
    for k, a in enumerate(args):

        def one(z, k=k):
            return f(*args[:k], z, *args[k + 1 :])

        got = pf.jacfwd(one)(a)
        z = a.detach().requires_grad_()
        out = one(z).reshape(-1)
        rows = [torch.autograd.grad(o, z, retain_graph=True, allow_unused=True, materialize_grads=True)[0] for o in out]
        expected = torch.stack(rows).reshape(got.shape)
        assert not got.isnan().any()
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", ONE)
def test_one_argument(name):
    compare(ONE[name], TIED)


@pytest.mark.parametrize("name", TWO)
def test_two_arguments(name):
    compare(TWO[name], TIED, OTHER)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, float("inf")])
def test_norms_at_zero_have_derivative_zero_to_second_order(p):
    x, v = torch.zeros(3, dtype=D), torch.ones(3, dtype=D)

    def norm(x):
        return torch.linalg.vector_norm(x, p)

    assert torch.equal(pf.jvp(lambda x: pf.jvp(norm, (x,), (v,))[1], (x,), (v,))[1], torch.zeros((), dtype=D)) or p == 1


def test_a_branch_not_taken_puts_no_nan_into_a_tangent():
    x = torch.tensor([-1.0, 4.0], dtype=D)
    tangent = pf.jvp(lambda x: torch.where(x > 0, x.sqrt(), x), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, torch.tensor([1.0, 0.25], dtype=D))


def test_logcumsumexp_over_a_wide_range():
    x = torch.tensor([-1e4, 0.0, -torch.inf, 1e4, 700.0], dtype=D)
    t = torch.tensor([2.0, -1.0, 5.0, 0.5, 1.0], dtype=D)
    tangent = pf.jvp(lambda x: x.logcumsumexp(0), (x,), (t,))[1]
    torch.testing.assert_close(tangent, torch.tensor([2.0, -1.0, -1.0, 0.5, 0.5], dtype=D))
    low = torch.full((3,), -torch.inf, dtype=D)
    assert not pf.jvp(lambda x: x.logcumsumexp(0), (low,), (t[:3],))[1].isnan().any()


def test_nansum_ignores_the_tangent_of_nan():
    x = torch.tensor([1.0, torch.nan, 2.0], dtype=D)
    t = torch.tensor([1.0, torch.nan, 3.0], dtype=D)
    assert pf.jvp(lambda x: x.nansum(), (x,), (t,))[1] == 4
    assert pf.jvp(lambda x: x.nanmean(), (x,), (t,))[1] == 2


POINTS = torch.tensor([-20.0, -6.0, -3.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0], dtype=D)
ACTIVATIONS = [
    F.celu,
    F.elu,
    F.gelu,
    F.hardshrink,
    F.hardswish,
    F.hardtanh,
    F.leaky_relu,
    F.logsigmoid,
    F.mish,
    F.relu,
    F.relu6,
    F.selu,
    F.silu,
    F.softplus,
    F.softshrink,
    F.softsign,
    F.tanhshrink,
    torch.abs,
    torch.ceil,
    torch.erf,
    torch.expm1,
    torch.floor,
    torch.frac,
    torch.lgamma,
    torch.log,
    torch.log1p,
    torch.reciprocal,
    torch.round,
    torch.rsqrt,
    torch.sgn,
    torch.sign,
    torch.sinc,
    torch.sqrt,
    torch.square,
    torch.trunc,
]


@pytest.mark.parametrize("f", ACTIVATIONS, ids=lambda f: f.__name__)
def test_factors_are_those_of_reverse_mode_to_the_last_digits(f):
    tangent = pf.jvp(f, (POINTS,), (torch.ones_like(POINTS),))[1]
    x = POINTS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(tangent, expected, rtol=1e-13, atol=1e-300, equal_nan=True)


def test_angle_of_the_origin():
    zero, one = torch.zeros((), dtype=D), torch.ones((), dtype=D)
    assert pf.jvp(torch.atan2, (zero, zero), (one, one))[1] == 0
    assert pf.grad(torch.atan2, (0, 1))(zero, zero) == (zero, zero)
