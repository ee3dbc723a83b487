"""A 0-dim value of a lane promotes like a 0-dim tensor, with every operator that promotes; formats are a lane's."""

import itertools

import pytest
import torch

import pushforward as pf
from tests.ops.subsets import check_subsets

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64]
OPERATORS = {
    "add": torch.add,
    "mul": torch.mul,
    "where": lambda a, b: torch.where(torch.tensor([True, False, True]), a, b),
    "where of numbers": lambda a, b: torch.where(torch.tensor([True, False, True]), a.sum(), b.sum()),
    "maximum": torch.maximum,
    "eq": torch.eq,
    "fmod": lambda a, b: torch.fmod(a + 1, b + 1),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "copysign": torch.copysign,
    "div": torch.div,
    "floor_divide": lambda a, b: torch.floor_divide(a + 1, b + 1),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_promote(name, shape):
    for first, second in itertools.product(DTYPES, DTYPES):
        a = torch.tensor(1).to(first)
        b = torch.ones(shape).to(second)
        try:
            OPERATORS[name](a, b)
        except (RuntimeError, NotImplementedError):  # torch itself refuses these two
            continue
        check_subsets(OPERATORS[name], a, b, sizes=(2,))


def test_three_arguments_promote():
    v = torch.ones(3)
    number = torch.tensor(2.0, dtype=torch.float64)
    check_subsets(torch.addcmul, v, number, v)
    check_subsets(torch.addcdiv, v, number, v)
    check_subsets(lambda x, w: torch.lerp(x, x, w), v, torch.tensor(0.5))
    check_subsets(lambda x, m, n: x.masked_fill(m, n), v, v > 2, number)
    check_subsets(lambda x, n: x.fill_(n) if False else torch.ops.aten.fill.Tensor(x, n), v, number)


@pytest.mark.parametrize("target", [torch.float64, torch.int64, torch.bool, torch.complex128, torch.bfloat16])
def test_casts(target):
    check_subsets(lambda x: x.to(target), torch.tensor([1.5, 0.0, -2.0]))


@pytest.mark.parametrize("rank", [4, 5])
def test_memory_formats_are_those_of_a_lane(rank):
    wanted = {4: torch.channels_last, 5: torch.channels_last_3d}[rank]
    x = torch.randn(2, *range(2, 2 + rank))
    seen = []

    def f(x):
        seen.append(
            [y.is_contiguous(memory_format=wanted) for y in (x.to(memory_format=wanted), x.clone(memory_format=wanted))]
        )
        return x.contiguous(memory_format=wanted).double().to(torch.float32, memory_format=wanted)

    torch.testing.assert_close(pf.vmap(f)(x), x)
    assert seen == [[True, True]]
    torch.testing.assert_close(pf.jvp(f, (x[0],), (x[0],))[1], x[0])
