"""Reductions under vmap with every form of `dim` and `keepdim`, of values with 0 to 3 dimensions."""

import itertools

import pytest
import torch

from tests.ops.subsets import check_subsets

D = torch.float64
ONE_DIM = [
    "prod",
    "argmax",
    "argmin",
    "max",
    "min",
    "median",
    "nanmedian",
    "mode",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
]
MANY = ["sum", "mean", "nansum", "amax", "amin", "var", "std", "logsumexp", "all", "any", "count_nonzero", "norm"]
SHAPES = [(), (1,), (3,), (2, 3), (2, 1, 3)]


def value(*shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=D)
    return torch.where(x < -0.5, 0, x)


def forms(rank):
    """The forms of dims for a value of a rank."""
    dims = list(range(-rank, rank)) if rank else [0, -1]
    return [(d,) for d in dims] + [(), *([(0, -1), (1, 0)] if rank > 1 else [])]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MANY)
def test_many_dims(name, shape):
    f = getattr(torch.Tensor, name)
    x = value(*shape)
    check_subsets(lambda x: f(x) if name not in ("amax", "amin", "logsumexp") else x, x, sizes=(2, 1))
    for dim, keepdim in itertools.product(forms(len(shape)), (False, True)):
        if dim == () and name == "logsumexp":
            continue
        options = {} if name == "count_nonzero" else {"keepdim": keepdim}
        options |= {"p": 2} if name == "norm" else {}
        check_subsets(lambda x, d=dim, o=options: f(x, dim=d, **o), x, sizes=(2, 1))
        if len(dim) == 1:
            check_subsets(lambda x, d=dim, o=options: f(x, dim=d[0], **o), x, sizes=(2,))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ONE_DIM)
def test_one_dim(name, shape):
    f = getattr(torch.Tensor, name)
    x = value(*shape)
    for dim in forms(len(shape)):
        if len(dim) == 1:
            check_subsets(lambda x, d=dim: f(x, d[0]), x, sizes=(2, 1))
            if "cum" not in name:
                check_subsets(lambda x, d=dim: f(x, d[0], keepdim=True), x, sizes=(2,))
    if "cum" not in name and name != "mode":
        check_subsets(lambda x: f(x), x, sizes=(2, 1))
    if name.startswith("arg"):
        check_subsets(lambda x: f(x, None, keepdim=True), x, sizes=(2,))


@pytest.mark.parametrize("shape", SHAPES)
def test_by_rank(shape):
    x = value(*shape)
    for dim in forms(len(shape)):
        if len(dim) == 1:
            check_subsets(
                lambda x, d=dim[0]: (
                    *x.sort(d),
                    *x.topk(1, d),
                    *x.kthvalue(1, d),
                    *x.kthvalue(1, d, keepdim=True),
                    x.argsort(d),
                ),
                x,
            )
            check_subsets(lambda x, d=dim[0]: (*torch.aminmax(x, dim=d), *torch.aminmax(x, dim=d, keepdim=True)), x)
    check_subsets(lambda x: torch.aminmax(x, keepdim=True)[1], x)
