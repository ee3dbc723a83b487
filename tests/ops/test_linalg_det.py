"""The determinant at singular matrices, and its backward pass under vmap."""

import itertools

import pytest
import torch

import pushforward as pf
from pushforward.ops.linalg_det import determinant
from tests.ops.orders import check_orders, weighted

FLOAT = torch.float64
det = torch.linalg.det


def leibniz(a):
    """The sum over permutations."""
    n, total = a.shape[-1], 0
    for p in itertools.permutations(range(n)):
        term = (-1.0) ** sum(p[i] > p[j] for i in range(n) for j in range(i + 1, n))
        for i in range(n):
            term = term * a[i, p[i]]
        total = total + term
    return total


def of_rank(n, rank, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(s, generator=generator, dtype=FLOAT) for s in ((n, rank), (rank, n)))
    return left @ right


def third(f, a, v):
    def once(x):
        return pf.jvp(f, (x,), (v,))[1]

    return pf.jvp(lambda y: pf.jvp(once, (y,), (v.mT,))[1], (a,), (v @ v,))[1]


RANKS = [(n, r) for n in (1, 2, 3, 4, 5) for r in range(n + 1)]


@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_every_rank(n, rank):
    a, v = of_rank(n, rank), of_rank(n, n, seed=1)
    jacobian = torch.autograd.functional.jacobian(leibniz, a)
    hessian = torch.autograd.functional.hessian(leibniz, a)
    same = {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(pf.jvp(det, (a,), (v,))[1], (jacobian * v).sum(), **same)
    torch.testing.assert_close(pf.jacfwd(det)(a), jacobian, **same)
    torch.testing.assert_close(pf.hessian(det)(a), hessian, **same)
    torch.testing.assert_close(pf.jacrev(pf.jacrev(det))(a), hessian, **same)
    torch.testing.assert_close(pf.jacfwd(pf.jacfwd(det))(a), hessian, **same)
    torch.testing.assert_close(third(det, a, v), third(leibniz, a, v), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["identity", "singular", "rank one"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_compositions_at_special_matrices(kind, dtype):
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(2), dtype=dtype)
    if kind == "identity":
        x = torch.eye(3, dtype=dtype)
    elif kind == "singular":
        x[2] = x[0] + 2 * x[1]
    else:
        x = torch.zeros(3, 3, dtype=dtype)
        x[0, 0] = 1
    check_orders(lambda a: weighted(det(a).reshape(1)), x)


def test_lanes_of_different_rank():
    a = torch.stack([of_rank(4, r) for r in range(5)])
    expected = torch.stack([torch.autograd.functional.hessian(leibniz, x) for x in a])
    torch.testing.assert_close(pf.vmap(pf.hessian(det))(a), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_value_of_the_polynomial(n, dtype):
    a = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n), dtype=dtype) / max(n, 1) ** 0.5
    torch.testing.assert_close(determinant(a), det(a), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("f", [det, torch.logdet, lambda a: torch.linalg.slogdet(a)[1]])
@pytest.mark.parametrize("layout", ["dense", "every second", "batch last", "transposed", "expanded"])
def test_gradients_whatever_the_strides(f, layout):
    a = torch.randn(6, 3, 3, generator=torch.Generator().manual_seed(1), dtype=FLOAT)
    a = a @ a.mT + torch.eye(3, dtype=FLOAT) + 0.1 * a  # no symmetric matrix: its transpose must not do
    dim = 0
    if layout == "every second":
        a = a[::2]
    elif layout == "batch last":
        a, dim = a.permute(1, 2, 0).contiguous(), 2
    elif layout == "transposed":
        a = a.mT
    elif layout == "expanded":
        a = a[:1].expand(3, 3, 3)
    lanes = a.unbind(dim)
    rows = []
    for x in lanes:
        x = x.detach().clone().requires_grad_()
        rows.append(torch.autograd.grad(f(x), x)[0])
    torch.testing.assert_close(pf.vmap(pf.grad(f), in_dims=dim)(a), torch.stack(rows))
    v = torch.ones_like(lanes[0]).tril()
    pushed = pf.vmap(lambda x: pf.jvp(f, (x,), (v,))[1], in_dims=dim)(a)
    torch.testing.assert_close(pushed, torch.stack([(r * v).sum() for r in rows]))
