"""`x.detach_()` and `x.data = y` on values of transforms."""

import pytest
import torch

import pushforward as pf

D = torch.float64


def detached(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.detach_()
    return x * y


def test_detach_in_place_stops_derivatives() -> None:
    x, t = torch.randn(4, 3, dtype=D), torch.randn(4, 3, dtype=D)
    assert pf.jvp(lambda v: (v * 2).detach_(), (x,), (t,))[1].count_nonzero() == 0
    for _ in range(3):
        torch.testing.assert_close(pf.jvp(detached, (x,), (t,))[1], 2 * x * t)
        torch.testing.assert_close(pf.vmap(detached)(x), 2 * x * x)
        torch.testing.assert_close(pf.jvp(pf.vmap(detached), (x,), (t,))[1], 2 * x * t)
        torch.testing.assert_close(pf.vmap(lambda v, u: pf.jvp(detached, (v,), (u,))[1])(x, t), 2 * x * t)
        torch.testing.assert_close(pf.vmap(pf.grad(lambda v: detached(v).sum()))(x), 2 * x)
        torch.testing.assert_close(pf.grad(lambda v: pf.vmap(detached)(v).sum())(x), 2 * x)
        torch.testing.assert_close(pf.jacrev(detached)(x[0].repeat(4)), torch.diag(2 * x[0].repeat(4)))


def test_a_detached_view_is_still_a_view() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.view(-1)
        y.detach_()
        y.mul_(3)
        return z + y.view(-1)

    x, t = torch.randn(3, dtype=D), torch.randn(3, dtype=D)
    out, moved = pf.jvp(f, (x,), (t,))
    torch.testing.assert_close(out, 12 * x)
    torch.testing.assert_close(moved, 2 * t)


def test_another_memory_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.data = torch.ones(3, dtype=D)
        return y

    x = torch.randn(3, 3, dtype=D)
    for transform in (pf.vmap(f), lambda v: pf.jvp(f, (v[0],), (v[1],))):
        with pytest.raises(pf.TransformError, match="copy_"):
            transform(x)
