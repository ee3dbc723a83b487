"""Writes into buffers that all lanes share, of values that an outer derivative is taken of."""

import pytest
import torch

import pushforward as pf

D = torch.float64


def entry(v: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(3, dtype=D)
    buffer[0] = v[0].tanh()
    return (buffer * buffer * v).sum()


def tail(v: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(3, dtype=D)
    buffer[1:].copy_(v[:2].sin())
    return (buffer**3).sum()


def twice(v: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(3, dtype=D)
    buffer[0] = v[0].exp()
    buffer[1:] += v[1] * v[2]
    return (buffer * buffer).sum()


def product(v: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(3, dtype=D)
    part = buffer[1:]
    part.copy_(v[1:])
    part.mul_(v[:2])  # what its tangent saves is written over
    return (buffer * v).sum()


def constant_times(v: torch.Tensor) -> torch.Tensor:
    buffer = torch.ones(3, dtype=D)
    part = buffer[1:]
    part.mul_(v[:2] ** 2)
    part.mul_(v[1:])
    return (buffer * v).sum()


@pytest.mark.parametrize("f", [entry, tail, twice, product, constant_times])
def test_reverse_over_mapped_forward_mode(f) -> None:  # type: ignore[no-untyped-def]
    x = torch.tensor([0.3, 0.5, 0.7], dtype=D)
    expected = torch.autograd.functional.hessian(f, x)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(pf.jacfwd(f))(x), expected)
        torch.testing.assert_close(pf.jacfwd(pf.jacrev(f))(x), expected)

    def values(z: torch.Tensor) -> torch.Tensor:
        return pf.vmap(lambda d: pf.jvp(f, (z,), (d,))[0])(torch.eye(3, dtype=D)).sum()

    torch.testing.assert_close(pf.grad(values)(x), 3 * torch.autograd.functional.jacobian(f, x))


TARGETS = {
    "slice": lambda b: b.clone()[:, 1],
    "piece": lambda b: torch.ops.aten.unsafe_split(b.clone(), 1, 1)[1].squeeze(1),
    "piece of a row": lambda b: torch.ops.aten.unsafe_split(b.clone().t(), 1, 0)[1][0],
    "strided": lambda b: torch.as_strided(b.clone(), (4,), (3,)),
    "with gaps": lambda b: torch.empty_strided((4,), (2,), dtype=b.dtype).copy_(b[:, 1]),
    "whole": lambda b: b[:, 1].clone(),
}
WRITES = {
    "mul": lambda t, y: t.mul_(y),
    "div": lambda t, y: t.div_(y),
    "pow": lambda t, y: t.pow_(y),
    "atan2": lambda t, y: t.atan2_(y),
    "addcmul": lambda t, y: t.addcmul_(t, y),
    "copy": lambda t, y: t.copy_(t * y),
    "lerp": lambda t, y: t.lerp_(y, y * y),
    "sigmoid": lambda t, y: t.mul_(y).sigmoid_().mul_(y),
    "cumprod": lambda t, y: t.mul_(y).cumprod_(0),
    "index_add": lambda t, y: t.mul_(y).index_add_(0, torch.tensor([0, 1]), y[:2] * t[:2]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("write", WRITES)
def test_constant_written_under_reverse_over_forward_mode(target: str, write: str) -> None:
    """The tangent of the write saves what was there before; the target itself has no derivative yet."""
    x = torch.tensor([0.4, 0.7, 1.1, 1.6], dtype=D)
    v = torch.tensor([1.0, -0.5, 0.3, 0.8], dtype=D)
    base = torch.linspace(0.4, 1.4, 12, dtype=D).reshape(4, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (WRITES[write](TARGETS[target](base), x * x) * x).sum()

    def slope(x: torch.Tensor) -> torch.Tensor:
        return pf.jvp(f, (x,), (v,))[1]

    step = 1e-5
    expected = torch.stack([(slope(x + step * e) - slope(x - step * e)) / (2 * step) for e in torch.eye(4, dtype=D)])
    for _ in range(3):
        torch.testing.assert_close(pf.grad(slope)(x), expected, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(pf.vmap(pf.grad(slope))(torch.stack([x, x]))[1], expected, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(pf.jvp(pf.jacfwd(f), (x,), (v,))[1], expected, rtol=1e-7, atol=1e-8)
    mapped = pf.grad(lambda x: pf.vmap(lambda v: pf.jvp(f, (x,), (v,))[1])(torch.stack([v, 2 * v]))[0])
    torch.testing.assert_close(mapped(x), expected, rtol=1e-7, atol=1e-8)
