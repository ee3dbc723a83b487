"""Squares of norms at zero: second derivatives of the sum of squares, in every nesting; a norm alone stays flat there."""

from typing import Any

import pytest
import torch

import pushforward as pf

D = torch.float64
X = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]], dtype=D)
SQUARES: dict[str, Any] = {
    "linalg.norm": lambda d: torch.linalg.norm(d) ** 2,
    "vector_norm": lambda d: torch.linalg.vector_norm(d).square(),
    "norm": lambda d: torch.norm(d).pow(2.0),
    "method": lambda d: d.norm() * d.norm().clone() * 0 + torch.square(d.norm()),
    "product": lambda d: (lambda n: n * n)(d.norm()),
    "dim": lambda d: (torch.linalg.vector_norm(d.view(1, -1), dim=1, keepdim=True) ** 2).sum(),
    "dist": lambda d: torch.dist(d, torch.zeros(3, dtype=D)) ** 2,
    "cdist": lambda d: (torch.cdist(d[None], torch.zeros(2, 3, dtype=D)) ** 2).sum() / 2,
}
HESSIANS: dict[str, Any] = {
    "forward over reverse": lambda f: pf.jacfwd(pf.grad(f)),
    "reverse over forward": lambda f: pf.jacrev(pf.jacfwd(f)),
    "reverse over reverse": lambda f: pf.jacrev(pf.grad(f)),
    "forward over forward": lambda f: pf.jacfwd(pf.jacfwd(f)),
    "hessian": pf.hessian,
    "hvp": lambda f: lambda x: torch.stack([pf.hvp(f, (x,), (v,))[1] for v in torch.eye(3, dtype=D)]),
}


@pytest.mark.parametrize("how", HESSIANS)
@pytest.mark.parametrize("name", SQUARES)
def test_the_hessian_is_that_of_the_sum_of_squares(name: str, how: str) -> None:
    f = SQUARES[name]
    if name == "method":
        f = lambda d: torch.square(d.norm())
    for _ in range(3):  # also once plans are made
        for x in X:
            torch.testing.assert_close(HESSIANS[how](f)(x), 2 * torch.eye(3, dtype=D))
    torch.testing.assert_close(pf.vmap(HESSIANS[how](f))(X), 2 * torch.eye(3, dtype=D).expand(2, 3, 3))


@pytest.mark.parametrize("how", HESSIANS)
def test_a_gaussian_kernel_of_equal_points(how: str) -> None:
    kernel = lambda d: torch.exp(-(torch.linalg.norm(d) ** 2))
    for _ in range(3):
        torch.testing.assert_close(HESSIANS[how](kernel)(X[0]), -2 * torch.eye(3, dtype=D))
    a = X[1]
    cross = pf.jacfwd(pf.grad(lambda a, b: kernel(a - b), argnums=0), argnums=1)(a, a)
    torch.testing.assert_close(cross, 2 * torch.eye(3, dtype=D))


def test_what_is_written_is_seen() -> None:
    def shifted(d: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.norm(d) + 1.0) ** 2

    def shifted_in_place(d: torch.Tensor) -> torch.Tensor:
        n = torch.linalg.norm(d)
        n += 1.0
        return n**2

    def argument_written(d: torch.Tensor) -> torch.Tensor:
        e = d * 1
        n = torch.linalg.norm(e)
        e[:2].mul_(3)
        return n**2

    x, forward = X[1], HESSIANS["forward over forward"]  # reverse mode needs the norm's result, and says so
    torch.testing.assert_close(forward(shifted_in_place)(x), forward(shifted)(x))
    torch.testing.assert_close(forward(argument_written)(x), 2 * torch.eye(3, dtype=D))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        HESSIANS["forward over reverse"](shifted_in_place)(x)


def test_other_norms_are_not_squares_of_elements() -> None:
    a = torch.randn(3, 3, dtype=D)
    spectral = lambda a: torch.linalg.norm(a, 2) ** 2
    expected = torch.autograd.functional.hessian(lambda a: torch.linalg.svdvals(a)[0] ** 2, a)
    torch.testing.assert_close(pf.jacfwd(pf.grad(spectral))(a), expected)
    torch.testing.assert_close(
        pf.jacfwd(pf.grad(lambda a: torch.linalg.norm(a) ** 2))(a).reshape(9, 9), 2 * torch.eye(9, dtype=D)
    )
    one = lambda d: torch.linalg.norm(d, 1) ** 2
    torch.testing.assert_close(pf.hessian(one)(X[1]), 2 * torch.outer(X[1].sign(), X[1].sign()))


def test_a_norm_alone_is_flat_at_zero() -> None:
    for how in HESSIANS.values():
        torch.testing.assert_close(how(torch.linalg.norm)(X[0]), torch.zeros(3, 3, dtype=D))


def test_complex_squares() -> None:
    z = torch.zeros(2, dtype=torch.complex128)
    v = torch.tensor([1.0 + 2j, 3.0], dtype=torch.complex128)
    found = pf.jvp(pf.grad(lambda z: torch.linalg.norm(z) ** 2), (z,), (v,))[1]
    torch.testing.assert_close(found, 2 * v)
