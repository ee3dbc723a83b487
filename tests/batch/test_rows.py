"""Backward passes of mapped cotangents with the level's mode off: the rows of the engine, whatever runs in them."""

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pushforward as pf
from pushforward.batch import rows
from pushforward.batch.level import BatchLevel

D = torch.float64
N = 80  # more outputs than are taken from copies


class WithBuffer(torch.autograd.Function):
    """Reverses; its backward fills a buffer of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.flip(0)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(g.shape[0], dtype=g.dtype)
        made[torch.arange(g.shape[0] - 1, -1, -1)] = g
        return made


class Asking(torch.autograd.Function):
    """Doubles; its backward asks for the cotangent's sign."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 2 * g if g.sum() >= 0 else g + g


class Nesting(torch.autograd.Function):
    """Squares; its backward is a `vmap` of our own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return pf.vmap(lambda a, b: 2 * a * b)(x, g)


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(lambda g: 3 * g)
    return y.cumsum(0)


FUNCTIONS: dict[str, Any] = {
    "elementwise": lambda x: x.sin() * x.exp(),
    "contraction": lambda x: (torch.outer(x, x) @ x).tanh(),
    "indices": lambda x: x[torch.arange(N).flip(0) // 2] * x,
    "scatter": lambda x: torch.zeros(N, dtype=D).index_add(0, torch.arange(N) // 3, x) ** 2,
    "sort": lambda x: x.sort().values * x,
    "layer norm": lambda x: torch.nn.functional.layer_norm(x.view(4, -1), (N // 4,)),
    "convolution": lambda x: torch.nn.functional.conv1d(x.view(1, 2, -1), torch.ones(3, 2, 5, dtype=D)).relu(),
    "max pool": lambda x: torch.nn.functional.max_pool1d(x.view(1, 1, -1), 2, stride=1),
    "buffer": lambda x: WithBuffer.apply(x**2),
    "asking": lambda x: Asking.apply(x.exp()),
    "nesting": lambda x: Nesting.apply(x.sin()),
    "hook": hooked,
    "checkpoint": lambda x: checkpoint(lambda u: u.sin() * u, x, use_reentrant=False),
    "where": lambda x: torch.where(x > 0, (x * 1e3).exp(), x),
}


def by_engine(f: Any, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    grads = [torch.autograd.grad(e, leaf, retain_graph=True)[0] for e in y.reshape(-1)]
    return torch.stack(grads).view(*y.shape, *x.shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_rows_are_the_engines(name: str) -> None:
    f = FUNCTIONS[name]
    x = -torch.rand(N, dtype=D) if name == "where" else torch.randn(N, dtype=D)
    torch.testing.assert_close(pf.jacrev(f)(x), by_engine(f, x))
    torch.testing.assert_close(pf.jacrev(f, chunk_size=30)(x), by_engine(f, x))


def test_plain_operators_of_the_pass_do_not_reach_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    dispatch = BatchLevel.__torch_dispatch__

    def noted(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(func._schema.name)
        return dispatch(self, func, types, args, kwargs)

    monkeypatch.setattr(BatchLevel, "__torch_dispatch__", noted)
    with pf.no_replay():
        pf.jacrev(torch.sin)(torch.randn(N, dtype=D))
    assert "aten::mul" in seen
    assert "aten::cos" not in seen


def test_what_needs_the_mode_gets_it() -> None:
    x = torch.randn(N, dtype=D)
    _, pull = pf.vjp(FUNCTIONS["buffer"], x)
    assert rows.pulled_rows(pull, [torch.eye(N, dtype=D)]) is None
    _, pull = pf.vjp(FUNCTIONS["sort"], x)
    assert rows.pulled_rows(pull, [torch.eye(N, dtype=D)]) is not None


def test_no_level_stays_on() -> None:
    from pushforward.core.level import THREAD
    from pushforward.core.torch_private import mode_count

    def failing(g: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(failing)
        return y

    with pytest.raises(ValueError, match="no"):
        pf.jacrev(f)(torch.randn(N))
    assert not THREAD.levels
    assert mode_count() == 0


class Branching(torch.autograd.Function):
    """Squares; its backward takes a way of its own for the first row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g * 5 if g[0] != 0 else 2 * x * g


class ByNumbers(Branching):
    """Squares; its backward leaves torch."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * 2 * x.detach().numpy())


class Catching(Branching):
    """Squares; its backward does something else where it cannot tell."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        try:
            scale = 3 if g[0] != 0 else 1
        except RuntimeError:
            scale = 100
        return 2 * x * g * scale


@pytest.mark.filterwarnings("ignore::pushforward.SlowFallback")
@pytest.mark.parametrize("cls", [Branching, ByNumbers, Catching])
@pytest.mark.parametrize("n", [12, N])
def test_rows_that_disagree(cls: Any, n: int) -> None:
    x = torch.randn(n, dtype=D)
    f = lambda v: cls.apply(v.sin())
    for _ in range(3):
        torch.testing.assert_close(pf.jacrev(f)(x), by_engine(f, x))
        torch.testing.assert_close(pf.jacobian(f, mode="reverse")(x), by_engine(f, x))
