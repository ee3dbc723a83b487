"""Linear algebra differentiated once and twice, by every composition."""

import warnings

import pytest
import torch

from tests.ops.orders import check_orders, check_third, weighted

L = torch.linalg
FLOAT = torch.float64
INF = float("inf")


def random(*shape, seed=0, dtype=FLOAT):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def identity(x):
    return torch.eye(x.shape[-1], dtype=x.dtype)


def lifted(x):
    """A well-conditioned square matrix from a square one."""
    return x + 3 * identity(x)


def definite(x):
    return x @ x.mH + 2 * identity(x)


def hermitian(x):
    return x + x.mH


def real_diagonal(x):
    return x - 1j * torch.diag(torch.diagonal(x).imag) if x.is_complex() else x


def projected(v):
    """A function of the columns of `v` that does not see their phases."""
    return weighted((v * torch.arange(1.0, v.shape[-1] + 1).to(v.dtype)) @ v.mH)


FACTORS = {(n, t): random(n, 2, seed=7, dtype=t) for n in (3, 4) for t in (torch.float64, torch.complex128)}


def right_side(x, left=True):
    b = x[:, :2] * FACTORS[x.shape[0], x.dtype]
    return b if left else b.mH


def svd_function(x):
    u, s, vh = L.svd(x, full_matrices=False)
    return weighted(s) + projected(u) + projected(vh.mH) + weighted(u @ vh)


def both(parts):
    return sum(weighted(p) for p in parts)


def lu_solved(left, adjoint):
    return lambda x: weighted(L.lu_solve(*L.lu_factor(lifted(x)), right_side(x, left), left=left, adjoint=adjoint))


def triangular(upper, left, unit):
    def f(x):
        a = x.triu(1) if upper else x.tril(-1)
        a = a + identity(x) if unit else a + torch.diag(x.diagonal() + 3)
        return weighted(L.solve_triangular(a, right_side(x, left), upper=upper, left=left, unitriangular=unit))

    return f


def old_triangular(transpose):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return weighted(torch.triangular_solve(right_side(x), lifted(x).triu(), transpose=transpose)[0])

    return f


def reflections(x, k):
    return x[:, :k], x[0, :2]


def applied(left, transpose):
    def f(x):
        return weighted(torch.ormqr(*reflections(x, 2), right_side(x, left), left=left, transpose=transpose))

    return f


SQUARE = {
    "det": lambda x: weighted(L.det(x).reshape(1)),
    "slogdet": lambda x: both([p.reshape(1) for p in L.slogdet(x)]),
    "solve": lambda x: weighted(L.solve(lifted(x), right_side(x))),
    "solve from the right": lambda x: weighted(L.solve(lifted(x), right_side(x, False), left=False)),
    "solve a vector": lambda x: weighted(L.solve(lifted(x), x[0] * x[1])),
    "inv": lambda x: weighted(L.inv(lifted(x))),
    "cholesky": lambda x: weighted(L.cholesky(definite(x))),
    "cholesky upper": lambda x: weighted(L.cholesky(definite(x), upper=True)),
    "cholesky_inverse": lambda x: weighted(torch.cholesky_inverse(real_diagonal(lifted(x)).tril())),
    "cholesky_inverse upper": lambda x: weighted(torch.cholesky_inverse(real_diagonal(lifted(x)).triu(), upper=True)),
    "cholesky_solve": lambda x: weighted(torch.cholesky_solve(right_side(x), lifted(x).tril())),
    "cholesky_solve upper": lambda x: weighted(torch.cholesky_solve(right_side(x), lifted(x).triu(), upper=True)),
    "lu": lambda x: both(L.lu(lifted(x))[1:]),
    "lu_factor": lambda x: weighted(L.lu_factor(lifted(x))[0]),
    "qr": lambda x: both(L.qr(x)),
    "qr complete": lambda x: both(L.qr(x, mode="complete")),
    "eigh": lambda x: weighted(L.eigh(hermitian(x))[0]) + projected(L.eigh(hermitian(x))[1]),
    "eigvalsh": lambda x: weighted(L.eigvalsh(hermitian(x))),
    "eig": lambda x: weighted(L.eig(x)[0]) + weighted(L.eig(x)[1].abs()),
    "eigvals": lambda x: weighted(L.eigvals(x)),
    "svd": svd_function,
    "svdvals": lambda x: weighted(L.svdvals(x)),
    "pinv": lambda x: weighted(L.pinv(x)),
    "nuclear norm": lambda x: L.matrix_norm(x, "nuc"),
    "spectral norm": lambda x: L.matrix_norm(x, 2),
    "cond": L.cond,
    "matrix_exp": lambda x: weighted(L.matrix_exp(x)),
    "matrix_power": lambda x: weighted(L.matrix_power(x, 3)),
    "matrix_power negative": lambda x: weighted(L.matrix_power(lifted(x), -2)),
    "cross": lambda x: weighted(L.cross(x, x.mT * x)),
    "dist": lambda x: torch.dist(x, x * x.flip(0), 3),
    **{f"vector_norm {p}": lambda x, p=p: L.vector_norm(x, p) for p in (2, 1, 3, 0.5, INF)},
    **{f"lu_solve left={left} adjoint={a}": lu_solved(left, a) for left in (True, False) for a in (True, False)},
    **{
        f"solve_triangular upper={up} left={left} unit={unit}": triangular(up, left, unit)
        for up in (True, False)
        for left in (True, False)
        for unit in (True, False)
    },
    **{f"triangular_solve transpose={t}": old_triangular(t) for t in (True, False)},
}
TALL = {
    "lu": lambda x: both(L.lu(x)[1:]),
    "lu_factor": lambda x: weighted(L.lu_factor(x)[0]),
    "qr": lambda x: both(L.qr(x)),
    "svd": svd_function,
    "pinv": lambda x: weighted(L.pinv(x)),
    "lstsq": lambda x: weighted(L.lstsq(x, right_side(x)).solution),
    "householder_product": lambda x: weighted(L.householder_product(*reflections(x, 2))),
    "householder_product with more columns than reflections": lambda x: weighted(
        L.householder_product(*reflections(x, 3))
    ),
    **{f"ormqr left={left} transpose={t}": applied(left, t) for left in (True, False) for t in (True, False)},
}
WIDE = {name: TALL[name] for name in ("lu", "lu_factor", "qr", "svd", "pinv", "lstsq")}
COMPLEX = [torch.float64, torch.complex128]


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", SQUARE)
def test_square(name, dtype):
    check_orders(SQUARE[name], random(3, 3, seed=3, dtype=dtype))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", TALL)
def test_tall(name, dtype):
    check_orders(TALL[name], random(4, 3, seed=4, dtype=dtype))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", WIDE)
def test_wide(name, dtype):
    check_orders(WIDE[name], random(3, 4, seed=5, dtype=dtype))


def test_residuals_of_least_squares():
    check_orders(lambda x: weighted(L.lstsq(x, right_side(x), driver="gelsd").residuals), random(4, 2, seed=6))


THIRD = [
    "det",
    "slogdet",
    "solve",
    "inv",
    "cholesky",
    "cholesky_solve",
    "lu_factor",
    "qr",
    "eigh",
    "eig",
    "svd",
    "pinv",
    "matrix_exp",
]


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", THIRD)
def test_third_order(name, dtype):
    check_third(SQUARE[name], random(3, 3, seed=3, dtype=dtype))
