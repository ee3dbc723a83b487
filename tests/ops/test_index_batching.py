"""Indexing and scattering under vmap: any subset of values, indices, masks and sources mapped."""

import pytest
import torch

import pushforward as pf
from tests.ops.subsets import check_no_lanes, check_subsets

D = torch.float64


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


X = real(4, 3, 5)
I2 = torch.tensor([2, 0])
J2 = torch.tensor([1, 2])
MASK = torch.tensor([True, False, True, False])
index = torch.ops.aten.index.Tensor
put = torch.ops.aten.index_put.default

INDEX = {
    "first": lambda x, i, j: index(x, [i]),
    "second": lambda x, i, j: index(x, [None, i]),
    "last": lambda x, i, j: x[..., i],
    "adjacent": lambda x, i, j: x[:, i, j],
    "apart": lambda x, i, j: x[i, :, j],
    "outer": lambda x, i, j: x[i[:, None], j],
    "after a slice": lambda x, i, j: x[1:, i, 0],
    "new dimension": lambda x, i, j: x[None, i, :, j],
    "unsafe": lambda x, i, j: torch.ops.aten._unsafe_index.Tensor(x, [None, i, j]),
    "negative": lambda x, i, j: x[i - 3],
    "int32": lambda x, i, j: x[i.int()],
    "select": lambda x, i, j: x.index_select(1, i),
    "select last": lambda x, i, j: x.index_select(-1, i),
    "take": lambda x, i, j: x.take(i * 7 + j),
    "by number": lambda x, i, j: x[i[0], :, j[1]],
    "by number in front": lambda x, i, j: x[i[0]],
}


@pytest.mark.parametrize("name", INDEX)
def test_index(name):
    check_subsets(INDEX[name], X, I2, J2)
    check_no_lanes(INDEX[name], X, I2, J2)


WRITES = {
    "first": lambda x, i, v: put(x, [i], v[:2, :1]),
    "add": lambda x, i, v: put(x, [i.clamp(max=0)], v[:2, :1], True),
    "second": lambda x, i, v: put(x, [None, i], v),
    "apart": lambda x, i, v: put(x, [i, None, i], v[:2, :1, 0]),
    "in place": lambda x, i, v: written(x, (slice(None), i), v),
    "in place by number": lambda x, i, v: written(x, (i[0], slice(1, None)), v[0, :2]),
    "one value": lambda x, i, v: put(x, [i], v.sum()),
    "index_add": lambda x, i, v: x.index_add(1, i, v, alpha=2),
    "index_add twice": lambda x, i, v: x.index_add(1, i * 0, v),
    "index_copy": lambda x, i, v: x.index_copy(1, i, v),
    "index_fill": lambda x, i, v: x.index_fill(1, i, v.sum()),
    "index_reduce": lambda x, i, v: x.index_reduce(1, i * 0, v, "prod"),
    "index_reduce mean": lambda x, i, v: x.index_reduce(1, i, v, "mean", include_self=False),
    "put": lambda x, i, v: x.put(i * 3, v[0, 0, :2], accumulate=True),
}


def written(x, where, value):
    out = torch.zeros(4, 3, 5, dtype=D) + x
    out[where] = value
    return out


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", WRITES)
def test_index_writes(name):
    check_subsets(WRITES[name], X, I2, real(4, 2, 5, seed=1))


MASKS = {
    "select": lambda x, m: x[m],
    "second": lambda x, m: x.transpose(0, 1)[:, m],
    "masked_select": lambda x, m: x[:, 0, 0].masked_select(m),
    "fill": lambda x, m: x.masked_fill(m[:, None, None], x.sum()),
    "assign": lambda x, m: written(x, m, x.mean()),
    "add": lambda x, m: put(x, [m], x.mean(), True),
    "scatter": lambda x, m: x.masked_scatter(m[:, None, None], x.flip(0)),
    "where": lambda x, m: torch.where(m[:, None, None], x, x.sum()),
    "nonzero": lambda x, m: m.nonzero() + (x * 0).sum().long(),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check_subsets(MASKS[name], X, MASK)


def test_masks_with_counts_that_differ():
    x, m = real(4, 5), torch.tensor([[1, 0, 1, 1, 0], [0] * 5, [1, 1, 1, 0, 0], [0, 1, 0, 0, 0]]) > 0
    got = pf.vmap(lambda x, m: (x[m] ** 2).sum() + m.nonzero().sum())(x, m)
    torch.testing.assert_close(
        got, torch.stack([(r[k] ** 2).sum() + k.nonzero().sum() for r, k in zip(x, m, strict=True)])
    )


def test_an_index_out_of_range_reaches_no_other_lane():
    i = torch.tensor([[0, 1], [1, 4]])
    for f in (lambda x, i: x.index_add(0, i, x[:2]), lambda x, i: x.index_copy(0, i, x[:2]), lambda x, i: x[i]):
        with pytest.raises((IndexError, RuntimeError)):
            pf.vmap(f)(real(2, 4), i)


K = torch.tensor([[0, 2, 2], [1, 0, 1]])
SCATTER = {
    "gather": lambda x, i, s: x[0].gather(0, i),
    "take_along_dim": lambda x, i, s: torch.take_along_dim(x[0, :2], i, 1),
    "scatter": lambda x, i, s: x[0].scatter(1, i.sort(1)[0].unique_consecutive(dim=1)[:, :2], s[:, :2]),
    "value": lambda x, i, s: x[0].scatter(0, i, 2.5),
    "add": lambda x, i, s: x[0].scatter_add(0, i, s),
    "multiply": lambda x, i, s: x[0].scatter(0, i, s, reduce="multiply"),
    **{
        f"{kind} {include}": lambda x, i, s, k=kind, n=include: x[0].scatter_reduce(1, i, s, k, include_self=n)
        for kind in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    },
    "select_scatter": lambda x, i, s: x[0].select_scatter(s[0], 0, 1),
    "slice_scatter": lambda x, i, s: x[0].slice_scatter(s, 0, 0, 3, 2),
    "diagonal_scatter": lambda x, i, s: x[0].diagonal_scatter(s[0, :3]),
    "searchsorted": lambda x, i, s: torch.searchsorted(x[0].sort()[0], s.t()[:3].contiguous()),
    "bucketize": lambda x, i, s: torch.bucketize(x, s[0].sort()[0], right=True),
    "isin": lambda x, i, s: torch.isin(i, s.long()),
    "repeat_interleave": lambda x, i, s: torch.repeat_interleave(x, i.sum(0), dim=1),
    "bincount": lambda x, i, s: torch.bincount(i.flatten(), minlength=5),
    "bincount weights": lambda x, i, s: torch.bincount(i[0], s[0, :3], minlength=4),
    "histc": lambda x, i, s: torch.histc(x, 4),
    "histogram": lambda x, i, s: torch.histogram(x, 4, density=True),
}


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("name", SCATTER)
def test_scatter(name):
    check_subsets(SCATTER[name], real(2, 3, 3), K, real(2, 3, seed=2))


def test_values_of_no_dimension():
    zero, one = torch.tensor(0), torch.tensor([0])
    x, s = real(), real(seed=3)
    check_subsets(lambda x, i: x.gather(0, i), x, zero)
    check_subsets(lambda x, i: x.index_select(0, i), x, one)
    check_subsets(lambda x, i, s: x.scatter(0, i, s), x, zero, s)
    check_subsets(lambda x, i, s: x.index_add(0, i, s), x, one, s)
    check_subsets(
        lambda x: (x.sort()[0], x.topk(1)[0], x.cumsum(0), x.unfold(0, 1, 1), x.median(), x.kthvalue(1)[0]), x
    )
    check_subsets(lambda x: (x.sum(0), x.var(0, correction=0), x.amax(), x.argmax(), x.logsumexp(0), x.norm()), x)
