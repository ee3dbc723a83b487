"""The foreach operators: as each tensor's own operator, also in place, under every transform."""

import torch

import pushforward as pf

D = torch.float64
X = torch.linspace(-1, 1, 12, dtype=D).reshape(3, 4)
Y = torch.linspace(1, 2, 6, dtype=D).reshape(3, 2)


def step(x, y):
    """A few steps of an optimizer."""
    parts = [x.clone(), y.clone(), torch.zeros(2, dtype=D)]
    torch._foreach_mul_(parts, 2.0)
    torch._foreach_add_(parts, [x, y, y], alpha=3)
    torch._foreach_addcdiv_(parts, [x, y, y], [x.exp(), y.exp(), y.exp()], 0.5)
    torch._foreach_addcmul_(parts, [x, y, y], [x, y, y], [0.1, 0.2, 0.3])
    torch._foreach_lerp_(parts, [x, y, y], 0.25)
    torch._foreach_clamp_min_(parts, -3.0)
    powers = torch._foreach_pow(torch._foreach_abs(parts), 2)
    return (
        tuple(parts)
        + tuple(torch._foreach_norm(parts))
        + tuple(powers)
        + tuple(torch._foreach_div(parts, [1.0, 2.0, 4.0]))
    )


def loss(x, y):
    return sum(t.sum() for t in step(x, y))


def test_vmap():
    expected = [torch.stack(column) for column in zip(*[step(x, y) for x, y in zip(X, Y, strict=True)], strict=True)]
    torch.testing.assert_close(list(pf.vmap(step)(X, Y)), expected)


def test_derivatives():
    x = X.clone().requires_grad_()
    expected = torch.autograd.grad(sum(loss(a, b) for a, b in zip(x, Y, strict=True)), x)[0]
    torch.testing.assert_close(pf.vmap(pf.grad(loss))(X, Y), expected)
    v, h = torch.cos(X), 1e-6
    tangents = pf.vmap(lambda x, y, v: pf.jvp(lambda x: loss(x, y), (x,), (v,))[1])(X, Y, v)
    torch.testing.assert_close(tangents, (expected * v).sum(1))

    def gradient(x):
        return pf.vmap(pf.grad(loss))(x, Y)

    second = pf.jvp(gradient, (X,), (v,))[1]
    torch.testing.assert_close(second, (gradient(X + h * v) - gradient(X - h * v)) / (2 * h), rtol=1e-6, atol=1e-7)
