"""Linear algebra under vmap: any subset of the arguments mapped, stacks of matrices, no lanes, one lane."""

import itertools
import warnings

import pytest
import torch

import pushforward as pf

L = torch.linalg
FLOAT = torch.float64


def random(*shape, seed=0, dtype=FLOAT):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def matrices(*stack, n=3, seed=0):
    a = random(*stack, n, n, seed=seed)
    return a @ a.mT + torch.eye(n, dtype=FLOAT)


def tall(*stack, seed=0):
    return random(*stack, 4, 2, seed=seed)


def quiet(function):
    def f(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return function(*args)

    return f


def parts(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


ONE = {
    "inv": L.inv,
    "det": L.det,
    "slogdet": L.slogdet,
    "cholesky": L.cholesky,
    "cholesky_ex": L.cholesky_ex,
    "cholesky_inverse": torch.cholesky_inverse,
    "lu": L.lu,
    "lu_factor": L.lu_factor,
    "lu_unpack": lambda a: torch.lu_unpack(*L.lu_factor(a)),
    "lu_unpack of pivots alone": lambda a: torch.lu_unpack(*L.lu_factor(a), unpack_data=False),
    "ldl_factor": L.ldl_factor,
    "qr": L.qr,
    "qr r": lambda a: L.qr(a, mode="r"),
    "geqrf": torch.geqrf,
    "eigh": L.eigh,
    "eigvalsh": L.eigvalsh,
    "eig": L.eig,
    "eigvals": L.eigvals,
    "svd": L.svd,
    "svdvals": L.svdvals,
    "pinv": L.pinv,
    "matrix_exp": L.matrix_exp,
    "matrix_rank": L.matrix_rank,
    "cond": L.cond,
    "norm nuc": lambda a: L.matrix_norm(a, "nuc"),
}


@pytest.mark.parametrize("lanes", [0, 1, 3])
@pytest.mark.parametrize("stack", [(), (2,)])
@pytest.mark.parametrize("name", ONE)
def test_one_matrix(name, stack, lanes):
    f = quiet(ONE[name])
    a = matrices(max(lanes, 1), *stack)
    got = parts(pf.vmap(f)(a[:lanes]))
    expected = [torch.stack(c)[:lanes] for c in zip(*[parts(f(x)) for x in a], strict=True)]
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e)


def lu_pair(a):
    return L.lu_factor(a)


TWO = {
    "solve": lambda a, b: L.solve(a, b),
    "solve left=False": lambda a, b: L.solve(a, b.mT, left=False),
    "solve_triangular": lambda a, b: L.solve_triangular(a, b, upper=True),
    "solve_triangular left=False": lambda a, b: L.solve_triangular(a, b.mT, upper=False, left=False),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, a),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, L.cholesky(a)),
    "lu_solve": lambda a, b: L.lu_solve(*L.lu_factor(a), b),
    "lu_solve left=False adjoint": lambda a, b: L.lu_solve(*L.lu_factor(a), b.mT, left=False, adjoint=True),
    "ldl_solve": lambda a, b: L.ldl_solve(*L.ldl_factor(a.contiguous()), b),
    "lstsq": lambda a, b: L.lstsq(a, b)[:2],
}
SHAPES = [((), ()), ((4,), (4,)), ((4,), ()), ((), (4,)), ((4, 1), (5,))]
NO_BROADCAST = {"ldl_solve", "lu_solve", "lu_solve left=False adjoint", "lstsq"}


@pytest.mark.parametrize("mapped", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("stacks", SHAPES)
@pytest.mark.parametrize("name", TWO)
def test_matrix_and_right_hand_side(name, stacks, mapped):
    f = quiet(TWO[name])
    for lanes in (3, 1, 0):
        a = matrices(*([3] if mapped[0] else []), *stacks[0], seed=1)
        b = random(*([3] if mapped[1] else []), *stacks[1], 3, 2, seed=2)
        rows = []
        for k in range(3):
            x, y = (t[k] if m else t for t, m in zip((a, b), mapped, strict=True))
            if name in NO_BROADCAST:  # torch's own answer is not to be relied on
                full = torch.broadcast_shapes(*stacks)
                x, y = x.expand(*full, 3, 3).contiguous(), y.expand(*full, 3, 2).contiguous()
            rows.append(parts(f(x, y)))
        a, b = (t[:lanes] if m else t for t, m in zip((a, b), mapped, strict=True))
        got = parts(pf.vmap(f, in_dims=tuple(0 if m else None for m in mapped))(a, b))
        for g, column in zip(got, zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(g, torch.stack(column)[:lanes])


@pytest.mark.parametrize("mapped", [(True, True), (True, False), (False, True)])
def test_solve_for_a_vector(mapped):
    dims = tuple(0 if m else None for m in mapped)
    a = matrices(3, seed=1) if mapped[0] else matrices(seed=1)
    b = random(3, 3, seed=2) if mapped[1] else random(3, seed=2)  # as many lanes as rows: the sizes alone do not tell
    expected = torch.stack([L.solve(a[k] if mapped[0] else a, b[k] if mapped[1] else b) for k in range(3)])
    torch.testing.assert_close(pf.vmap(L.solve, in_dims=dims)(a, b), expected)


def test_one_factorisation_for_a_shared_matrix():
    a, b = matrices(seed=1), random(5, 3, seed=2)
    calls = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "solve_ex" in func.name():
                calls.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    with Count():
        pf.vmap(lambda y: L.solve(a, y))(b)
    assert calls == [(3, 3)]


REFLECTIONS = {
    "householder_product": lambda v, tau, c: L.householder_product(v, tau),
    "ormqr": torch.ormqr,
    "ormqr right": lambda v, tau, c: torch.ormqr(v, tau, c.mT, left=False, transpose=True),
}


@pytest.mark.parametrize("stack", [(), (2,)])
@pytest.mark.parametrize("name", REFLECTIONS)
def test_reflections(name, stack):
    f = REFLECTIONS[name]
    for mapped in itertools.product([True, False], repeat=3):
        if not any(mapped[: 2 if name == "householder_product" else 3]):
            continue
        args = [
            random(*([3] if m else []), *stack, *core, seed=k)
            for k, (m, core) in enumerate(zip(mapped, [(4, 2), (2,), (4, 3)], strict=True))
        ]
        expected = torch.stack([f(*[x[k] if m else x for x, m in zip(args, mapped, strict=True)]) for k in range(3)])
        got = pf.vmap(f, in_dims=tuple(0 if m else None for m in mapped))(*args)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dim", [0, -1, 1])
def test_cross(dim):
    a, b = random(4, 3, 3), random(3, 3, seed=1)
    expected = torch.stack([L.cross(x, b, dim=dim) for x in a])
    torch.testing.assert_close(pf.vmap(lambda x: L.cross(x, b, dim=dim))(a), expected)
    torch.testing.assert_close(pf.vmap(lambda x: L.cross(b, x, dim=dim))(a), -expected)


def test_pinv_with_tolerances_of_each_lane():
    a, tolerance = tall(3), torch.tensor([0.0, 0.5, 10.0], dtype=FLOAT)
    expected = torch.stack([L.pinv(x, atol=t) for x, t in zip(a, tolerance, strict=True)])
    torch.testing.assert_close(pf.vmap(lambda x, t: L.pinv(x, atol=t))(a, tolerance), expected)
    one = torch.stack([L.pinv(a[0], atol=t) for t in tolerance])
    torch.testing.assert_close(pf.vmap(lambda t: L.pinv(a[0], atol=t))(tolerance), one)


def test_least_squares_where_some_lanes_lack_rank():
    a = tall(3)
    a[1, :, 1] = a[1, :, 0]
    b = random(4, 2, seed=1)

    def f(x):
        out = L.lstsq(x, b, driver="gelsd")
        return out.solution, out.rank, out.residuals.sum()

    expected = [torch.stack(c) for c in zip(*[f(x) for x in a], strict=True)]
    for g, e in zip(pf.vmap(f)(a), expected, strict=True):
        torch.testing.assert_close(g, e)


def test_least_squares_in_nested_lanes_of_different_rank():
    a, b = random(3, 2, 4, 2), random(4, 1, seed=1)
    a[1, 1, :, 1] = a[1, 1, :, 0]

    def f(x):
        return L.lstsq(x, b, driver="gelss").residuals.sum()

    expected = torch.stack([torch.stack([f(x) for x in rows]) for rows in a])
    torch.testing.assert_close(pf.vmap(pf.vmap(f))(a), expected)


def test_matrix_exponential_of_a_stack_with_the_lanes_last():
    a = random(2, 3, 3, 4)
    expected = torch.stack([L.matrix_exp(x) for x in a.unbind(-1)])
    torch.testing.assert_close(pf.vmap(L.matrix_exp, in_dims=-1)(a), expected)


def test_a_singular_lane_is_an_error():
    a = matrices(3)
    a[1] = 0
    with pytest.raises(RuntimeError, match="singular"):
        pf.vmap(L.inv)(a)
    with pytest.raises(RuntimeError, match="singular"):
        pf.vmap(L.solve, in_dims=(0, None))(a, a[0])


def test_nested_vmap_of_every_pair():
    a, b = matrices(3, seed=1), random(4, 3, 2, seed=2)
    for f in (
        L.solve,
        lambda x, y: L.lu_solve(*L.lu_factor(x), y),
        lambda x, y: torch.cholesky_solve(y, L.cholesky(x)),
    ):
        expected = torch.stack([torch.stack([L.solve(x, y) for y in b]) for x in a])
        got = pf.vmap(lambda x, f=f: pf.vmap(lambda y: f(x, y))(b))(a)
        torch.testing.assert_close(got, expected)


def test_a_complete_q_of_a_tall_matrix_is_refused():
    with pytest.raises(pf.NotDifferentiableError, match="complete"):
        pf.jvp(lambda x: L.qr(x, mode="complete")[0], (tall(),), (tall(seed=1),))
    a = tall()
    v = tall(seed=1)
    r = pf.jvp(lambda x: L.qr(x, mode="r")[1], (a,), (v,))[1]
    torch.testing.assert_close(r, pf.jvp(lambda x: L.qr(x)[1], (a,), (v,))[1])


def test_all_columns_of_a_full_svd_turn():
    a, v = tall(), tall(seed=1)

    def null_space(x):
        u = L.svd(x, full_matrices=True)[0][:, 2:]
        return u @ u.mT

    h = 1e-6
    expected = (null_space(a + h * v) - null_space(a - h * v)) / (2 * h)
    torch.testing.assert_close(pf.jvp(null_space, (a,), (v,))[1], expected, rtol=1e-6, atol=1e-8)
