"""The short ways of `jvp`: right for any layout, dtype and number, seen by function modes, and taken under no nesting wrongly."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import pushforward as pf
from pushforward.forward.level import Dual

D = torch.float64
A = torch.randn(4, 4, dtype=D, generator=torch.Generator().manual_seed(3))


def rnd(*shape, seed=0, dtype=D):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


FUNCTIONS = {
    "numbers": lambda x: 2 * x - 3 + 0.5 / (x + 9) - (1 - x) / 7,
    "number types": lambda x: x * 2 + x * 2.0 - x * (2**24 + 1) + 0 * x + x / 3 - (-0.0 - x),
    "values": lambda x: x * x.sin() - x / (x + 9) + (x - x.exp()),
    "constants": lambda x: x * A - A / (x + 9) + (A + x) * (A - x) + torch.add(A, x) + torch.mul(A, x),
    "smaller constants": lambda x: x * A[0] + A[:, :1] - x / A[0, 0],
    "broadcast": lambda x: x + x[0] - x[:, :1] * x,
    "powers": lambda x: x**2 + x**3 - x**1 + (x * x + 1) ** 0.5 + (x + 9) ** -1 + x**0,
    "products": lambda x: A @ x + x @ A @ x + torch.mm(x, A) + x.matmul(x[0]) * torch.mv(A, x[1]) + torch.dot(x[0], x[1]),
    "linear": lambda x: F.linear(x, A, A[0]) + F.linear(A, x) + F.linear(x, x, x[0]),
    "moves": lambda x: x.roll(1, 0).flip(1) + torch.roll(x, (1, -1), (0, 1)).cumsum(0) - (-x).repeat(1, 1),
    "sums": lambda x: x.sum() + x.mean(0, keepdim=True) * torch.sum(x, dim=1) - x.mean(),
    "joins": lambda x: torch.cat([x, A, 2 * x]).sum(0) * torch.stack([x[0], A[0], x[1]], dim=1)[:, 0],
    "choices": lambda x: torch.where(x > 0, x.sin(), 2 * x) + torch.where(x > x.T, x, 0.5) + torch.where(A > 0, 1.0, x),
    "views": lambda x: (
        x.reshape(2, 8)[:, 1:5].reshape(-1)[None, ..., 3]
        + x.flatten()[2:6].unsqueeze(0)
        + x.T[1:2]
        + x.transpose(0, 1)[0].expand(4, 4).permute(1, 0)
        + x.contiguous().view(16)[5].t()
    ),
    "parts": lambda x: sum(row * k for k, row in enumerate(x)) + x.unbind()[2],
    "unary": lambda x: torch.tanh(x) + x.sigmoid() * F.relu(x) + torch.relu(x) - (x * x + 1).log().sqrt() + x.square(),
}


def numbers_of(f, x, v):
    """Value and tangent by torch's double backward."""
    return torch.autograd.functional.jvp(f, x, v)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "expanded tangent"])
def test_any_layout(name, layout):
    f = FUNCTIONS[name]
    x, v = rnd(4, 4), rnd(4, 4, seed=1)
    if layout == "transposed":
        x, v = x.T, v.T
    elif layout == "strided":
        x, v = rnd(8, 8)[::2, ::2], rnd(4, 8, seed=1)[:, 1::2]
    elif layout == "expanded tangent":
        v = torch.ones((), dtype=D).expand(4, 4)
    got = pf.jvp(f, (x,), (v,))
    torch.testing.assert_close(got, numbers_of(f, x.contiguous(), v.contiguous()))
    assert torch.equal(got[0], f(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_nesting(name):
    f = FUNCTIONS[name]
    x, v, w = rnd(4, 4), rnd(4, 4, seed=1), rnd(4, 4, seed=2)
    one = lambda x: pf.jvp(f, (x,), (v,))[1]
    two = numbers_of(lambda x: numbers_of_graph(f, x, v), x, w)[1]
    torch.testing.assert_close(pf.jvp(one, (x,), (w,))[1], two)
    scalar = lambda x: f(x).sin().sum()
    hvp = torch.autograd.functional.hvp(scalar, x, v)[1]
    torch.testing.assert_close(pf.jvp(pf.grad(scalar), (x,), (v,))[1], hvp)
    torch.testing.assert_close(pf.grad(lambda x: pf.jvp(scalar, (x,), (v,))[1])(x), hvp)
    directions = torch.stack([v, w])
    torch.testing.assert_close(
        pf.vmap(lambda v: pf.jvp(f, (x,), (v,))[1])(directions),
        torch.stack([numbers_of(f, x, v)[1] for v in directions]),
    )
    points = torch.stack([x, w])
    torch.testing.assert_close(
        pf.jvp(pf.vmap(f), (points,), (directions,))[1],
        torch.stack([numbers_of(f, x, v)[1] for x, v in zip(points, directions, strict=True)]),
    )


def numbers_of_graph(f, x, v):
    return torch.autograd.functional.jvp(f, x, v, create_graph=True)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["numbers", "number types", "values", "powers", "unary", "choices"])
def test_values_are_those_of_a_plain_call_to_the_last_bit(name, dtype):
    f = FUNCTIONS[name]
    x = rnd(4, 4, dtype=torch.float32).to(dtype)
    if name == "choices":
        f = lambda x: torch.where(x > 0, x.sin(), 0.1)
    value, tangent = pf.jvp(f, (x,), (torch.ones_like(x),))
    assert value.dtype is f(x).dtype
    assert torch.equal(value, f(x))
    assert tangent.dtype is value.dtype


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, 1e-300, 2**24 + 1, 2**60, -7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_at_the_ends(number, dtype):
    x = torch.tensor([-0.0, 0.0, 1.5, -2.0], dtype=dtype)
    for f in (lambda x: x + number, lambda x: number - x, lambda x: x * number, lambda x: x / number, lambda x: x - number):
        value, _ = pf.jvp(f, (x,), (torch.ones_like(x),))
        expected = f(x)
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(value.signbit(), expected.signbit())


def test_numbers_are_kept_for_each_dtype_and_not_for_ever():
    from pushforward.forward import fast

    for k in range(1000):
        pf.jvp(lambda x: x * (k + 0.5), (torch.ones(2),), (torch.ones(2),))
    assert len(fast._NUMBERS) <= 256
    single = pf.jvp(lambda x: x * 0.1, (torch.ones(2),), (torch.ones(2),))[1]
    double = pf.jvp(lambda x: x * 0.1, (torch.ones(2, dtype=D),), (torch.ones(2, dtype=D),))[1]
    assert (single.dtype, double.dtype) == (torch.float32, D)
    assert double[0].item() == 0.1


def test_function_modes_see_methods_and_operators():
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    def f(x):
        with Watch():
            return (x * 2).sin() + x[0] - (A @ x)

    x = rnd(4, 4)
    got = pf.jvp(f, (x,), (x,))
    assert {"mul", "sin", "add", "getitem", "sub", "matmul"} <= {name.strip("_") for name in seen}
    torch.testing.assert_close(got, numbers_of(lambda x: (x * 2).sin() + x[0] - A @ x, x, x))


def test_no_grad_stops_the_tangent_of_methods():
    def f(x):
        with torch.no_grad():
            y = x * 2 + x.sin()
            z = (A @ x)[1:].reshape(-1)
        return y + z.sum() + x

    x = rnd(4, 4)
    torch.testing.assert_close(pf.jvp(f, (x,), (A,))[1], A)


def test_captured_parameters_that_require_grad_get_their_gradient():
    w = torch.nn.Parameter(rnd(4, 4))
    x, v = rnd(4, 4, seed=1), rnd(4, 4, seed=2)
    f = lambda x: (w @ x + w * x - x / (w * w + 1) + F.linear(x, w)).sin()
    got = torch.autograd.grad(pf.jvp(f, (x,), (v,))[1].sum(), w)
    expected = torch.autograd.grad(torch.autograd.functional.jvp(f, x, v, create_graph=True)[1].sum(), w)
    torch.testing.assert_close(got, expected)


def test_a_write_into_a_view_is_seen_by_all():
    def f(x):
        y = x * 1
        rows, flat, part = y[1:3], y.reshape(-1), y[:, 1]
        rows *= 2
        flat[0] = x[3, 3] ** 2
        part += x[:, 0]
        y[0] = 3 * y[0]
        return y, rows, flat, part

    x, v = rnd(4, 4), rnd(4, 4, seed=1)
    torch.testing.assert_close(pf.jvp(f, (x,), (v,)), numbers_of(f, x, v))


def test_a_write_of_the_first_tangent_into_a_buffer():
    def f(x):
        buffer = torch.zeros(4, 4, dtype=D)
        holder = buffer + 0 * x.detach()
        rows = holder[1:3]
        rows[0] = x[0] * 2
        return holder * 3 + rows.sum()

    x, v = rnd(4, 4), rnd(4, 4, seed=1)
    torch.testing.assert_close(pf.jvp(f, (x,), (v,)), numbers_of(f, x, v))


def test_shapes_change_in_place():
    def f(x):
        y = x * 2
        z = y + 1
        y.t_()
        return y * y + y.sin(), z, y @ x

    x, v = rnd(4, 4), rnd(4, 4, seed=1)
    torch.testing.assert_close(pf.jvp(f, (x,), (v,)), numbers_of(f, x, v))


def test_products_under_autocast():
    x, v = torch.randn(4, 4), torch.randn(4, 4)
    a = A.float()

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (a @ x).float() * x + F.linear(x, a).float() + (x * x).exp()

    value, tangent = pf.jvp(f, (x,), (v,))
    assert torch.equal(value, f(x))
    exact = pf.jvp(lambda x: a @ x * x + F.linear(x, a) + (x * x).exp(), (x,), (v,))[1]
    torch.testing.assert_close(tangent, exact, rtol=0.1, atol=0.3)


def test_the_wrappers_tell_the_truth():
    """Sizes, strides, offset and dtype of a dual number are those of its primal, whichever way it was made."""

    def f(x):
        for y in (x * 2, x.T + 1, x.T.sin(), x[1:, ::2], x.reshape(2, 8), x.sum(0), A @ x, -x.T, x.T * x, x > 0, torch.cat([x, x], 1)):
            assert type(y) is Dual
            p = y._primal
            assert (y.shape, y.stride(), y.dtype) == (p.shape, p.stride(), p.dtype)
            assert y.storage_offset() == p.storage_offset()
        return x

    pf.jvp(f, (rnd(4, 4),), (rnd(4, 4),))


def test_traced_programs_call_operators_by_their_overloads():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, v = rnd(4, 4), rnd(4, 4, seed=1)
    for name in ("numbers", "values", "powers", "products", "moves", "unary"):
        program = make_fx(FUNCTIONS[name])(x)
        torch.testing.assert_close(pf.jvp(program, (x,), (v,)), numbers_of(FUNCTIONS[name], x, v))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv"])
def test_a_result_lies_in_memory_as_the_first_operand_does(op: str) -> None:
    import operator

    f = getattr(operator, op)
    W, x = torch.randn(3, 3, dtype=torch.float64), torch.rand(3, 3, dtype=torch.float64) + 1
    for a, b in ((lambda v: W.t(), lambda v: v), (lambda v: W, lambda v: v.t()), (lambda v: v.t(), lambda v: W)):
        expected = f(a(x), b(x)).stride()
        strides = []

        def g(v: torch.Tensor) -> torch.Tensor:
            out = f(a(v), b(v))
            strides.append(out.stride())
            return out

        pf.jvp(g, (x,), (x,))
        pf.vmap(g)(torch.stack([x, x]))
        assert strides == [expected, expected]
