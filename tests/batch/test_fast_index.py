"""Basic indexing by its short way: the views of the loop, which share memory with their base whatever happens to it."""

import pytest
import torch

import pushforward as pf

LANES = 5
INDICES = [
    0, -1, slice(1, None), slice(None, -1), slice(0, 3, 2), (0, 1), (slice(None), 0), (..., 0), (0, ...), (slice(1, 3), ..., None),
    (None, 0), (slice(None), None), (..., slice(None, None, 2)), (1, slice(0, 1), None, -1), (slice(5, 2),), (slice(-2, None), 2),
]  # fmt: skip


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_views_equal_the_loop(index):
    x = normal(LANES, 3, 4, 3)

    def shape(x):
        y = (x * 2)[index]
        return y * 1, torch.tensor([y.dim(), y.storage_offset(), *y.shape, *y.stride()])

    for transform in (
        lambda f: f,
        lambda f: lambda x: pf.jvp(f, (x,), (x.sin(),))[1],
        lambda f: pf.grad(lambda x: f(x).sin().sum()),
    ):
        f = transform(lambda x: (x * x)[index])
        torch.testing.assert_close(pf.vmap(f)(x), torch.stack([f(v) for v in x]))
    got, described = pf.vmap(shape)(x)
    want = [shape(v) for v in x]
    assert torch.equal(got, torch.stack([w for w, _ in want]))
    assert torch.equal(described, torch.stack([w for _, w in want]))


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_writes_are_seen_through_views_and_bases(index):
    x = normal(LANES, 3, 4, 3)

    def f(x, flag):
        y = x * 2
        view = y[index]
        view.mul_(3)
        again = view[...]
        if flag > 0:  # lanes leave: base and view are cut down, and still share
            y.add_(1)
            view.sub_(0.5)
        else:
            view.neg_()
        return y, view * 1, again * 1

    flag = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0])
    for got, want in zip(pf.vmap(f)(x, flag), zip(*map(f, x, flag), strict=True), strict=True):
        assert torch.equal(got, torch.stack(want))


@pytest.mark.parametrize(
    "index", [3, -4, (0, 4), (0, 0, 0, 0), 1.5, (slice(0, 2.0),), slice(None, None, -1)], ids=str
)
def test_what_is_an_error_for_a_lane(index):
    x = normal(LANES, 3, 4, 3)
    with pytest.raises((IndexError, TypeError, ValueError)):
        x[0][index]
    with pytest.raises((IndexError, TypeError, ValueError)):
        pf.vmap(lambda x: x[index])(x)


def test_numbers_a_lane_keep_their_layout():
    x = normal(LANES, 3)

    def f(x):
        a = x[1]
        return a.sin() * a + x[0], a.exp() + 1.0, (a * 2).stride()

    got = pf.vmap(f)(x)
    want = [f(v) for v in x]
    for k in (0, 1):
        assert torch.equal(got[k], torch.stack([w[k] for w in want]))
    assert got[2] == ()
