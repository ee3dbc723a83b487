"""Jacobians from copies of the input, from the second call on: nothing tells them from those by mapped cotangents."""

import importlib
from typing import Any

import pytest
import torch

import pushforward as pf

copies = importlib.import_module("pushforward.jacobian.copies")
D = torch.float64
W = torch.randn(20, 12, dtype=D)
FUNCTIONS: dict[str, Any] = {
    "vector": lambda v: (W @ v).tanh(),
    "matrix": lambda v: torch.outer(v.sin(), v[:2]),
    "several": lambda v: {"a": v.exp(), "b": (v[:3] * v[3:6], v.sum())},
    "loop and branch": lambda v: sum(v * k if v.sum() > k else v / (k + 1) for k in range(3)),
    "captured": lambda v: W[:, :12] * v,
    "view of the input": lambda v: v.view(3, 4).t()[1:],
    "constant": lambda v: torch.cat([v * 2, torch.ones(3, dtype=D)]),
    "writes": lambda v: torch.zeros(12, dtype=D).index_put((torch.arange(12).flip(0),), v**2),
    "nan": lambda v: (v - 10).sqrt(),
    "asks a nan": lambda v: v * 2 if (v - 100).sqrt().sum() > 0 else v * 3,
    "gradient inside": lambda v: pf.grad(lambda u: (u**3).sum())(v),
}


def rows(f: Any, x: torch.Tensor) -> Any:
    """The Jacobian by torch's engine, one row at a time."""
    leaf = x.clone().requires_grad_()
    leaves, spec = torch.utils._pytree.tree_flatten(f(leaf))
    made = []
    for o in leaves:
        each = [torch.autograd.grad(e, leaf, retain_graph=True, allow_unused=True)[0] if e.requires_grad else None for e in o.reshape(-1)]
        made.append(torch.stack([torch.zeros_like(x) if g is None else g for g in each]).view(*o.shape, *x.shape))
    return torch.utils._pytree.tree_unflatten(made, spec)


@pytest.mark.filterwarnings("ignore::pushforward.DerivativeLost")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_call_gives_the_rows_of_the_engine(name: str) -> None:
    f, x = FUNCTIONS[name], torch.randn(12, dtype=D)
    if name == "gradient inside":
        expected = torch.diag(6 * x)
    else:
        expected = rows(f, x)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(f)(x), expected, equal_nan=True)
    assert copies.code_of(f) not in copies._NOT_SMALL or name in {"asks a nan", "writes"}


def test_the_number_of_outputs_may_change() -> None:
    def scaled(n: int) -> Any:
        return lambda v: v[:n] * v[0]

    x = torch.randn(20, dtype=D)
    for n in (9, 9, 15, 3, 12, 12, 12):
        torch.testing.assert_close(pf.jacrev(scaled(n))(x), rows(scaled(n), x))


def test_what_runs_in_vain_leaves_no_trace() -> None:
    calls, sizes = torch.zeros(()), iter([10, 10, 12, 12])

    def f(v: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        return v[: int(size)] ** 2

    x = torch.randn(12, dtype=D)
    for count, n in enumerate(sizes, 1):
        size = n
        torch.testing.assert_close(pf.jacrev(f)(x), torch.diag(2 * x)[:n])
        assert calls == count


def test_a_random_function_draws_once() -> None:
    x = torch.linspace(1, 2, 40, dtype=D)
    f = lambda v: torch.nn.functional.dropout(v, 0.5) ** 2  # noqa: E731
    for seed in range(3):
        torch.manual_seed(seed)
        found = pf.jacrev(f)(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, torch.diag(torch.where(f(x) != 0, 8 * x, 0.0)))


def test_what_is_outside_is_still_differentiated() -> None:
    scale = torch.randn(12, dtype=D, requires_grad=True)
    f = lambda v: scale * v**2  # noqa: E731
    x = torch.randn(12, dtype=D, requires_grad=True)
    for _ in range(3):
        J = pf.jacrev(f)(x)
        torch.testing.assert_close(torch.autograd.grad(J.sum(), (scale, x)), (2 * x, 2 * scale))
        torch.testing.assert_close(pf.jacrev(pf.jacrev(f))(x.detach()).sum((1, 2)), 2 * scale.detach())


def test_a_module_with_statistics() -> None:
    norm, reference = torch.nn.BatchNorm1d(4).double(), torch.nn.BatchNorm1d(4).double()
    x = torch.randn(12, dtype=D)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(lambda v: norm(v.view(3, 4)))(x), rows(lambda v: reference(v.view(3, 4)), x))
        torch.testing.assert_close(norm.running_mean, reference.running_mean)
        torch.testing.assert_close(norm.num_batches_tracked, reference.num_batches_tracked)


def test_several_inputs_and_aux() -> None:
    a, b = torch.randn(4, dtype=D), torch.randn(3, 2, dtype=D)
    f = lambda a, b: (torch.outer(a, b.sum(1)), b * a[0])  # noqa: E731
    expected = pf.jacfwd(f, (0, 1))(a, b)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(f, (0, 1))(a, b), expected)
        found, aux = pf.jacrev(lambda a, b: (f(a, b), a), (0, 1), has_aux=True)(a, b)
        torch.testing.assert_close(found, expected)
        assert aux is a or torch.equal(aux, a)
