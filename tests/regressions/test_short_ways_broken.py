"""What fresh eyes found wrong in the short ways and beside them; each is one of a kind."""

import functools
import gc
import math
import weakref

import pytest
import torch
import torch.nn.functional as F

import pushforward as pf

D = torch.float64


def normal(*shape, dtype=D):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


# -- lanes ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning")
@pytest.mark.parametrize("option", [{"size_average": False}, {"reduce": False}, {"reduce": True}])
def test_old_options_of_losses(option):
    x, t = normal(4, 5, 3), torch.randint(3, (4, 5), generator=torch.Generator().manual_seed(0))
    loss = lambda x, t: F.cross_entropy(x, t, **option)
    torch.testing.assert_close(pf.vmap(loss)(x, t), torch.stack([loss(a, b) for a, b in zip(x, t, strict=True)]))


C = torch.complex128
COMPLEX = [
    lambda w, x: ((x @ w).abs() ** 2).sum(),
    lambda w, x: ((w.mT @ x).abs() ** 3).sum(),
    lambda w, x: F.linear(x, w.mT).abs().sum(),
    lambda w, x: ((x @ w @ w.mH).abs() ** 2).sum(),
    lambda w, x: F.conv1d(x[None, None], w.mT[:, None]).abs().sum(),
]


@pytest.mark.parametrize("k", range(len(COMPLEX)))
def test_complex_weights_that_all_lanes_share(k):
    f, w, x = COMPLEX[k], normal(3, 2, dtype=C), normal(4, 3, dtype=C)

    def gradient(v):
        z = w.clone().requires_grad_()
        return torch.autograd.grad(f(z, v), z)[0]

    for _ in range(3):
        torch.testing.assert_close(pf.vmap(pf.grad(f), (None, 0))(w, x), torch.stack([gradient(v) for v in x]))


def test_groups_that_return_different_kinds():
    x = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0])
    number, value = torch.tensor([1.0, -1.0, 1.0, -2.0, 1.0]), torch.tensor([1.0, 1.0, 2.0, 1.0, 3.0])
    assert torch.equal(pf.vmap(lambda x: (x, 1) if x > 0 else (x, x))(x)[1], number)
    assert torch.equal(pf.vmap(lambda x: (x, x) if x > 0 else (x, 1))(x)[1], value)
    assert torch.equal(pf.vmap(lambda x: x if x > 0 else 1)(x), value)
    assert torch.equal(pf.vmap(lambda x: 1.0 if x > 0 else x)(x), number)
    found = pf.vmap(lambda x: {"a": "no"} if x > 0 else {"a": x * torch.ones(2)})(x)["a"]
    assert found[0] == found[2] == found[4] == "no"
    assert torch.equal(found[1], -torch.ones(2))
    assert torch.equal(found[3], -2 * torch.ones(2))
    shapes = [tuple(v.shape) for v in pf.vmap(lambda x: x * torch.ones(2) if x > 0 else 1)(x).to_list()]
    assert shapes == [(2,), (), (2,), (), (2,)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, D])
def test_two_zeros_are_two_answers(dtype):
    z = torch.tensor([0.0, -0.0, 1.0], dtype=dtype)
    assert pf.vmap(lambda x: x * 0 + math.copysign(1, x.item()))(z).tolist() == [1, -1, 1]
    assert pf.vmap(lambda x: x * 0 + math.copysign(1, x.tolist()[0]))(z[:, None]).flatten().tolist() == [1, -1, 1]


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_python_values_of_lanes_with_one_element(shape):
    x = torch.tensor([1.0, 0.0, 2.0]).view(3, *shape)
    for f in (
        lambda x: x * 2 if x else x - 1,
        lambda x: x + x.item(),
        lambda x: x * float(x) + int(x),
        lambda x: x + sum(range(int(x))),
    ):
        assert torch.equal(pf.vmap(f)(x), torch.stack([f(v) for v in x]))


def test_writes_through_views_of_some_lanes_reach_the_caller_once():
    def f(x, y):
        if y > 0:
            return x.sum()
        x[0].mul_(2)
        x[1:] += 1
        return x.sum()

    x, y = torch.ones(5, 2), torch.tensor([1.0, 1, 1, -1, -1])
    assert pf.vmap(f)(x, y).tolist() == [2, 2, 2, 4, 4]
    assert x.tolist() == [[1, 1]] * 3 + [[2, 2]] * 2
    x = torch.ones(5, 2)
    pf.vmap(lambda x: x[0].mul_(2), chunk_size=2)(x)
    assert x.tolist() == [[2, 1]] * 5


@pytest.mark.parametrize("bias", [(3,), "float"])
def test_biases_that_are_errors_for_a_lane(bias):
    x, w = normal(4, 3), normal(1, 3) if bias == (3,) else normal(3, 3)
    b = normal(4, 3).float() if bias == "float" else normal(4, *bias)
    with pytest.raises(RuntimeError):
        F.linear(x[0], w, b[0])
    with pytest.raises(RuntimeError):
        pf.vmap(F.linear, (0, None, 0))(x, w, b)


# -- differentiations -------------------------------------------------------------------------------------------------


def test_cumprod_of_lanes_at_zero_to_second_order():
    x, v = torch.tensor([0.0, 1, -1, 2], dtype=D), torch.tensor([0.3, 0.5, -0.2, 1], dtype=D)
    g = lambda x: pf.vmap(lambda r: r.cumprod(0).sin().sum())(torch.stack([x, x + 1])).sum()
    step = 1e-6
    want = (pf.grad(g)(x + step * v) - pf.grad(g)(x - step * v)) / (2 * step)
    pulled = lambda x: pf.vjp(g, x)[1](torch.ones((), dtype=D))[0]
    for got in (
        pf.jvp(pulled, (x,), (v,))[1],
        pf.jvp(pf.grad(g), (x,), (v,))[1],
        pf.vmap(lambda v: pf.jvp(pf.grad(g), (x,), (v,))[1])(v[None])[0],
    ):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


def test_a_gradient_that_is_written_into_is_nobody_elses():
    one = torch.ones(2)
    pf.jvp(lambda y: pf.vmap(lambda q: pf.grad(lambda s: s)(q).mul_(3))(y), (one,), (one,))
    assert pf.jvp(lambda q: pf.vmap(pf.grad(lambda z: z**2))(q), (one,), (one,))[1].tolist() == [2, 2]


def catches_a_write(z):
    y = z.clone()
    try:
        y[0] = 2.0
    except BaseException:
        y = z * 0
    return (y**3).sum()


def catches_a_hook(z):
    y = z * 1
    try:
        y.register_hook(lambda g: 2 * g)
    except BaseException:
        return y.sum() * 0
    return (y**3).sum()


@pytest.mark.parametrize("f", [catches_a_write, catches_a_hook])
def test_functions_that_catch_everything(f):
    x, one = torch.tensor([1.0, 2.0]), torch.ones(2)
    plain = pf.grad(f)(x)
    torch.testing.assert_close(pf.jvp(pf.grad(f), (x,), (one,))[0], plain)
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x[None])[0], plain)


def test_inference_tensors():
    f = lambda z: (z**3).sum()
    x = torch.ones(3)
    with torch.inference_mode():
        v = torch.ones(3)
        push = pf.linearize(torch.sin, torch.ones(3))[1]
        for _ in range(4):
            torch.testing.assert_close(push(torch.ones(3)), x.cos())
    for point in (x, v):
        assert pf.jvp(pf.grad(f), (point,), (v,))[1].tolist() == [6, 6, 6]
    assert pf.vmap(pf.grad(lambda z: z**3))(v).tolist() == [3, 3, 3]


def test_an_input_returned_beside_is_written_through():
    def outer(q):
        _, aux = pf.grad(lambda z: ((z**3).sum(), z[1:]), has_aux=True)(q)
        aux.mul_(2)
        return q * 1

    for transform in (lambda x: pf.jvp(outer, (x,), (torch.ones(3),))[1], lambda x: pf.vmap(outer)(x[None])[0], outer):
        x = torch.ones(3)
        assert transform(x).tolist() == [1, 2, 2]
        assert x.tolist() == [1, 2, 2]


class Counting(torch.nn.Module):
    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return F.dropout(x, 0.5).pow(3).sum()


def test_giving_up_is_remembered_of_every_callable():
    for f in (Counting(), functools.partial(Counting.forward, None), functools.lru_cache(Counting().forward)):
        pf.jvp(pf.grad(f), (torch.ones(3),), (torch.ones(3),))
        before = Counting.calls
        pf.jvp(pf.grad(f), (torch.zeros(3),), (torch.ones(3),))
        assert Counting.calls == before + 1


def test_a_direction_that_the_function_captured():
    d, v, m = normal(4), normal(4) + 1, normal(4, 4)
    for f in (lambda x: (m @ (x * d)) / d, lambda x: (x * d).sin(), lambda x: torch.flip(x * d, [0]) / d):
        for captured in (d, torch.zeros(4, dtype=D)):
            x = normal(4)
            push = pf.linearize(f, x)[1]
            for w in (v, d, captured, captured, v):
                torch.testing.assert_close(push(w), pf.jvp(f, (x,), (w,))[1])


def test_recorded_pushes_let_go_of_their_tensors():
    w = normal(30, 30)
    seen = weakref.ref(w)
    gc.collect()
    gc.disable()
    try:
        push = pf.linearize(lambda x, w=w: (w @ x).sin(), normal(30))[1]
        for _ in range(4):
            push(normal(30))
        del push, w
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore")
def test_compiled_functions_inside_transforms_that_begin_again():
    compiled = torch.compile(lambda z: (z * z * z).sum(), backend="aot_eager")
    x, v = torch.tensor([1.0, 2.0]), torch.ones(2)
    f = lambda z: compiled(z) * (torch.rand(()) * 0 + 1)
    for _ in range(4):
        torch.testing.assert_close(pf.jvp(pf.grad(f), (x,), (v,)), (3 * x**2, 6 * x * v))
    assert torch.ones(2, requires_grad=True).sin().requires_grad
    torch.testing.assert_close(pf.hessian(compiled)(x), torch.diag(6 * x))
    torch.testing.assert_close(pf.linearize(compiled, x)[1](v), (3 * x**2 * v).sum())


def test_complex_zeros_under_reverse_over_forward():
    x, v = normal(3, dtype=C), normal(3, dtype=C)
    f = lambda x: torch.zero_(x * 1) + x
    by_x, by_v = pf.vjp(lambda x, v: pf.jvp(f, (x,), (v,))[1], x, v)[1](v)
    assert torch.equal(by_x, torch.zeros_like(x))
    assert torch.equal(by_v, v)
