"""What transforms mean together: nesting, captured tensors, `detach` and `no_grad`, dual numbers, exceptions."""

from __future__ import annotations

import threading

import pytest
import torch

import pushforward as pf
from pushforward.core.level import THREAD

D = torch.float64


@pytest.fixture(name="x")
def _x():
    return torch.randn(4, 3, dtype=D, generator=torch.Generator().manual_seed(0))


@pytest.fixture(name="w")
def _w():
    return torch.randn(3, dtype=D, generator=torch.Generator().manual_seed(1)).requires_grad_()


def second(x, w):
    """d/dw of x cos-like gradient: (x w) → cos(x w) w differentiated by w."""
    return (x * w).cos() - (x * w) * (x * w).sin()


def test_results_stay_differentiable_by_captured_tensors(x, w):
    out = pf.vmap(lambda r: (r * w).sin().sum())(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), w)[0], ((x * w).cos() * x).sum(0))
    want = second(x[0], w)
    g = pf.grad(lambda r: (r * w).sin().sum())(x[0])
    torch.testing.assert_close(torch.autograd.grad(g.sum(), w)[0], want)
    g = pf.vmap(pf.grad(lambda r: (r * w).sin().sum()))(x)
    torch.testing.assert_close(torch.autograd.grad(g.sum(), w)[0], second(x, w).sum(0))
    t = pf.jvp(lambda r: (r * w).sin(), (x[0],), (torch.ones(3, dtype=D),))[1]
    torch.testing.assert_close(torch.autograd.grad(t.sum(), w)[0], want)
    _, push = pf.linearize(lambda r: (r * w).sin(), x[0])
    torch.testing.assert_close(torch.autograd.grad(push(torch.ones(3, dtype=D)).sum(), w)[0], want)
    jacobian = pf.jacrev(lambda r: (r * w).sin())(x[0])
    torch.testing.assert_close(torch.autograd.grad(jacobian.sum(), w)[0], want)


def test_results_need_no_graph_where_nothing_outside_asks(x):
    f = lambda r: (r.sin() * r).sum()
    assert not pf.grad(f)(x[0]).requires_grad
    assert not pf.vmap(pf.grad(f))(x).requires_grad
    assert not pf.grad_and_value(f)(x[0])[1].requires_grad
    assert not pf.jacrev(f)(x[0]).requires_grad
    assert not pf.vjp(f, x[0])[0].requires_grad
    assert not pf.linearize(f, x[0])[0].requires_grad


def stopping(r):
    with torch.no_grad():
        c = r.sin()
    return (c * r + r.detach() * r + r.data.exp() * 0).sum()


def test_detach_and_no_grad_are_honoured_by_both_modes(x):
    want = x.sin() + x
    one = torch.ones_like(x)
    torch.testing.assert_close(pf.grad(stopping)(x[0]), want[0])
    torch.testing.assert_close(pf.vmap(pf.grad(stopping))(x), want)
    torch.testing.assert_close(pf.grad(lambda a: pf.vmap(stopping)(a).sum())(x), want)
    torch.testing.assert_close(pf.jvp(stopping, (x[0],), (one[0],))[1], want[0].sum())
    torch.testing.assert_close(pf.jvp(pf.vmap(stopping), (x,), (one,))[1], want.sum(1))
    torch.testing.assert_close(pf.vmap(lambda r, t: pf.jvp(stopping, (r,), (t,))[1])(x, one), want.sum(1))


def test_a_transform_under_no_grad_is_a_constant(x):
    def f(r):
        with torch.no_grad():
            inner = pf.vmap(torch.sin)(r)
            slope = pf.jvp(torch.sin, (r,), (torch.ones_like(r),))[1]
            gradient = pf.grad(lambda q: q.sin().sum())(r)
        return (inner * r + slope * r + gradient * r).sum()

    want = x[0].sin() + 2 * x[0].cos()
    torch.testing.assert_close(pf.grad(f)(x[0]), want)
    torch.testing.assert_close(pf.jvp(f, (x[0],), (torch.ones(3, dtype=D),))[1], want.sum())


def test_an_outer_no_grad_does_not_stop_a_transform(x):
    with torch.no_grad():
        torch.testing.assert_close(pf.grad(lambda r: r.sin().sum())(x[0]), x[0].cos())
        torch.testing.assert_close(pf.jvp(torch.sin, (x[0],), (x[0],))[1], x[0].cos() * x[0])
        torch.testing.assert_close(pf.vmap(pf.grad(lambda r: r.sin().sum()))(x), x.cos())
        torch.testing.assert_close(pf.jacrev(torch.sin)(x[0]), torch.diag(x[0].cos()))


def test_no_perturbation_confusion():
    one, three = torch.ones((), dtype=D), torch.tensor(3.0, dtype=D)
    f = lambda a: a * pf.grad(lambda b: a + b)(one)
    g = lambda a: a * pf.jvp(lambda b: a + b, (one,), (one,))[1]
    for h in (f, g):
        assert pf.grad(h)(three) == 1
        assert pf.jvp(h, (three,), (one,))[1] == 1


def test_every_nesting_of_two_equals_the_closed_form(x):
    f = lambda r: (r**3).sum() * r[0]
    grads = torch.stack([3 * r**2 * r[0] + torch.tensor([(r**3).sum(), 0, 0], dtype=D) for r in x])
    v = x.flip(0)

    def hvp(r, t):
        h = torch.diag(6 * r * r[0])
        h[0] += 3 * r**2
        h[:, 0] += 3 * r**2
        return h @ t

    products = torch.stack([hvp(r, t) for r, t in zip(x, v)])
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), grads)
    torch.testing.assert_close(pf.grad(lambda a: pf.vmap(f)(a).sum())(x), grads)
    torch.testing.assert_close(pf.vmap(lambda r, t: pf.jvp(pf.grad(f), (r,), (t,))[1])(x, v), products)
    torch.testing.assert_close(pf.jvp(lambda a: pf.vmap(pf.grad(f))(a), (x,), (v,))[1], products)
    torch.testing.assert_close(pf.vmap(lambda r, t: pf.grad(lambda q: pf.grad(f)(q) @ t)(r))(x, v), products)
    torch.testing.assert_close(pf.vmap(lambda r, t: pf.grad(lambda q: pf.jvp(f, (q,), (t,))[1])(r))(x, v), products)
    torch.testing.assert_close(pf.grad(lambda a: (pf.vmap(pf.grad(f))(a) * v).sum())(x), products)
    nested = pf.vmap(lambda r: pf.vmap(lambda t: pf.jvp(pf.grad(f), (r,), (t,))[1])(torch.eye(3, dtype=D)))(x)
    torch.testing.assert_close(nested, pf.vmap(pf.hessian(f))(x))
    torch.testing.assert_close(pf.vmap(pf.jacrev(pf.jacfwd(f)))(x), nested)
    torch.testing.assert_close(pf.vmap(pf.jacrev(pf.jacrev(f)))(x), nested)
    torch.testing.assert_close(pf.vmap(pf.jacfwd(pf.jacfwd(f)))(x), nested)


def test_an_inner_vmap_of_a_gradient_by_an_outer_value(x):
    """The gradient by a value of the outer level, taken inside an inner vmap, is one for each inner lane."""
    inner = lambda r: pf.vmap(lambda c: pf.grad(lambda q: (q * c).sin().sum())(r))(torch.arange(1.0, 3, dtype=D))
    want = torch.stack([torch.stack([c * (r * c).cos() for c in (1.0, 2.0)]) for r in x])
    torch.testing.assert_close(pf.vmap(inner)(x), want)


def test_hooks_fire_under_vmap_of_grad(x):
    seen = []

    def f(r):
        y = r.sin()
        y.register_hook(lambda g: seen.append(tuple(g.shape)) or g * 2)
        return y.sum()

    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), 2 * x.cos())
    assert seen == [(3,)]


def test_a_dual_number_does_not_outlive_its_level():
    kept = []
    pf.jvp(lambda r: (kept.append(r * 2), r)[1], (torch.ones(2),), (torch.ones(2),))
    with pytest.raises(pf.EscapedValueError, match="has ended"):
        kept[0] + 1
    with pf.forward_ad.dual_level():
        d = pf.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert pf.forward_ad.unpack_dual(d.exp()).tangent is not None
    with pytest.raises(pf.EscapedValueError):
        d.exp()


def test_exceptions_leave_nothing_behind(x):
    def fail(r):
        r.sin()
        msg = "no"
        raise ValueError(msg)

    for run in (
        lambda: pf.vmap(fail)(x),
        lambda: pf.jvp(fail, (x,), (x,)),
        lambda: pf.vmap(pf.grad(fail))(x),
        lambda: pf.jvp(pf.vmap(fail), (x,), (x,)),
        lambda: pf.vmap(lambda r: pf.jvp(fail, (r,), (r,)))(x),
    ):
        with pytest.raises(ValueError, match="no"):
            run()
        assert not THREAD.levels
        assert THREAD.order == 0
        torch.testing.assert_close(torch.sin(x), x.sin())


def test_threads_run_at_once(x):
    out: dict[int, torch.Tensor] = {}

    def work(k):
        for _ in range(5):
            out[k] = pf.vmap(pf.grad(lambda z: (z**3).sum()))(x + k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(4):
        torch.testing.assert_close(out[k], 3 * (x + k) ** 2)


def test_complex_jacobians():
    z = torch.tensor([1 + 2j, -0.5 + 1j], dtype=torch.complex128)
    r = torch.tensor([0.3, -1.2], dtype=D)
    torch.testing.assert_close(pf.jacrev(lambda q: q**2)(z), torch.diag(2 * z))
    torch.testing.assert_close(pf.jacfwd(lambda q: q**2)(z), torch.diag(2 * z))
    wave = lambda q: torch.exp(1j * q)
    torch.testing.assert_close(pf.jacfwd(wave)(r), torch.diag(1j * torch.exp(1j * r)))
    torch.testing.assert_close(pf.jacrev(wave)(r), torch.diag(1j * torch.exp(1j * r)))


def test_autograd_by_a_captured_tensor_inside_a_transform(x, w):
    """What the function captured may be differentiated by inside, though the short ways record it on payloads only."""
    inside = lambda r: torch.autograd.grad((r * w).sin().sum(), w)[0]
    torch.testing.assert_close(pf.vmap(inside)(x), (x * w).cos() * x)
    pushed = pf.jvp(inside, (x[0],), (torch.ones(3, dtype=D),))[1]
    torch.testing.assert_close(pushed, ((x[0] * w).cos() - (x[0] * w).sin() * w * x[0]).detach())
    assert pf.vmap(lambda r: (r * w, torch.tensor(float((r * w).requires_grad))))(x)[1].all()
    seen = []

    def hooked(r):
        y = (r * w).sin()
        y.register_hook(lambda g: seen.append(g) or g)
        return torch.autograd.grad(y.sum(), w)[0]

    torch.testing.assert_close(pf.vmap(hooked)(x), (x * w).cos() * x)
    assert seen


def test_gradients_through_modules_whose_parameters_require_grad(x):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    want = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    got = torch.autograd.grad(pf.vmap(net)(x).sum(), list(net.parameters()))
    torch.testing.assert_close(got, want)
    got = torch.autograd.grad(pf.jvp(net, (x,), (x,))[0].sum(), list(net.parameters()))
    torch.testing.assert_close(got, want)
    twice = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(twice).sum(), twice, create_graph=True)
    want = torch.autograd.grad((slope * x).sum(), list(net.parameters()), allow_unused=True)
    for product in (
        lambda: pf.jvp(net, (x,), (x,))[1].sum(),
        lambda: (pf.vmap(pf.grad(lambda r: net(r).sum()))(x) * x).sum(),
        lambda: pf.vmap(lambda r: pf.jvp(net, (r,), (r,))[1])(x).sum(),
        lambda: (pf.grad(lambda a: net(a).sum())(x) * x).sum(),
    ):
        torch.testing.assert_close(torch.autograd.grad(product(), list(net.parameters()), allow_unused=True), want)
