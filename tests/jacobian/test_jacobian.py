"""`jacobian`, `value_and_jacobian`, `plan`: every mode gives torch's numbers, in the structure of torch.func."""

import math

import numpy as np
import pytest
import torch

import pushforward as pf

D = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")


def rnd(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def reference(f, x):
    return torch.autograd.functional.jacobian(f, x)


FUNCTIONS = {
    "tall": (lambda x: torch.outer(torch.arange(1.0, 8, dtype=D), x.sin()).reshape(-1), (3,)),
    "wide": (lambda x: (x.reshape(2, 6) ** 2).sum(1), (12,)),
    "square dense": (lambda x: torch.tanh(x.reshape(2, 2) @ x.reshape(2, 2)), (4,)),
    "banded": (lambda x: x[2:] * x[1:-1] - x[:-2] ** 2, (9,)),
    "arrow": (lambda x: torch.cat([(x**2).sum()[None], x[1:] * x[0] + x[1:] ** 2]), (7,)),
    "scalar": (lambda x: (x**3).sum(), (4,)),
    "constant": (lambda x: torch.ones(2, dtype=D) + 0 * x.detach().sum(), (3,)),
    "gelu": (lambda x: torch.nn.functional.gelu(x.reshape(2, 2)), (4,)),
    "matrix": (lambda x: x.T * 2, (2, 3)),
}
OPTIONS = [
    {},
    {"mode": "forward"},
    {"mode": "reverse"},
    {"mode": "both"},
    {"mode": "forward", "chunk_size": 2},
    {"mode": "reverse", "chunk_size": 2},
    {"sparsity": "global"},
    {"sparsity": "global", "mode": "forward", "chunk_size": 1},
    {"sparsity": "global", "mode": "reverse"},
    {"sparsity": "global", "mode": "both"},
    {"sparsity": "local"},
    {"sparsity": "auto"},
    {"memory": "1MiB"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_gives_the_jacobian(name, options):
    f, shape = FUNCTIONS[name]
    x = rnd(*shape)
    expected = reference(f, x)
    value, got = pf.value_and_jacobian(f, **options)(x)
    torch.testing.assert_close(value, f(x))
    if options.get("sparsity") in ("global", "local"):
        assert got.layout is torch.sparse_csr
    if got.layout is not torch.strided:
        assert got.shape == (expected.numel() // x.numel(), x.numel())
        got = got.to_dense().reshape(expected.shape)
    torch.testing.assert_close(got, expected)


def test_structure_is_that_of_torch_func():
    def f(a, b, k):
        return {"y": a * b["w"].sum() * k, "z": (b["v"].sin(), b["w"] @ b["w"])}

    args = (rnd(3), {"v": rnd(2, seed=1), "w": rnd(2, 2, seed=2)}, 3)
    for argnums in (0, 1, (0, 1), (1,)):
        want = torch.func.jacrev(f, argnums)(*args)
        for mode in ("auto", "forward", "reverse"):
            got = pf.jacobian(f, argnums, mode=mode)(*args)
            torch.testing.assert_close(got, want)
        sparse = pf.jacobian(f, argnums, sparsity="global")(*args)
        flat, spec = torch.utils._pytree.tree_flatten(sparse)
        full, full_spec = torch.utils._pytree.tree_flatten(want)
        assert spec == full_spec
        for s, w in zip(flat, full, strict=True):
            torch.testing.assert_close(s.to_dense().reshape(w.shape), w)
    named = pf.jacobian(f, "b")(*args)
    torch.testing.assert_close(named, torch.func.jacrev(f, 1)(*args))


def test_parameters_of_a_module():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(D)
    x = rnd(3)
    f = lambda p: pf.functional_call(net, p, (x,))
    params = {k: v.detach() for k, v in net.named_parameters()}
    torch.testing.assert_close(pf.jacobian(f)(params), torch.func.jacrev(f)(params))


def test_has_aux_and_outputs_without_a_derivative():
    f = lambda x: ({"y": x**2, "i": x.argmax()}, {"h": [x.sin()]})
    x = rnd(3)
    for mode in ("forward", "reverse"):
        j, aux = pf.jacobian(f, mode=mode, has_aux=True)(x)
        torch.testing.assert_close(j["y"], torch.diag(2 * x))
        assert not j["i"].any()
        torch.testing.assert_close(aux["h"][0], x.sin())
    value, j, aux = pf.value_and_jacobian(f, has_aux=True, sparsity="global")(x)
    torch.testing.assert_close(value["y"], x**2)
    torch.testing.assert_close(j["y"].to_dense(), torch.diag(2 * x))


def test_nesting_and_graphs():
    f = lambda x: x**2 * x.sum()
    x = rnd(4, 3)
    torch.testing.assert_close(pf.vmap(pf.jacobian(f))(x), torch.stack([reference(f, r) for r in x]))
    twice = pf.jacobian(pf.jacobian(f))(x[0])
    torch.testing.assert_close(twice, torch.func.jacrev(torch.func.jacrev(f))(x[0]))
    v = rnd(3, seed=1)
    moved = pf.jvp(pf.jacobian(f), (x[0],), (v,))[1]
    torch.testing.assert_close(moved, twice @ v)
    leaf = x[0].clone().requires_grad_()
    for options in ({"mode": "forward"}, {"mode": "reverse"}, {"mode": "forward", "chunk_size": 2}):
        g = torch.autograd.grad(pf.jacobian(f, **options)(leaf).sum(), leaf)[0]
        torch.testing.assert_close(g, twice.sum((0, 1)))
    sparse = pf.jacobian(lambda y: y**3, sparsity="global")(leaf)
    torch.testing.assert_close(torch.autograd.grad(sparse.values().sum(), leaf)[0], 6 * leaf.detach())


def counted(f):
    calls = []

    def g(x):
        calls.append(tuple(x.shape))
        return f(x)

    return g, calls


def test_two_colours_are_two_passes_in_one_run_of_the_function():
    f, calls = counted(lambda x: x[1:] * x[:-1])
    p = pf.plan(f, rnd(50), sparsity="global", verify=False)
    assert (p.n, p.m, p.mode, p.passes, p.colours, p.nnz) == (50, 49, "forward", 2, 2, 98)
    calls.clear()
    p(rnd(50, seed=1))
    assert len(calls) == 1
    chunked = pf.plan(f, rnd(50), sparsity="global", verify=False, chunk_size=1)
    calls.clear()
    chunked(rnd(50, seed=1))
    assert len(calls) == 2


def test_jacobian_plans_once_for_each_shape():
    f, calls = counted(lambda x: x[1:] * x[:-1])
    j = pf.jacobian(f, sparsity="global")
    j(rnd(5))
    calls.clear()
    j(rnd(5, seed=1))
    assert len(calls) == 1
    j(rnd(6))
    assert len(calls) > 2


def test_branches_on_values_are_planned_again():
    f = lambda x: x * 2 if x.sum() > 0 else x.flip(0)
    j = pf.jacobian(f, sparsity="global")
    torch.testing.assert_close(j(torch.ones(3, dtype=D)).to_dense(), 2 * torch.eye(3, dtype=D))
    torch.testing.assert_close(j(-torch.ones(3, dtype=D)).to_dense(), torch.eye(3, dtype=D).flip(0))


def test_a_mask_among_the_arguments_may_change():
    f = lambda x, mask: torch.where(mask, x, x.flip(0))
    j = pf.jacobian(f, sparsity="global")
    x = rnd(3)
    for mask in (torch.tensor([True, True, True]), torch.tensor([False, True, False])):
        torch.testing.assert_close(j(x, mask).to_dense(), reference(lambda y: f(y, mask), x))


def test_arrow_takes_few_passes_in_both_directions():
    n = 5000

    def f(x):
        return torch.cat([(x**2).sum()[None], x[1:] * x[0] + x[1:] ** 2])

    x = rnd(n)
    p = pf.plan(f, x, mode="both", sparsity="global")
    assert p.passes <= 6
    assert p.candidate.forward
    assert p.candidate.reverse
    j = p(x)
    v, u = rnd(n, seed=1), rnd(n, seed=2)
    torch.testing.assert_close(j @ v, pf.jvp(f, (x,), (v,))[1])
    torch.testing.assert_close(j.to_dense().T @ u, pf.vjp(f, x)[1](u)[0])


def test_plans_check_what_they_are_given():
    p = pf.plan(lambda x, k: x * k, rnd(3), 2, sparsity="global")
    for args, message in [
        ((rnd(4), 2), r"args\[0\].*shape \[4\]"),
        ((rnd(3).float(), 2), "float32"),
        ((rnd(3), 3), r"args\[1\] is 3"),
        ((rnd(3),), "structure"),
    ]:
        with pytest.raises(pf.ArgumentError, match=message):
            p(*args)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_pattern_that_is_too_small_is_caught(mode):
    f = lambda x: x * x.sum()
    with pytest.raises(pf.PatternError, match="misses nonzeros"):
        pf.jacobian(f, sparsity=torch.eye(4), mode=mode)(rnd(4))
    with pytest.raises(pf.ArgumentError, match=r"\(3, 3\)"):
        pf.jacobian(f, sparsity=torch.eye(3))(rnd(4))


def test_patterns_by_hand():
    sparse = pytest.importorskip("scipy.sparse")
    f = lambda x: x[1:] * x[:-1]
    x = rnd(6)
    mask = np.eye(5, 6) + np.eye(5, 6, 1)
    for pattern in (mask, torch.from_numpy(mask), sparse.csr_matrix(mask), pf.Pattern.from_mask(mask)):
        got = pf.jacobian(f, sparsity=pattern)(x)
        torch.testing.assert_close(got.to_dense(), reference(f, x))
    np.testing.assert_allclose(pf.to_scipy(got).toarray(), reference(f, x).numpy())


def test_words_that_do_not_exist():
    with pytest.raises(pf.ArgumentError, match="mode='sideways'"):
        pf.jacobian(torch.sin, mode="sideways")
    with pytest.raises(pf.ArgumentError, match="sparsity='yes'"):
        pf.jacobian(torch.sin, sparsity="yes")
    with pytest.raises(pf.ArgumentError, match="chunk_size"):
        pf.jacobian(torch.sin, chunk_size=0)
    with pytest.raises(pf.ArgumentError, match="no derivative"):
        pf.jacobian(torch.sin)(torch.arange(3))


def test_explain_save_load_plot(tmp_path, capsys):
    f = lambda x: x[1:] * x[:-1]
    p = pf.plan(f, rnd(30), sparsity="global")
    assert p.explain() is None
    text = str(p)
    assert "29 outputs × 30 inputs" in text
    assert "2 colours" in text
    assert "chosen: 2 passes of forward mode" in text
    assert text.split("\n")[0] in capsys.readouterr().out
    p.save(tmp_path / "plan.npz")
    again = pf.JacobianPlan.load(tmp_path / "plan.npz", f, rnd(30))
    x = rnd(30, seed=5)
    torch.testing.assert_close(again(x).to_dense(), p(x).to_dense())
    assert (again.passes, again.nnz, again.reason) == (p.passes, p.nnz, p.reason)
    with pytest.raises(pf.ArgumentError, match="29 outputs and 30 inputs"):
        pf.JacobianPlan.load(tmp_path / "plan.npz", f, rnd(31))
    pytest.importorskip("matplotlib")
    p.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 5000


HESSIANS = {
    "rosenbrock": lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(),
    "arrow": lambda x: (x[0] * x[1:] ** 2).sum() + x[0] ** 4,
    "dense": lambda x: (x.sum() ** 3) / math.pi,
    "separable": lambda x: x.exp().sum(),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_sparse_hessian(name):
    f = HESSIANS[name]
    x = rnd(8)
    expected = torch.autograd.functional.hessian(f, x)
    for options in ({"sparsity": "global"}, {"sparsity": "global", "mode": "reverse"}, {"sparsity": "local"}):
        torch.testing.assert_close(pf.hessian(f, **options)(x).to_dense(), expected)
    torch.testing.assert_close(pf.hessian(f, memory="1MiB")(x), expected)


def test_hessian_of_two_arguments_with_aux():
    f = lambda a, b: ((a**2 * b.sum()).sum(), a.sum())
    a, b = rnd(3), rnd(2, seed=1)
    got, aux = pf.hessian(f, (0, 1), sparsity="global", has_aux=True)(a, b)
    want = torch.autograd.functional.hessian(lambda a, b: f(a, b)[0], (a, b))
    for i in range(2):
        for k in range(2):
            torch.testing.assert_close(got[i][k].to_dense(), want[i][k])
    torch.testing.assert_close(aux, a.sum())
    with pytest.raises(pf.ArgumentError, match="scalar"):
        pf.hessian(lambda x: x**2, sparsity="global")(a)


@pytest.mark.parametrize("mode", ["forward", "reverse", "both"])
def test_compiled_plans(mode):
    f = lambda x: torch.cat([(x**2).sum()[None], x[1:] * x[0] + x[1:] ** 2])
    x = rnd(12)
    plan = pf.plan(f, x, sparsity="global", mode=mode)
    fast = plan.compiled(backend="graph")
    for seed in range(3):
        point = rnd(12, seed=seed)
        torch.testing.assert_close(fast(point).to_dense(), reference(f, point))
        torch.testing.assert_close(plan.values(point), plan(point).values())
    with pytest.raises(pf.ArgumentError, match="no sparsity pattern"):
        pf.plan(f, x).compiled()
    with pytest.raises(pf.ArgumentError, match="no sparsity pattern"):
        pf.plan(f, x).values(x)
