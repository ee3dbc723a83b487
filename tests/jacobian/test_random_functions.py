"""Jacobians of functions that draw random numbers: one draw for all directions, chunks and passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pushforward as pf

D = torch.float64


class Noisy(nn.Module):
    """Dropout and noise of several kinds."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(6, 5, dtype=D), nn.Linear(5, 4, dtype=D)
        self.dropout, self.generator = nn.Dropout(0.4), generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(self.first(x).tanh())
        y = y * (1 + torch.rand(5, dtype=D, generator=self.generator)) + torch.randn_like(y) * y
        return self.last(y * torch.bernoulli(torch.full_like(y, 0.7)))


def scalar(net: Any) -> Any:
    return lambda x: net(x).square().sum()


X = torch.randn(6, dtype=D, generator=torch.Generator().manual_seed(1))
JACOBIANS = {
    "jacfwd": lambda f: pf.jacfwd(f),
    "jacrev": lambda f: pf.jacrev(f),
    "jacfwd, chunks": lambda f: pf.jacfwd(f, chunk_size=2),
    "jacrev, chunks": lambda f: pf.jacrev(f, chunk_size=3),
    "jacobian": lambda f: pf.jacobian(f),
    "forward": lambda f: pf.jacobian(f, mode="forward", chunk_size=4),
    "reverse": lambda f: pf.jacobian(f, mode="reverse", chunk_size=1),
    "sparse": lambda f: pf.jacobian(f, sparsity="global"),
    "both": lambda f: pf.jacobian(f, mode="both", sparsity="global"),
    "plan": lambda f: pf.plan(f, X, mode="forward"),
    "with value": lambda f: lambda x: pf.value_and_jacobian(f)(x)[1],
    "linearize": lambda f: lambda x: torch.stack([*map(pf.linearize(f, x)[1], torch.eye(6, dtype=D))], 1),
}
HESSIANS = {
    "hessian": lambda f: pf.hessian(f),
    "hessian, chunks": lambda f: pf.hessian(f, chunk_size=2),
    "pattern": lambda f: pf.hessian(f, sparsity="global"),
    "fwd fwd": lambda f: pf.jacfwd(pf.jacfwd(f)),
    "fwd rev": lambda f: pf.jacfwd(pf.jacrev(f), chunk_size=4),
    "rev rev": lambda f: pf.jacrev(pf.jacrev(f)),
    "rev fwd": lambda f: pf.jacrev(pf.jacfwd(f)),
    "fwd grad": lambda f: pf.jacfwd(pf.grad(f)),
}


def dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.layout is torch.strided else x.to_dense()


def by_rows(f: Any, x: torch.Tensor, seed: int) -> torch.Tensor:
    """The Jacobian by autograd, with the seed set before each row."""
    rows = []
    for k in range(4):
        torch.manual_seed(seed)
        leaf = x.clone().requires_grad_()
        rows.append(torch.autograd.grad(f(leaf)[k], leaf)[0])
    return torch.stack(rows)


def by_double_backward(f: Any, x: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
    return torch.stack([torch.autograd.grad(g[k], leaf, retain_graph=True)[0] for k in range(6)])


@pytest.mark.parametrize("name", [*JACOBIANS, *HESSIANS])
def test_all_directions_see_one_draw(name: str) -> None:
    net = Noisy()
    first = name in JACOBIANS
    f, transform = (net, JACOBIANS[name]) if first else (scalar(net), HESSIANS[name])
    oracle = by_rows if first else by_double_backward
    for seed in range(4):
        expected = oracle(f, X, seed)
        torch.manual_seed(seed)
        f(X)
        after = torch.get_rng_state()
        call = transform(f)
        torch.manual_seed(seed)
        torch.testing.assert_close(dense(call(X)), expected)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_generators_that_are_passed(chunk_size: int | None) -> None:
    source = torch.Generator()
    net = Noisy(source)
    rows = []
    for k in range(4):
        torch.manual_seed(3), source.manual_seed(5)
        leaf = X.clone().requires_grad_()
        rows.append(torch.autograd.grad(net(leaf)[k], leaf)[0])
    after = source.get_state()
    for transform in (pf.jacfwd, pf.jacrev):
        torch.manual_seed(3), source.manual_seed(5)
        torch.testing.assert_close(transform(net, chunk_size=chunk_size)(X), torch.stack(rows))
        assert torch.equal(source.get_state(), after)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_lanes_have_draws_of_their_own_and_their_directions_share_them(chunk_size: int | None) -> None:
    net, x = Noisy(), X.expand(3, 6)
    for transform in (pf.jacfwd, pf.jacrev):
        jacobian = transform(net, chunk_size=chunk_size)
        seeded = pf.vmap(jacobian, seed=7)(x)
        for lane in range(3):
            with pf.lane_generator(7, lane):
                state = torch.get_rng_state()
                rows = []
                for k in range(4):
                    torch.set_rng_state(state)
                    leaf = X.clone().requires_grad_()
                    rows.append(torch.autograd.grad(net(leaf)[k], leaf)[0])
            torch.testing.assert_close(seeded[lane], torch.stack(rows))
        torch.manual_seed(0)
        apart = pf.vmap(jacobian, randomness="different")(x)
        assert not torch.allclose(apart[0], apart[1])
        torch.manual_seed(0)
        torch.testing.assert_close(apart, pf.vmap(pf.jacfwd(net), randomness="different")(x))
        torch.manual_seed(0)
        together = pf.vmap(jacobian, randomness="same")(x)
        torch.testing.assert_close(together, by_rows(net, X, 0).expand(3, 4, 6))


def test_one_draw_is_refused_where_that_is_asked() -> None:
    with pytest.raises(pf.RandomnessError):
        pf.jacfwd(Noisy(), randomness="error")(X)


DRAWS = {
    "dropout": lambda x: nn.functional.dropout(x, 0.5) * 2,
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "in place": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "integers": lambda x: x * torch.randint(0, 2, (6,)),
    "permutation": lambda x: x[torch.randperm(6)] * x,
    "where": lambda x: torch.where(torch.rand(6) > 0.5, x.sin(), 0.0),
    "product": lambda x: torch.bernoulli(torch.full((6, 6), 0.3, dtype=D)) @ x,
    "written": lambda x: torch.zeros_like(x).index_add(0, torch.randint(0, 6, (6,)), x),
    "relu": lambda x: nn.functional.rrelu(x, training=True),
}


@pytest.mark.parametrize("kind", ["global", "local"])
@pytest.mark.parametrize("name", DRAWS)
def test_what_was_drawn_once_does_not_cut_a_pattern(name: str, kind: str) -> None:
    f = DRAWS[name]
    torch.manual_seed(0)
    plan = pf.plan(f, X, sparsity=kind)
    for seed in range(6):
        torch.manual_seed(seed)
        found = dense(plan(X))
        torch.manual_seed(seed)
        torch.testing.assert_close(found, pf.jacrev(f)(X))
