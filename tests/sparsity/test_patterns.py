"""Patterns of whole functions: exact where the structure is known, supersets for random programs."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import pushforward as pf
from pushforward.sparsity.csr import Pattern
from pushforward.sparsity.detect import NoPatternError, detect, hessian_sparsity, jacobian_sparsity

D = torch.float64


def dense(f, x):
    return torch.autograd.functional.jacobian(f, x).reshape(-1, x.numel())


def exact(f, x, kind="global"):
    found = jacobian_sparsity(f, x, kind=kind)
    np.testing.assert_array_equal(found.to_mask(), (dense(f, x) != 0).numpy())
    return found


def lap(u):
    return sum(torch.roll(u, s, d) for s, d in itertools.product((1, -1), (0, 1))) - 4 * u


A = torch.triu(torch.ones(4, 6, dtype=D)) - torch.triu(torch.ones(4, 6, dtype=D), 2)
MASK = torch.tensor([True, False, True, True, False, False])
STENCIL = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=D).reshape(1, 1, 3, 3)


def into_buffer(x):
    out = torch.zeros(6, dtype=D)
    out[1:4] = x[:3].sin()
    out.view(3, 2)[:, 1] += x[3:]
    out[0] = 1
    return out


EXACT = {
    "elementwise": lambda x: x.sin() * 2 + 1,
    "differences": lambda x: x[1:] - x[:-1],
    "strided": lambda x: x[::2] * x[1::2],
    "cross products": lambda x: torch.linalg.cross(x.reshape(2, 3), torch.ones(2, 3, dtype=D)) + x.reshape(2, 3),
    "outer": lambda x: x[:3, None] * x[None, 3:],
    "stencil": lambda x: lap(x.reshape(2, 3).repeat(2, 2)),
    "constant matrix with zeros": lambda x: A @ x,
    "constant on the right": lambda x: x @ A.mT,
    "matrix of the input": lambda x: x.reshape(2, 3) @ A.mT[:3],
    "linear layer of blocks": lambda x: F.linear(x, torch.block_diag(torch.ones(2, 3), torch.ones(1, 3)).to(D)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x.reshape(2, 3).exp(), A[:, :3]),
    "gather": lambda x: x[torch.tensor([5, 0, 0, 3])],
    "boolean mask": lambda x: x[MASK] ** 2,
    "where of a constant": lambda x: torch.where(MASK, x, x.flip(0)),
    "times a constant with zeros": lambda x: x * MASK.to(D),
    "buffer": into_buffer,
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: x.reshape(2, 3).softmax(1),
    "sum over one dimension": lambda x: x.reshape(2, 3).exp().sum(0),
    "norm of rows": lambda x: torch.linalg.vector_norm(x.reshape(3, 2), dim=1),
    "layer norm": lambda x: F.layer_norm(x.reshape(2, 3), (3,)),
    "detached and used": lambda x: torch.stack([x[0] * x[1], x[2]]),
    "convolution": lambda x: F.conv1d(x.reshape(1, 1, 6), torch.tensor([[[1.0, 0, 2]]], dtype=D), padding=1),
    "stencil by convolution": lambda x: F.conv2d(x.reshape(1, 1, 2, 3), STENCIL, padding=1),
    "strided, dilated convolution": lambda x: F.conv1d(
        x.reshape(1, 2, 3), torch.ones(2, 1, 2, dtype=D), dilation=2, groups=2
    ),
    "transposed convolution": lambda x: F.conv_transpose1d(
        x.reshape(1, 1, 6), torch.ones(1, 2, 3, dtype=D), stride=2, padding=1
    ),
    "mean of windows": lambda x: F.avg_pool1d(x.reshape(1, 1, 6), 2),
    "interpolation": lambda x: F.interpolate(x.reshape(1, 1, 2, 3), scale_factor=2, mode="bilinear"),
    "unfold": lambda x: x.unfold(0, 3, 2) * 2,
    "fft of rows": lambda x: torch.view_as_real(torch.fft.fft(x.reshape(3, 2).exp(), dim=1)).sum(-1),
    "batch of solves": lambda x: torch.linalg.solve(
        torch.eye(2, dtype=D) + x[:4].reshape(1, 2, 2).tril(), x[4:].reshape(1, 2, 1)
    ),
    "inner vmap": lambda x: pf.vmap(lambda r: r[0] * r)(x.reshape(2, 3)),
    "inner gradient": pf.grad(lambda x: (x[1:] * x[:-1]).sum()),
    "inner jvp": lambda x: pf.jvp(lambda y: y[:3] * y[3:], (x,), (torch.ones(6, dtype=D),))[1],
    "nothing": lambda x: torch.ones(2, dtype=D) + 0 * x[:2].detach().round(),
    "rounding has no derivative": lambda x: x.round() + x.flip(0),
    "scalar": lambda x: x[2] * x[4],
}
LOOSE = {"fft of rows", "batch of solves"}  # dense over rows is right; single entries cancel


@pytest.mark.parametrize("name", EXACT)
def test_pattern_is_exact(name):
    x = torch.linspace(0.3, 1.7, 6, dtype=D)
    if name in LOOSE:
        assert jacobian_sparsity(EXACT[name], x).covers(Pattern.from_mask(dense(EXACT[name], x)))
    elif name == "nothing":
        assert jacobian_sparsity(EXACT[name], x).nnz == 0
    else:
        exact(EXACT[name], x)


LOCAL = {
    "relu": lambda x: x.relu(),
    "where of the input": lambda x: torch.where(x > 0, x, x.flip(0)),
    "maximum over all": lambda x: x.max() * 2,
    "maximum of rows": lambda x: x.reshape(2, 3).amax(1),
    "product with zero": lambda x: x * x.flip(0),
    "sorted": lambda x: x.sort().values,
    "read by a varying index": lambda x: x.gather(0, x.argsort())[:2],
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_pattern_is_the_one_at_the_point_and_inside_the_global_one(name):
    f = LOCAL[name]
    x = torch.tensor([0.5, -1.0, 0.0, 2.0, -0.3, 1.5], dtype=D)
    local = exact(f, x, "local")
    everywhere = jacobian_sparsity(f, x)
    assert everywhere.covers(local)
    assert everywhere.nnz > local.nnz
    for seed in range(3):
        other = torch.randn(6, dtype=D, generator=torch.Generator().manual_seed(seed))
        assert everywhere.covers(Pattern.from_mask(dense(f, other)))


class Straight(torch.autograd.Function):
    """Rounds, and passes the cotangent straight through, shifted by one place."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g.roll(1)


def test_autograd_function_counts_by_its_backward():
    found = exact(lambda x: Straight.apply(x * 2), torch.randn(5, dtype=D))
    assert found.nnz == 5


def test_a_branch_taken_is_reported():
    found = detect(lambda x: x * 2 if x.sum() > 0 else x.flip(0), (torch.ones(3),), 0, {})
    assert len(found.branches) == 1
    assert "test_patterns.py" in found.branches[0]


def test_an_operator_without_a_rule_is_dense_and_named():
    @torch.library.custom_op("pushforward_tests::half", mutates_args=())
    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    found = detect(lambda x: half(x), (torch.ones(3),), 0, {})
    assert found.pattern.nnz == 9
    assert list(found.dense) == ["pushforward_tests::half"]


def test_several_arguments_and_outputs_follow_each_other():
    f = lambda a, b: {"y": a * b["w"], "z": b["v"].sum()}
    found = jacobian_sparsity(f, torch.ones(2), {"v": torch.ones(3), "w": torch.ones(2)}, argnums=(0, 1))
    expected = [[1, 0, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 1, 0, 0]]
    np.testing.assert_array_equal(found.to_mask(), np.array(expected, dtype=bool))


@pytest.mark.parametrize("n", [0, 1])
def test_sizes_zero_and_one(n):
    assert jacobian_sparsity(lambda x: x.sin(), torch.ones(n)).shape == (n, n)
    assert jacobian_sparsity(lambda x: x.sin().sum(), torch.ones(n)).nnz == n


def test_inputs_of_a_running_transform_are_refused():
    with pytest.raises(NoPatternError, match="running transform"):
        pf.vmap(lambda x: jacobian_sparsity(torch.sin, x).nnz + x)(torch.ones(2, 3))


HESSIANS = {
    "rosenbrock": lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(),
    "separable": lambda x: (x**4).sum() + x.exp().sum(),
    "quadratic in neighbours": lambda x: (x[1:] * x[:-1]).sum(),
    "linear": lambda x: (3 * x).sum(),
    "block": lambda x: (x.reshape(2, 3).sum(1) ** 2).sum(),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessian_pattern(name):
    f = HESSIANS[name]
    x = torch.linspace(0.3, 1.7, 6, dtype=D)
    h = torch.autograd.functional.hessian(f, x)
    np.testing.assert_array_equal(hessian_sparsity(f, x).to_mask(), (h != 0).numpy())


UNARY = [
    torch.sin,
    torch.exp,
    torch.relu,
    lambda v: v.flip(0),
    lambda v: v.cumsum(0),
    lambda v: v.sort().values,
    torch.sign,
]
UNARY += [lambda v: v.roll(2), lambda v: v.softmax(0), lambda v: v.clone().index_add_(0, torch.tensor([0, 3]), v[:2])]
UNARY += [lambda v: v.clamp(-0.5, 0.5), lambda v: torch.where(v > 0, v, v.roll(1)), lambda v: F.pad(v[1:], (0, 1))]
BINARY = [torch.add, torch.mul, torch.maximum, lambda a, b: torch.stack([a, b]).reshape(2, -1)[:, ::2].reshape(-1)]
BINARY += [
    lambda a, b: torch.cat([a[:2], b[2:]]),
    lambda a, b: a * b.sum() * 0.1,
    lambda a, b: torch.outer(a[:2], b).reshape(2, -1).sum(0),
]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_never_miss_a_nonzero(seed):
    rng = np.random.default_rng(seed)
    steps = [
        (rng.random() < 0.5, int(rng.integers(100)), int(rng.integers(100)), int(rng.integers(100))) for _ in range(7)
    ]

    def f(x):
        values = [x, x * 2]
        for unary, op, a, b in steps:
            first, second = values[a % len(values)], values[b % len(values)]
            values.append(UNARY[op % len(UNARY)](first) if unary else BINARY[op % len(BINARY)](first, second))
        return torch.stack(values[2:])

    x = torch.from_numpy(rng.normal(size=6))
    everywhere = jacobian_sparsity(f, x)
    assert jacobian_sparsity(f, x, kind="local").covers(Pattern.from_mask(dense(f, x)))
    for _ in range(3):
        assert everywhere.covers(Pattern.from_mask(dense(f, torch.from_numpy(rng.normal(size=6)))))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_pattern_conversions():
    mask = np.array([[1, 0, 1], [0, 0, 1]], dtype=bool)
    sparse = pytest.importorskip("scipy.sparse")
    for value in (mask, torch.from_numpy(mask), sparse.coo_array(mask), torch.from_numpy(mask).to(D).to_sparse_csr()):
        np.testing.assert_array_equal(Pattern.of(value).to_mask(), mask)
    p = Pattern.of(mask)
    np.testing.assert_array_equal(p.T.to_mask(), mask.T)
    np.testing.assert_array_equal(p.to_scipy().toarray().astype(bool), mask)
    assert p.T.T.covers(p)
    assert not p.is_symmetric
    assert Pattern.full(2, 2).is_symmetric
    assert p.block(slice(0, 2), slice(1, 3)).nnz == 2
    with pytest.raises(pf.ArgumentError, match="two dimensions"):
        Pattern.of(np.ones(3))
