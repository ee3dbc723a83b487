"""First and second derivatives of indexing, scattering, sorting, scans and reductions by every composition."""

import pytest
import torch

import pushforward as pf
from tests.ops.orders import check_orders, weighted

D = torch.float64


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


I = torch.tensor([2, 0, 2])  # noqa: E741
M = torch.tensor([[True, False, True], [False, True, True]])


def with_zeros(x, *places):
    for p in places:
        x[p] = 0.0
    return x


FUNCTIONS = {
    "index": lambda x: x.exp()[:, I],
    "index_put": lambda x: torch.zeros(3, 3, dtype=D).index_put((I[:2],), x.sin(), True) * x[0],
    "mask": lambda x: x[M] ** 3,
    "masked_fill": lambda x: x.masked_fill(M, x.prod()),
    "masked_scatter": lambda x: (x * 2).masked_scatter(M, x.sin()),
    "where": lambda x: torch.where(M, x.sin(), x.prod()),
    "gather": lambda x: x.sin().gather(1, I.repeat(2, 1)),
    "scatter_add": lambda x: x.scatter_add(1, I.repeat(2, 1), x * x),
    "index_add": lambda x: x.index_add(1, I, x.exp(), alpha=3),
    "index_fill": lambda x: x.index_fill(1, I[:1], x.prod()),
    "sort": lambda x: x.sort(1)[0] ** 2 * x,
    "topk": lambda x: x.topk(2, 1)[0] ** 3,
    "median": lambda x: x.median(1)[0] ** 2 * x.kthvalue(2, 1)[0],
    "cummax": lambda x: x.cummax(1)[0] ** 2,
    "cumsum": lambda x: x.cumsum(1) ** 2,
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x**2),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logcumsumexp wide": lambda x: (x * torch.tensor([1.0, 300.0, 1.0], dtype=D)).logcumsumexp(1),
    "renorm": lambda x: x.renorm(2, 0, 0.5),
    "var": lambda x: x.var(1).sum() * x.std(0),
    "std_mean": lambda x: torch.stack(torch.std_mean(x, 1)),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3, 0),
    "norm 1.5": lambda x: torch.linalg.vector_norm(x, 1.5),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1) ** 2,
    "dist": lambda x: torch.dist(x[0], x[1].sin(), 3),
    "amax": lambda x: x.amax(1) ** 2 * x.amin(),
    "maximum": lambda x: torch.maximum(x[0] ** 2, x[1]) * torch.fmin(x[0], x[1] ** 3),
    "clamp": lambda x: (x**2).clamp(x.sin()[0], x.exp()[1]),
    "remainder": lambda x: torch.remainder(x**2, 1 + x[0] ** 2) + torch.fmod(x, 2 + x[1] ** 2),
    "copysign": lambda x: torch.copysign(x**2, x[0]) ** 2,
    "frexp": lambda x: torch.frexp(x**2)[0],
    "ldexp": lambda x: torch.ldexp(x.sin(), x[0]),
    "logaddexp2": lambda x: torch.logaddexp2(x[0] ** 2, x[1]),
    "unfold": lambda x: x.unfold(1, 2, 1) ** 2,
    "as_strided": lambda x: (x**2).as_strided((2, 2), (2, 1), 1),
    "pads": lambda x: torch.nn.functional.pad(x**2, (1, 2), value=3.0) * torch.block_diag(x, x)[:2],
    "diag_embed": lambda x: torch.diag_embed(x**2) * torch.rot90(x).sum(),
    "select_scatter": lambda x: x.select_scatter(x[1] ** 2, 0, 0),
    "prod": lambda x: x.prod(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_orders(name):
    f = FUNCTIONS[name]
    check_orders(lambda x: weighted(f(x)), real(2, 3, seed=4) + 0.1)


ZEROS = {
    "no zeros": lambda x: x,
    "one zero": lambda x: with_zeros(x, (0, 1)),
    "two zeros": lambda x: with_zeros(x, (0, 1), (0, 2), (1, 0)),
    "all zeros": torch.zeros_like,
}
PRODUCTS = {
    "prod": lambda x: x.prod(1),
    "prod of all": lambda x: x.prod(),
    "cumprod": lambda x: x.cumprod(1),
    "scatter_reduce": lambda x: torch.full((2, 3), 2.0, dtype=D).scatter_reduce(1, I.repeat(2, 1), x, "prod"),
    "scatter_reduce both": lambda x: x.scatter_reduce(1, I.repeat(2, 1), x * x + x, "prod"),
    "scatter_reduce alone": lambda x: x.scatter_reduce(1, I.repeat(2, 1), x, "prod", include_self=False),
    "index_reduce": lambda x: x.index_reduce(1, I, x * 3, "prod"),
    "multiply": lambda x: x.scatter(1, I.repeat(2, 1), x + x * x, reduce="multiply"),
}


@pytest.mark.parametrize("place", ZEROS)
@pytest.mark.parametrize("name", ["prod", "prod of all", "cumprod"])
def test_products_at_zeros(name, place):
    f = PRODUCTS[name]
    check_orders(lambda x: weighted(f(x)), ZEROS[place](real(2, 3, seed=5)))


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
@pytest.mark.parametrize("place", ZEROS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_forward_products_at_zeros(name, place):
    def f(x):
        return weighted(PRODUCTS[name](x))

    x, v, u, h = ZEROS[place](real(2, 3, seed=5)), real(2, 3, seed=6), real(2, 3, seed=7), 1e-4

    def push(x, d=v):
        return pf.jvp(f, (x,), (d,))[1]

    torch.testing.assert_close(push(x), (f(x + h * v) - f(x - h * v)) / (2 * h), rtol=1e-6, atol=1e-6)
    second = pf.jvp(push, (x,), (u,))[1]
    torch.testing.assert_close(second, (push(x + h * u) - push(x - h * u)) / (2 * h), rtol=1e-6, atol=1e-6)
    third = pf.jvp(lambda x: pf.jvp(push, (x,), (u,))[1], (x,), (v,))[1]
    slope = [pf.jvp(push, (x + s * h * v,), (u,))[1] for s in (1, -1)]
    torch.testing.assert_close(third, (slope[0] - slope[1]) / (2 * h), rtol=1e-5, atol=1e-5)


REDUCED = {
    f"{kind} {include}": (kind, include) for kind in ("sum", "mean", "amax", "amin") for include in (True, False)
}


@pytest.mark.parametrize("name", REDUCED)
def test_scatter_reduce_orders(name):
    kind, include = REDUCED[name]
    check_orders(
        lambda x: weighted((x**3).scatter_reduce(1, I.repeat(2, 1), x.exp(), kind, include_self=include) ** 2),
        real(2, 3, seed=8),
    )


def test_complex_reductions():
    x = torch.complex(real(2, 3), real(2, 3, seed=1))
    check_orders(lambda x: weighted(x.prod(1)), x)
    check_orders(lambda x: weighted(x.cumprod(1)), x)
    check_orders(lambda x: weighted(x.var(1)) + torch.linalg.vector_norm(x, 3), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_products_are_made_in_single(dtype):
    x = torch.full((12,), 30.0, dtype=dtype) * torch.tensor([1.0, 1 / 900] * 6).to(dtype)
    for f in (lambda x: x.prod(), lambda x: x.cumprod(0)):
        tangent = pf.jvp(f, (x,), (torch.ones_like(x),))[1]
        wide = pf.jvp(f, (x.double(),), (torch.ones_like(x).double(),))[1]
        assert tangent.dtype is dtype
        torch.testing.assert_close(tangent.double(), wide, rtol=0.05, atol=0.05)
