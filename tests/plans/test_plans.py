"""Plans: the third call and all later ones give what the first gave, and what cannot be repeated never is."""

import subprocess
import sys
import warnings
from itertools import pairwise

import pytest
import torch

import pushforward as pf
from pushforward.plans import replay

D = torch.float64


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=D)


CALLS = {
    "sum": lambda v: v.sum(0),
    "mean": lambda v: v.mean(-1, keepdim=True),
    "max": lambda v: v.max(-1),
    "var": lambda v: v.var(1),
    "repeat": lambda v: v.repeat(2, 1),
    "permute": lambda v: v.permute(1, 0),
    "slice": lambda v: v[1:, ::2],
    "several views": lambda v: v[None, :, 1],
    "chunk": lambda v: v.chunk(2),
    "index": lambda v: v[torch.tensor([1, 0])],
    "where": lambda v: torch.where(v > 0, v, -0.0),
    "cat": lambda v: torch.cat([v, v * 2], 1),
    "einsum": lambda v: torch.einsum("ij,kj->ik", v, v),
    "mse": lambda v: torch.nn.functional.mse_loss(v, v.flip(0)),
    "cross entropy": lambda v: torch.nn.functional.cross_entropy(v, torch.tensor([0, 2])),
    "norm": lambda v: v.norm(),
    "linear": lambda v: torch.nn.functional.linear(v, torch.ones(4, 3, dtype=D)),
    "double": lambda v: v.to(torch.float32),
    "same": lambda v: v.contiguous(),
}


def tensors(out: object) -> list[torch.Tensor]:
    return list(out) if isinstance(out, tuple) else [out]  # type: ignore[list-item]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("transform", ["vmap", "jvp", "vmap of jvp", "vmap of grad", "grad of vmap", "jvp of grad"])
def test_later_calls_give_what_the_first_gave(name: str, transform: str) -> None:
    call = CALLS[name]

    def scalar(v: torch.Tensor) -> torch.Tensor:
        return sum((o.to(D) * o.to(D)).sum() for o in tensors(call(v)) if o.is_floating_point())  # type: ignore[return-value]

    run = {
        "vmap": lambda x, t: pf.vmap(call)(x),
        "jvp": lambda x, t: pf.jvp(scalar, (x[0],), (t[0],)),
        "vmap of jvp": lambda x, t: pf.vmap(lambda a, b: pf.jvp(scalar, (a,), (b,)))(x, t),
        "vmap of grad": lambda x, t: pf.vmap(pf.grad(scalar))(x),
        "grad of vmap": lambda x, t: pf.grad(lambda y: pf.vmap(scalar)(y).sum())(x),
        "jvp of grad": lambda x, t: pf.jvp(pf.grad(scalar), (x[0],), (t[0],)),
    }[transform]
    replay.PLANS.clear()
    points = [(randn(5, 2, 3), randn(5, 2, 3)) for _ in range(2)]
    first = [run(*p) for p in points]
    for _ in range(4):
        for p, expected in zip(points, first, strict=True):
            torch.testing.assert_close(run(*p), expected, rtol=0, atol=0)


def test_plans_are_made() -> None:
    replay.PLANS.clear()
    for _ in range(3):
        pf.vmap(lambda v: v.cumsum(0))(randn(4, 3))
    assert [callable(p) for p in replay.PLANS[torch.Tensor.cumsum].values()] == [True]


def test_the_same_tensor_twice_is_not_two_tensors() -> None:
    for _ in range(4):
        a, b = randn(4, 3), randn(4, 3)
        torch.testing.assert_close(pf.vmap(lambda u, v: torch.outer(u, v))(a, b), a[:, :, None] * b[:, None, :])
        torch.testing.assert_close(pf.vmap(lambda u: torch.outer(u, u))(a), a[:, :, None] * a[:, None, :])


def test_numbers_of_python_count_by_type_and_sign() -> None:
    x = torch.ones(3, 2, dtype=torch.int64)
    for _ in range(4):
        assert pf.vmap(lambda v: torch.full_like(v, 1))(x).dtype is torch.int64
        assert pf.vmap(lambda v: torch.addcmul(v.double(), v, v, value=1))(x).dtype is D
        for zero in (0.0, -0.0):
            out = pf.vmap(lambda v, zero=zero: torch.where(v > 5, v.double(), zero))(x)
            assert torch.signbit(out).all() == (str(zero) == "-0.0")


def test_a_view_stays_a_view() -> None:
    def f(v: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(4, 3, dtype=D)
        buffer.t()[1:].diagonal()[:] = v
        w = v.clone()
        w[None].permute(1, 0)[0] = 7.0
        return torch.cat([buffer.flatten(), w])

    x = randn(5, 2)
    expected = torch.stack([f(r) for r in x])
    for _ in range(5):
        torch.testing.assert_close(pf.vmap(f)(x), expected)


def test_draws_differ_each_time() -> None:
    x = randn(3, 40)
    outs = [pf.vmap(torch.nn.functional.dropout, randomness="different")(x) for _ in range(5)]
    assert all(not torch.equal(a, b) for a, b in pairwise(outs))


def test_writes_are_not_planned() -> None:
    x = randn(3, 4)
    for _ in range(5):
        torch.testing.assert_close(pf.vmap(lambda v: v.clone().add_(1.0).mul_(v))(x), (x + 1) * x)
        torch.testing.assert_close(pf.jvp(lambda v: v.clone().mul_(v), (x,), (x,))[1], 2 * x * x)


def test_running_statistics_are_updated_each_time() -> None:
    model = torch.nn.BatchNorm1d(3)
    reference = torch.nn.BatchNorm1d(3)
    x = torch.randn(6, 3)
    for _ in range(5):
        pf.jvp(model, (x,), (x,))
        reference(x)
        torch.testing.assert_close(model.running_mean, reference.running_mean)


def test_a_lost_derivative_is_said_at_every_line() -> None:
    x = randn(3)
    for _ in range(3):
        pf.jvp(lambda v: v * float(v.sum().detach()), (x,), (x,))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pf.jvp(lambda v: v * float(v.sum()), (x,), (x,))
    assert [w.category for w in said] == [pf.DerivativeLost]


def test_an_error_is_the_one_of_the_long_way() -> None:
    good, bad = torch.eye(2, dtype=D).repeat(3, 1, 1), torch.zeros(3, 2, 2, dtype=D)
    for _ in range(4):
        pf.vmap(torch.linalg.inv)(good)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        pf.vmap(torch.linalg.inv)(bad)


def test_settings_count() -> None:
    x = torch.arange(6).view(3, 2)
    for _ in range(3):
        assert pf.vmap(lambda v: v.mean(dtype=None) if v.is_floating_point() else v / 2)(x).dtype is torch.float32
    torch.set_default_dtype(D)
    try:
        assert pf.vmap(lambda v: v / 2)(x).dtype is D
    finally:
        torch.set_default_dtype(torch.float32)
    y = torch.randn(3, 4, 4)
    for _ in range(3):
        assert pf.vmap(lambda v: torch.addmm(v, v, v))(y).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pf.vmap(lambda v: torch.addmm(v, v, v))(y).dtype is torch.bfloat16


def test_gradients_pass_where_they_did_not_before() -> None:
    x, w = randn(3, 4), randn(4)
    for _ in range(3):
        pf.vmap(lambda v: (v * w).cumsum(0))(x)
    w.requires_grad_()
    out = pf.vmap(lambda v: (v * w).cumsum(0))(x)
    (slope,) = torch.autograd.grad(out.sum(), w)
    torch.testing.assert_close(slope, (x * torch.tensor([4.0, 3, 2, 1], dtype=D)).sum(0))
    for _ in range(4):
        with torch.no_grad():
            assert not pf.vmap(lambda v: (v * w).cumsum(0))(x).requires_grad
        assert pf.vmap(lambda v: (v * w).cumsum(0))(x).requires_grad


def test_a_graph_on_values_of_an_outer_level_is_kept() -> None:
    a, x = 0.7, torch.tensor([0.3], dtype=D)

    def along(f):  # type: ignore[no-untyped-def]
        return lambda y: pf.jvp(f, (y,), (y.cos(),))[1]

    for _ in range(4):
        inner = along(lambda y: torch.exp(a * y).sum())
        value = pf.jvp(lambda y: (pf.grad(inner)(y) * y.cos()).sum(), (x,), (torch.ones_like(x),))[1]
        e, c, s = torch.exp(a * x), x.cos(), x.sin()
        # with u = a e c: u' c, and its derivative
        expected = a * (a * (a * e * c - e * s) * c - a * e * c * s - (a * e * s + e * c) * c + e * s * s)
        torch.testing.assert_close(value, expected.sum())


def test_many_different_arguments_stop_being_recorded() -> None:
    replay.PLANS.clear()
    x = randn(3, 2)
    for k in range(replay.MOST + 50):
        pf.vmap(lambda v, k=k: torch.full_like(v, k + 0.5))(x)
    assert len(replay.PLANS[torch.full_like]) == replay.MOST


def test_nan_is_one_number() -> None:
    replay.PLANS.clear()
    x = randn(3, 2)
    for _ in range(5):
        assert pf.vmap(lambda v: torch.full_like(v, float("nan")))(x).isnan().all()
    assert len(replay.PLANS[torch.full_like]) == 1


def test_plans_do_not_import_the_compiler() -> None:
    """It takes seconds, in the second call of a transform."""
    code = (
        "import sys, torch, pushforward as pf\n"
        "T, x = torch.linspace(0, 5, 400), torch.ones(3)\n"
        "f = lambda p: torch.nn.functional.softplus(p[0] * T * torch.exp(-p[1] * T)).cumsum(0).std()\n"
        "for _ in range(4):\n"
        "    pf.vmap(lambda v: pf.jvp(f, (x,), (v,))[1])(torch.eye(3))\n"
        "    pf.vmap(pf.grad(f))(torch.ones(5, 3)), pf.jacrev(f)(x), pf.hessian(f)(torch.ones(3))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
