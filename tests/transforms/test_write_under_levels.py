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
