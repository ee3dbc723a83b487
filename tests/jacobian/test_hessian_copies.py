"""Hessians from copies of the input: nothing tells them from those by forward over reverse mode."""

import functools
import importlib

import pytest
import torch

import pushforward as pf

copies = importlib.import_module("pushforward.jacobian.copies")
D = torch.float64


def long_way(f, x):  # type: ignore[no-untyped-def]
    return pf.jacfwd(pf.jacrev(f))(x)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: ((1 + 2j) * v**3).sum(),
        lambda v: (v**3).sum(0, keepdim=True),
        lambda v: (v**3).sum().view(1, 1),
        lambda v: v**3,
        lambda v: (v**3).sum().float(),
    ],
)
def test_outputs_that_are_no_real_scalars(f) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(12, dtype=D)
    torch.testing.assert_close(pf.hessian(f)(x), long_way(f, x))


def test_a_try_in_vain_leaves_no_trace() -> None:
    x = torch.randn(12, dtype=D)
    calls = torch.zeros(())

    def f(v: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        return (torch.ones(copies.LARGEST, 12, dtype=D) @ v).pow(2).sum()  # too large in copies

    pf.hessian(f)(x)
    assert calls == 1

    norm, reference = torch.nn.BatchNorm1d(3).double(), torch.nn.BatchNorm1d(3).double()
    pf.hessian(lambda v: norm(v.view(4, 3)).pow(3).sum())(x)  # statistics cannot be written in copies
    reference(x.view(4, 3))
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, reference.running_mean)


@pytest.mark.parametrize("n", [2, 6, 40])
def test_blocks_have_the_dtype_of_the_gradient(n: int) -> None:
    a, b = torch.randn(n), torch.randn(n, dtype=D)
    blocks = pf.hessian(lambda a, b: (a.double() ** 2 * b**3).sum(), argnums=(0, 1))(a, b)
    assert [[c.dtype for c in row] for row in blocks] == [[torch.float32] * 2, [D] * 2]


def test_one_function_in_vain_does_not_speak_for_others() -> None:
    class Wide(torch.nn.Module):
        def forward(self, v: torch.Tensor) -> torch.Tensor:
            return (torch.ones(copies.LARGEST, 12, dtype=D) @ v).pow(2).sum()

    class Narrow(torch.nn.Module):
        def forward(self, v: torch.Tensor) -> torch.Tensor:
            return v.pow(3).sum()

    x = torch.randn(12, dtype=D)
    pf.hessian(Wide())(x)
    assert copies.code_of(Wide()) in copies._NOT_SMALL
    assert copies.code_of(Narrow()) not in copies._NOT_SMALL
    assert copies.code_of(functools.partial(Narrow.forward, None)) not in copies._NOT_SMALL
    assert copies.hessian_of_copies(Narrow(), 0, (0,), (x,), {}) is not None


def test_a_seed_made_where_another_device_is_the_default() -> None:
    x = torch.randn(3, dtype=D)
    with torch.device("meta"):
        pf.jvp(pf.grad(lambda v: (v**3).sum()), (x,), (x,))
    torch.testing.assert_close(pf.jvp(pf.grad(lambda v: (v**3).sum()), (x,), (x,))[1], 6 * x * x)


@pytest.mark.parametrize("n", [5, 40, 90])
def test_a_random_function_draws_once_for_the_whole_hessian(n: int) -> None:
    x = torch.linspace(1, 2, n, dtype=torch.float64)
    torch.manual_seed(0)
    found = pf.hessian(lambda v: (torch.nn.functional.dropout(v, 0.5) ** 3).sum())(x)
    on = found.diagonal() != 0
    assert 0 < int(on.sum()) < n
    torch.testing.assert_close(found, torch.diag(torch.where(on, 48 * x, 0.0)))
    torch.manual_seed(0)
    torch.testing.assert_close(pf.hessian(lambda v: (torch.nn.functional.dropout(v, 0.5) ** 3).sum(), chunk_size=10)(x), found)
