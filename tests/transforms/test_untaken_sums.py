"""A branch that is not taken, where sums go over its elements, what is no such branch, and what all that costs."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

from .untaken import INF, NAN, D, gradient, hessian

# -- what is summed inside a node -----------------------------------------------------------------------------------


def broadcast_cases():
    y = torch.tensor([[1.0, NAN, 2.0], [INF, 0.5, 3.0]], dtype=D)
    good = torch.isfinite(y)
    clean = torch.where(good, y, 0.7)
    ops = {
        "mul": lambda w, y: w * y,
        "div": lambda w, y: y / w,
        "divided by": lambda w, y: w / y,
        "addcmul": lambda w, y: torch.addcmul(w, w, y),
        "pow": lambda w, y: w**y,
        "atan2": lambda w, y: torch.atan2(w, y),
        "lerp": lambda w, y: torch.lerp(w, y, w),
        "error": lambda w, y: (w * 2 - y) ** 2,
    }
    weights = {
        "scalar": torch.tensor(0.5, dtype=D),
        "row": torch.tensor([0.5, 2.0, 3.0], dtype=D),
        "column": torch.tensor([[0.5], [2.0]], dtype=D),
        "full": torch.full((2, 3), 0.5, dtype=D),
        "larger": torch.full((4, 1, 3), 0.5, dtype=D),
    }
    return y, good, clean, ops, weights


Y, GOOD, CLEAN, OPS, WEIGHTS = broadcast_cases()


@pytest.mark.parametrize("size", WEIGHTS)
@pytest.mark.parametrize("name", OPS)
def test_operands_that_were_broadcast(name, size):
    op, w = OPS[name], WEIGHTS[size]
    f = lambda w: torch.where(GOOD, op(w, Y), 0.25).sum()
    g = lambda w: torch.where(GOOD, op(w, CLEAN), 0.25).sum()
    torch.testing.assert_close(pf.grad(f)(w), gradient(g, w))
    n = w.numel()
    torch.testing.assert_close(pf.hessian(f)(w).reshape(n, n), hessian(g, w))
    torch.testing.assert_close(pf.vmap(pf.grad(f))(torch.stack([w, w])), gradient(g, w).expand(2, *w.shape))
    torch.testing.assert_close(pf.jvp(pf.grad(f), (w,), (w,))[1].reshape(-1), hessian(g, w) @ w.reshape(-1))


def test_real_operand_of_a_complex_product():
    z = torch.tensor([1 + 2j, complex(NAN, 1), 3 - 1j], dtype=torch.complex128)
    good = torch.tensor([True, False, True])
    w = torch.tensor(0.5, dtype=D)
    f = lambda w: torch.view_as_real(torch.where(good, w * z, 0)).pow(2).sum()
    torch.testing.assert_close(pf.grad(f)(w), (z[good].abs() ** 2).sum() * 2 * w)


# -- beyond element-wise functions -----------------------------------------------------------------------------------


def test_a_flag_for_a_whole_value():
    x = torch.zeros(2, 2, dtype=D)
    for f in (torch.linalg.det, lambda x: x.norm().sqrt(), lambda x: torch.linalg.inv_ex(x)[0].sum(), lambda x: (x @ x).sqrt()):
        g = lambda x, f=f: torch.where(x.sum() > 0, f(x), x.sum()).sum()
        ones = torch.full_like(x, float(f(x).numel()))
        torch.testing.assert_close(pf.grad(g)(x), ones)
        torch.testing.assert_close(pf.vmap(pf.grad(g))(x.expand(3, 2, 2)), ones.expand(3, 2, 2))


@pytest.mark.parametrize("function", ["softmax", "log_softmax", "logsumexp", "prod", "norm", "amax", "cumprod"])
def test_rows_that_are_not_taken(function):
    scores = torch.tensor([[1.0, 2.0, -INF], [-INF, -INF, -INF], [0.5, -1.0, 3.0]], dtype=D)
    if function in ("norm", "cumprod", "prod"):
        scores = torch.tensor([[1.0, 2.0, 3.0], [NAN, 1.0, INF], [0.5, -1.0, 3.0]], dtype=D)
    call = getattr(torch, function)
    call = (lambda s, call=call: call(s, dim=-1)) if function != "norm" else (lambda s: torch.norm(s, dim=-1))
    live = torch.tensor([True, False, True])
    keep = live[:, None] if call(scores).dim() == 2 else live

    def f(scores):
        out = call(scores)
        return (torch.where(keep & torch.isfinite(out), out, 0.0) ** 2).sum()

    part = pf.grad(lambda s: (torch.where(torch.isfinite(call(s)), call(s), 0.0) ** 2).sum())(scores[live])
    expected = torch.zeros_like(scores)
    expected[live] = part
    torch.testing.assert_close(pf.grad(f)(scores), expected)


PRODUCTS = {
    "mm": lambda a, w: a @ w,
    "addmm": lambda a, w: torch.addmm(w[0], a, w, alpha=0.5, beta=2),
    "linear": lambda a, w: torch.nn.functional.linear(a, w.t(), w[0]),
    "mv": lambda a, w: (a @ w[:, 0])[:, None],
    "addmv": lambda a, w: torch.addmv(w[0, 0].expand(3), a, w[:, 1])[:, None],
    "bmm": lambda a, w: torch.bmm(torch.stack([a, a]), torch.stack([w, w * 2])).sum(0),
    "baddbmm": lambda a, w: torch.baddbmm(w[0], torch.stack([a, a]), torch.stack([w, w * 2]))[0],
    "network": lambda a, w: torch.tanh(a @ w + w[0]) @ w.t(),
    "by columns": lambda a, w: (w.t() @ a.t()).t(),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_of_matrix_products(name):
    a = torch.tensor([[1.0, 2.0], [NAN, INF], [0.0, -0.5]], dtype=D)
    w = torch.tensor([[0.5, -1.0, 2.0, 1.0], [1.5, 0.25, -0.5, 3.0]], dtype=D)
    live = torch.tensor([True, False, True])[:, None]
    f = lambda a, w: (torch.where(live, PRODUCTS[name](a, w), 0.0) ** 2).sum()
    g = lambda w: f(torch.where(live, a, 0.3), w)
    torch.testing.assert_close(pf.grad(lambda w: f(a, w))(w), gradient(g, w))
    torch.testing.assert_close(pf.hessian(lambda w: f(a, w))(w).reshape(8, 8), hessian(g, w))
    of_rows = lambda a: (torch.where(live, PRODUCTS[name](a.sqrt(), w), 0.0) ** 2).sum()
    of_safe = lambda a: of_rows(torch.where(live, a, 0.3))
    b = torch.tensor([[1.0, 2.0], [0.0, 0.0], [4.0, 0.5]], dtype=D)
    torch.testing.assert_close(pf.grad(of_rows)(b), gradient(of_safe, b))
    torch.testing.assert_close(pf.hessian(of_rows)(b).reshape(6, 6), hessian(of_safe, b))


FLAGGED = {
    "inv": lambda x: torch.linalg.inv_ex(x)[0].sum(),
    "product": lambda x: (x @ x).sqrt().sum(),
    "singular values": lambda x: torch.linalg.svdvals(x).sqrt().sum(),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x.log(), (2,))[0, 0],
    "convolution": lambda x: torch.nn.functional.conv1d((1 / x)[None], torch.ones(1, 2, 1, dtype=D)).sum(),
}


@pytest.mark.parametrize("name", FLAGGED)
def test_a_flag_that_differs_between_lanes(name):
    zero, regular = torch.zeros(2, 2, dtype=D), torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=D)
    f = lambda x: torch.where(x.sum() > 0, FLAGGED[name](x), (x * x).sum())
    g = lambda x: FLAGGED[name](x) if x.sum() > 0 else (x * x).sum()
    rows, v = torch.stack([zero, regular, zero]), torch.ones(2, 2, dtype=D)
    expected = torch.stack([pf.grad(g)(x) for x in rows])
    torch.testing.assert_close(pf.vmap(pf.grad(f))(rows), expected)
    torch.testing.assert_close(torch.stack([pf.grad(f)(x) for x in rows]), expected)
    expected = torch.stack([pf.hvp(g, x, v)[1] for x in rows])
    torch.testing.assert_close(pf.vmap(lambda x: pf.jvp(pf.grad(f), (x,), (v,))[1])(rows), expected)
    torch.testing.assert_close(pf.vmap(pf.grad(lambda x: pf.grad(f)(x).sum()))(rows), expected)


# -- what is no untaken branch ------------------------------------------------------------------------------------


def test_nan_of_a_branch_that_is_taken_stays():
    x = torch.tensor([0.0, 4.0], dtype=D)
    assert pf.grad(lambda x: torch.where(x > 0, x.sqrt(), x.sqrt() * 2).sum())(x).tolist() == [INF, 0.25]
    assert pf.grad(lambda x: (x.sqrt() ** 2).sum())(x).isnan().tolist() == [True, False]
    assert pf.grad(lambda x: torch.where(x >= 0, x.sqrt() ** 2, x).sum())(x).isnan().tolist() == [True, False]
    assert pf.grad(lambda x: torch.where(x > 0, x, NAN * x).sum())(x).isnan().tolist() == [True, False]


def test_an_element_that_another_use_takes_is_alive():
    x = torch.tensor([0.0, 4.0], dtype=D)

    def f(x):
        y = x.sqrt()
        return torch.where(x > 0, y, x).sum() + y.sum()

    assert pf.grad(f)(x).tolist() == [INF, 0.5]

    def g(x):  # 0 · ∞ of the second use, which no `where` guards
        y = x.sqrt()
        return torch.where(x > 0, y, x).sum() + (y * y).sum()

    assert pf.grad(g)(x).isnan().tolist() == [True, False]


def test_nan_cotangents_stay():
    x = torch.tensor([0.0, 4.0], dtype=D)
    _, pull = pf.vjp(lambda x: torch.where(x > 0, x.sqrt(), x), x)
    (g,) = pull(torch.tensor([1.0, NAN], dtype=D))
    assert g[0] == 1
    assert g[1].isnan()


def test_a_function_of_the_users_may_pass_on_what_it_likes():
    class Biased(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g + 1

    x = torch.tensor([0.0, 4.0], dtype=D)
    f = lambda x: torch.where(x > 0, Biased.apply(x), x).sum() + torch.where(x > 0, x.sqrt(), x).sum()
    assert pf.grad(f)(x).tolist() == [3.0, 2.25]


# -- finite at first, and not when differentiated again --------------------------------------------------------------

MIXED = {
    "scalar": torch.tensor(2.0, dtype=D),
    "row": torch.tensor([2.0, 0.5], dtype=D),
    "column": torch.tensor([[2.0], [0.5]], dtype=D),
    "full": torch.tensor([[2.0, 0.5], [1.5, 3.0]], dtype=D),
}


@pytest.mark.parametrize("size", MIXED)
@pytest.mark.parametrize("form", [lambda w, r: w * r.sqrt(), lambda w, r: (w + r.sqrt()).exp(), lambda w, r: w**2 / (1 + r.sqrt())])
def test_mixed_derivatives(form, size):
    w, r = MIXED[size], torch.tensor([[0.0, 4.0], [1.0, 0.0]], dtype=D)
    f = lambda w, r: torch.where(r > 0, form(w, r), 0.0).sum()
    g = lambda w, r: torch.where(r > 0, form(w, torch.where(r > 0, r, 0.7)), 0.0).sum()
    u = torch.linspace(-1, 1, w.numel(), dtype=D).reshape(w.shape)
    leaves = [w.clone().requires_grad_(), r.clone().requires_grad_()]
    (first,) = torch.autograd.grad(g(*leaves), leaves[0], create_graph=True)
    (expected,) = torch.autograd.grad((first * u).sum(), leaves[1])
    assert torch.isfinite(pf.grad(f)(w, r)).all()
    mixed = lambda r: (pf.grad(f)(w, r) * u).sum()
    torch.testing.assert_close(pf.grad(mixed)(r), expected)
    torch.testing.assert_close(pf.jacrev(mixed)(r), expected)
    torch.testing.assert_close(pf.vmap(pf.grad(mixed))(torch.stack([r, r])), torch.stack([expected, expected]))
    torch.testing.assert_close(pf.jvp(mixed, (r,), (r + 1,))[1], (expected * (r + 1)).sum())


@pytest.mark.parametrize("name", PRODUCTS)
def test_mixed_derivatives_of_products(name):
    w = torch.tensor([[0.5, -1.0, 2.0, 1.0], [1.5, 0.25, -0.5, 3.0]], dtype=D)
    a = torch.tensor([[1.0, 2.0], [0.0, 0.0], [4.0, 0.5]], dtype=D)
    live = torch.tensor([True, False, True])[:, None]
    for power in (1, 2):
        f = lambda a, w, p=power: (torch.where(live, PRODUCTS[name](a.sqrt(), w), 0.0) ** p).sum()
        mixed = lambda a, f=f: pf.grad(lambda w: f(a, w))(w).sin().sum()
        expected = pf.grad(lambda a, mixed=mixed: mixed(torch.where(live, a, 0.3)))(a)
        assert torch.isfinite(expected).all()
        torch.testing.assert_close(pf.grad(mixed)(a), expected)
        torch.testing.assert_close(pf.jvp(mixed, (a,), (a + 1,))[1], (expected * (a + 1)).sum())


@pytest.mark.parametrize("power", [0.5, 1.5, 2.5, 3.5])
def test_third_and_fourth_order(power):
    x = torch.tensor([0.0, 4.0], dtype=D)
    f = lambda x: torch.where(x > 0, x**power, x).sum()
    once = lambda f: lambda x: pf.grad(f)(x).sum()
    factor = 1.0
    derivative = f
    for order in range(4):
        factor *= power - order
        expected = torch.tensor([1.0 if order == 0 else 0.0, factor * 4.0 ** (power - order - 1)], dtype=D)
        torch.testing.assert_close(pf.grad(derivative)(x), expected)
        torch.testing.assert_close(pf.vmap(pf.grad(derivative))(torch.stack([x, x])), torch.stack([expected, expected]))
        derivative = once(derivative)


def test_notes_go_with_their_graph():
    from pushforward.core.dead import NOTING

    before = len(NOTING)
    x = torch.tensor([0.0, 4.0], dtype=D, requires_grad=True)
    g = pf.grad(lambda x: torch.where(x > 0, x**1.5, x).sum())(x)
    assert len(NOTING) == before + 1
    del g
    assert len(NOTING) == before


# -- programs, errors, costs -----------------------------------------------------------------------------------------

ROOT = torch.tensor([0.0, 4.0], dtype=D)


def root(x):
    return torch.where(x > 0, x.sqrt(), x).sum()


def masked_error(w):
    return torch.where(GOOD, (w * torch.ones(2, 3, dtype=D) - Y) ** 2, 0).sum()


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_recorded_programs(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    for transformed, x in (
        (pf.grad(root), ROOT),
        (pf.hessian(root), ROOT),
        (lambda x: pf.jvp(pf.grad(root), (x,), (x + 1,))[1], ROOT),
        (pf.grad(lambda x: pf.grad(root)(x).sum()), ROOT),
        (pf.vmap(pf.grad(root)), ROOT.expand(3, 2)),
        (pf.grad(lambda x: torch.where(x.norm() > 0, x.norm().sqrt(), x.sum())), ROOT * 0),
    ):
        recorded = make_fx(transformed, tracing_mode=mode)(x)
        assert torch.isfinite(recorded(x)).all()
        torch.testing.assert_close(recorded(x), transformed(x))


def test_compiled_programs():
    for transformed, x in ((pf.grad(root), ROOT), (pf.hessian(root), ROOT), (pf.grad(masked_error), WEIGHTS["scalar"])):
        torch.testing.assert_close(pf.compile(transformed)(x), transformed(x))
        assert torch.isfinite(transformed(x)).all()
        assert "where" in pf.source(transformed)(x)


def test_debug_nans_is_silent_on_what_is_not_taken():
    with pf.debug_nans():
        assert pf.grad(root)(ROOT).tolist() == [1.0, 0.25]
        assert pf.jacrev(pf.grad(root))(ROOT).diagonal().tolist() == [0.0, -1 / 32]
        assert pf.vmap(pf.grad(root))(torch.stack([ROOT, ROOT])).tolist() == [[1.0, 0.25]] * 2
        assert torch.isfinite(pf.grad(masked_error)(WEIGHTS["scalar"]))
        assert pf.grad(lambda x: torch.where(x.sum() > 0, x.norm().sqrt(), x.sum()))(ROOT * 0).tolist() == [1.0, 1.0]
    for f in (
        lambda x: torch.where(x >= 0, x.sqrt(), x).sum(),
        lambda x: (x.sqrt() ** 2).sum(),
        lambda x: (torch.where(x > 5, x, x.sqrt()) * x).sum(),
    ):
        with pytest.raises(pf.NanError, match="Sqrt"), pf.debug_nans():
            pf.grad(f)(ROOT)


def test_same_bits_where_nothing_is_nan():
    x = torch.randn(7, 5, dtype=D, generator=torch.Generator().manual_seed(0))
    w = torch.randn(5, 4, dtype=D, generator=torch.Generator().manual_seed(1))

    def f(x, w):
        y = torch.where(x > 0, x.exp() * w[0, 0], x.sin())
        z = (y @ w).masked_fill(y[:, :4] > 1, 0.5)
        return (torch.nn.functional.linear(z, w, x[0]).softmax(-1) * y).sum() * w.norm()

    for argnum in (0, 1):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        (g,) = torch.autograd.grad(f(*leaves), leaves[argnum], create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), leaves[argnum])
        assert torch.equal(pf.grad(f, argnum)(x, w), g)
        assert torch.equal(pf.grad(lambda a, b, k=argnum: pf.grad(f, k)(a, b).sum(), argnum)(x, w), h)


def count_passes(f, x):
    """How often a node's backward runs during `grad(f)(x)`."""
    calls = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            calls.append(g)
            return g

    out = pf.grad(lambda x: f(Counted.apply(x)))(x)
    return len(calls), out


def test_one_pass_unless_there_is_a_nan():
    assert count_passes(root, ROOT + 1)[0] == 1
    assert count_passes(lambda x: (x.sqrt() ** 2).sum(), ROOT)[0] == 1
    passes, out = count_passes(root, ROOT)
    assert passes == 2
    assert out.tolist() == [1.0, 0.25]


def test_large_graphs_without_where_are_not_kept():
    from pushforward.core import carry

    kept = []
    engine = carry.engine
    carry.engine = lambda *args, **kwargs: kept.append(args[2]) or engine(*args, **kwargs)
    try:
        x = torch.ones(100_000)
        pf.grad(lambda x: x.sin().sum())(x)
        pf.vmap(pf.grad(lambda x: x.sin().sum()))(torch.stack([x, x]))
        assert kept == [False, False]
        pf.grad(lambda x: torch.where(x > 0, x.sin(), x).sum())(x)
        assert kept == [False, False, True]
    finally:
        carry.engine = engine


def test_hooks_and_checkpoints():
    from torch.utils.checkpoint import checkpoint

    heard = []

    def hooked(x):
        y = x.sqrt()
        y.register_hook(lambda g: heard.append(g.clone()))
        return torch.where(x > 0, y, x).sum()

    assert pf.grad(hooked)(ROOT).tolist() == [1.0, 0.25]
    assert all(g.tolist() == [0.0, 1.0] for g in heard)
    region = lambda x: checkpoint(lambda x: torch.where(x > 0, x.sqrt(), x), x, use_reentrant=False).sum()
    inside = lambda x: torch.where(x > 0, checkpoint(torch.sqrt, x, use_reentrant=False), x).sum()
    for f in (region, inside):
        assert pf.grad(f)(ROOT).tolist() == [1.0, 0.25]
        assert pf.vmap(pf.grad(f))(torch.stack([ROOT, ROOT])).tolist() == [[1.0, 0.25]] * 2
        assert pf.hessian(f)(ROOT).diagonal().tolist() == [0.0, -1 / 32]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        assert pf.grad(root)(ROOT).tolist() == [1.0, 0.25]
        assert torch.isfinite(pf.grad(masked_error)(WEIGHTS["scalar"]))


def test_no_hook_is_left_on_a_graph():
    from pushforward.core.untaken import STATE

    leaf = ROOT.clone().requires_grad_()
    y = leaf.sqrt()
    _, pull = pf.vjp(lambda x: torch.where(x > 0, y * x, x), ROOT)
    assert pull(torch.ones(2, dtype=D))[0].tolist() == [1.0, 2.0]
    assert not STATE.dead
    (g,) = torch.autograd.grad(torch.where(leaf > 0, y, leaf).sum(), leaf)
    assert g.isnan().tolist() == [True, False]  # torch's own call is torch's own
