"""as_strided counts its offset in the storage: of slices, of buffers, in writes, with other strides of a tangent."""

import torch

import pushforward as pf
from tests.ops.subsets import check_subsets

D = torch.float64
X = torch.arange(24.0, dtype=D).reshape(4, 6) ** 2


def part(x):
    """The second row by an offset in the storage of the first, as torch counts it."""
    y = x[1:]
    return y.as_strided((2, 3), (6, 2), y.storage_offset() + 1)


def test_lanes_and_duals_count_from_their_own_start():
    batch = torch.stack([X, 2 * X])
    expected = torch.stack([part(X), part((2 * X).clone())])
    torch.testing.assert_close(pf.vmap(part)(batch), expected)
    torch.testing.assert_close(pf.jvp(part, (X,), (X,))[1], part(X))
    inner = batch[1]  # a slice: its storage begins before it
    torch.testing.assert_close(pf.jvp(part, (inner,), (inner,))[1], 2 * part(X))


def test_a_tangent_with_other_strides():
    def f(x):
        return x.as_strided((3, 2), (2, 1), 2) * 3

    tangent = X.t().contiguous().t()
    torch.testing.assert_close(pf.jvp(f, (X,), (tangent,))[1], f(X))


def test_writes_through_a_strided_view_of_a_buffer():
    def f(x):
        buffer = torch.zeros(10, dtype=D)[2:]
        view = buffer.as_strided((3,), (2,), buffer.storage_offset() + 1)
        view.copy_(x[:3])
        view.mul_(2)
        return buffer + 0

    rows = torch.stack([f(x) for x in X])
    torch.testing.assert_close(pf.vmap(f)(X), rows)
    torch.testing.assert_close(pf.jvp(f, (X[0],), (X[0],))[1], f(X[0]))


def test_copies_and_scatters():
    check_subsets(lambda x: torch.as_strided_copy(x.contiguous(), (2, 3), (1, 6), 1), X)
    check_subsets(lambda x, s: torch.as_strided_scatter(x.contiguous(), s, (2, 3), (1, 6), 1), X, X[:2, :3].clone())
    torch.testing.assert_close(
        pf.jvp(lambda x: torch.as_strided_scatter(x, x[:2, :3], (2, 3), (1, 6), 1), (X,), (X,))[1],
        torch.as_strided_scatter(X, X[:2, :3], (2, 3), (1, 6), 1),
    )
