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
        each = [
            torch.autograd.grad(e, leaf, retain_graph=True, allow_unused=True)[0] if e.requires_grad else None
            for e in o.reshape(-1)
        ]
        made.append(torch.stack([torch.zeros_like(x) if g is None else g for g in each]).view(*o.shape, *x.shape))
    return torch.utils._pytree.tree_unflatten(made, spec)


@pytest.mark.filterwarnings("ignore::pushforward.DerivativeLost")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_call_gives_the_rows_of_the_engine(name: str) -> None:
    f, x = FUNCTIONS[name], torch.randn(12, dtype=D)
    expected = torch.diag(6 * x) if name == "gradient inside" else rows(f, x)
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
    f = lambda v: torch.nn.functional.dropout(v, 0.5) ** 2
    for seed in range(3):
        torch.manual_seed(seed)
        found = pf.jacrev(f)(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, torch.diag(torch.where(f(x) != 0, 8 * x, 0.0)))


def test_what_is_outside_is_still_differentiated() -> None:
    scale = torch.randn(12, dtype=D, requires_grad=True)
    f = lambda v: scale * v**2
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
    f = lambda a, b: (torch.outer(a, b.sum(1)), b * a[0])
    expected = pf.jacfwd(f, (0, 1))(a, b)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(f, (0, 1))(a, b), expected)
        found, aux = pf.jacrev(lambda a, b: (f(a, b), a), (0, 1), has_aux=True)(a, b)
        torch.testing.assert_close(found, expected)
        assert aux is a or torch.equal(aux, a)


# What a function can see or do that tells mapped values from tensors: each gives what the first call gave.


def hooked(v: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Linear(12, 12, bias=False, dtype=D)
    with torch.no_grad():
        layer.weight.copy_(W[:12])
    layer.register_full_backward_hook(lambda _, given, __: (given[0] * 2,))
    return layer(v).sin()


def tensor_hooked(v: torch.Tensor) -> torch.Tensor:
    y = v * 2
    y.register_hook(lambda g: g * 3)
    return y.sin()


def caught(v: torch.Tensor) -> torch.Tensor:
    try:
        torch.zeros(12, dtype=D).copy_(BUFFER.copy_(v.detach()))
    except RuntimeError:
        return v * 0
    return v * v


def caught_all(v: torch.Tensor) -> torch.Tensor:
    try:
        return (v[:, None] + torch.zeros(100, dtype=D)).sum(1)
    except BaseException:
        return v * 0


BUFFER = torch.zeros(12, dtype=D)
SEEN: dict[str, Any] = {
    "requires grad": lambda v: v.sin() if v.requires_grad else v.cos(),
    "result requires grad": lambda v: v.sin() if (v * 2).requires_grad else v.cos(),
    "grad_fn": lambda v: v.sin() if (v * 2).grad_fn is not None else v.cos(),
    "a module's hook": hooked,
    "a tensor's hook": tensor_hooked,
    "an error that is caught": caught,
    "every error is caught": caught_all,
}


@pytest.mark.parametrize("name", SEEN)
def test_a_function_that_looks_at_itself(name: str) -> None:
    f, x = SEEN[name], torch.randn(12, dtype=D)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(f)(x), rows(f, x))


def write_plainly(v: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        v.mul_(2)
    return v.sin()


def write_into_detached(v: torch.Tensor) -> torch.Tensor:
    v.detach()[2:].mul_(2)
    return v.sin()


@pytest.mark.parametrize("f", [write_plainly, write_into_detached])
def test_a_write_into_the_argument_reaches_it(f: Any) -> None:
    for _ in range(3):
        x = torch.randn(12, dtype=D)
        expected = x.clone()
        f(expected)
        torch.testing.assert_close(pf.jacrev(f)(x), torch.diag(expected.cos()))
        torch.testing.assert_close(x, expected)


def test_values_that_are_kept_are_no_stacks_of_copies() -> None:
    kept = {}

    def f(v: torch.Tensor) -> torch.Tensor:
        kept["hidden"] = hidden = v * 2
        return hidden.sin()

    x = torch.randn(12, dtype=D)
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(f)(x), torch.diag(2 * (2 * x).cos()))
        assert type(kept["hidden"]) is torch.Tensor
        torch.testing.assert_close(kept["hidden"].detach(), 2 * x)


def test_what_runs_in_vain_draws_nothing() -> None:
    x, buffer = torch.randn(12, dtype=D), torch.zeros(12, dtype=D)

    def f(v: torch.Tensor) -> torch.Tensor:
        first = torch.rand(12, dtype=D)
        buffer.copy_(v.detach())
        return v * first * torch.rand(12, dtype=D)

    for _ in range(3):
        torch.manual_seed(3)
        expected = torch.diag(torch.rand(12, dtype=D) * torch.rand(12, dtype=D))
        after = torch.get_rng_state()
        torch.manual_seed(3)
        torch.testing.assert_close(pf.jacrev(f)(x), expected)
        assert torch.equal(torch.get_rng_state(), after)


def test_functions_of_one_decorator_are_told_apart() -> None:
    codes = {copies.code_of(pf.grad(f)) for f in (torch.sin, lambda v: v.sum(), lambda v: v.prod())}
    assert len(codes) == 3


def test_what_was_saved_is_there_for_a_second_derivative() -> None:
    weight = torch.randn(12, 12, dtype=D, requires_grad=True)
    f = lambda v: (weight @ v).sin() * v
    x = torch.randn(12, dtype=D, requires_grad=True)
    expected: Any = None
    for _ in range(3):
        found = torch.autograd.grad(pf.jacrev(f)(x).square().sum(), (x, weight))
        y = f(x)
        J = torch.stack([torch.autograd.grad(e, x, create_graph=True)[0] for e in y])
        torch.testing.assert_close(found, torch.autograd.grad(J.square().sum(), (x, weight)))
        second = pf.jacrev(pf.jacrev(f))(x.detach())
        expected = second if expected is None else expected
        torch.testing.assert_close(second, expected)
        torch.testing.assert_close(pf.jacfwd(pf.jacrev(f))(x.detach()), expected)


def test_an_operator_without_a_rule_runs_once() -> None:
    calls = []

    @torch.library.custom_op("pushforward_copies::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return 2 * x

    doubled.register_autograd(lambda ctx, g: 2 * g)
    x = torch.randn(12, dtype=D)
    for _ in range(4):
        calls.clear()
        torch.testing.assert_close(pf.jacrev(lambda v: doubled(v * v))(x), torch.diag(4 * x))
        assert len(calls) <= 1
