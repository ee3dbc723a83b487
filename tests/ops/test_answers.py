"""What Python asks of a lane, counts and sizes from data, and draws: without a slow fallback, equal to the loop."""

import warnings

import pytest
import torch

import pushforward as pf

D = torch.float64
X = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0], [3.0, -1.0, 2.0], [2.0, 2.0, 1.0]], dtype=D)

QUESTIONS = {
    "item": lambda x: x * (2 if x[0].item() > 0 else 3),
    "bool": lambda x: x.sum() if (x > 0).any() else x.prod() - 1,
    "equal": lambda x: x + (1 if torch.equal(x, torch.zeros(3, dtype=D)) else 2),
    "allclose": lambda x: x + (1 if torch.allclose(x, x.flip(0)) else 2),
    "is_nonzero": lambda x: x + (1 if torch.is_nonzero(x[1]) else 2),
    "same size": lambda x: x + (1 if torch.ops.aten.is_same_size(x, x[:2]) else 2),
    "unique": lambda x: torch.unique(x).sum(),
    "consecutive": lambda x: torch.unique_consecutive(x).prod(),
    "nonzero": lambda x: torch.nonzero(x).sum(),
    "argwhere": lambda x: torch.argwhere(x > 1).sum(),
    "nonzero_static": lambda x: torch.nonzero_static(x, size=2, fill_value=-7),
    "nonzero_static of more": lambda x: torch.nonzero_static(x, size=5),
    "bincount": lambda x: torch.bincount(x.clamp(min=0).long()).sum(),
    "bincount weights": lambda x: (torch.bincount(x.clamp(min=0).long(), x) ** 2).sum(),
    "histogramdd": lambda x: torch.histogramdd(x.reshape(3, 1), [3])[0],
    "repeats": lambda x: torch.repeat_interleave(x, x.clamp(min=0).long()).sum(),
    "split": lambda x: torch.tensor_split(x, torch.tensor([1]))[1],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name):
    f = QUESTIONS[name]
    expected = torch.stack([f(x) for x in X])
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        torch.testing.assert_close(pf.vmap(f)(X), expected)
        torch.testing.assert_close(
            pf.vmap(pf.vmap(f))(torch.stack([X, X.flip(0)])), torch.stack([expected, expected.flip(0)])
        )


def test_gradients_through_sizes_that_differ():
    def f(x):
        return (x[x > 0] ** 2).sum() * torch.nonzero(x).shape[0] + torch.repeat_interleave(
            x, x.detach().clamp(min=0).long()
        ).sum()

    x = X.clone().requires_grad_()
    expected = torch.autograd.grad(sum(f(r) for r in x), x)[0]
    torch.testing.assert_close(pf.vmap(pf.grad(f))(X), expected)
    tangents = pf.vmap(lambda x: pf.jvp(f, (x,), (torch.ones_like(x),))[1])(X)
    torch.testing.assert_close(tangents, expected.sum(1))


def test_a_number_read_from_a_dual_is_said_to_lose_its_derivative():
    with pytest.warns(pf.DerivativeLost):
        tangent = pf.jvp(lambda x: x * x.sum().item(), (X[0],), (torch.ones(3, dtype=D),))[1]
    torch.testing.assert_close(tangent, torch.full((3,), 5.0, dtype=D))


def test_distinct_values_move_with_their_first_element():
    x, t = torch.tensor([2.0, 1.0, 2.0]), torch.tensor([5.0, 7.0, 9.0])
    assert pf.jvp(torch.unique, (x,), (t,))[1].tolist() == [7.0, 5.0]
    rows, moved = torch.tensor([[2.0, 1.0], [1.0, 0.0], [2.0, 1.0]]), torch.arange(6.0).reshape(3, 2)
    assert pf.jvp(lambda x: torch.unique(x, dim=0), (rows,), (moved,))[1].tolist() == [[2.0, 3.0], [0.0, 1.0]]


# -- draws ---------------------------------------------------------------------------------------------------------

SHARED = {
    "dropout": torch.nn.functional.dropout,
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x, training=True),
    "feature_dropout": lambda x: torch.nn.functional.dropout1d(x.unsqueeze(0)),
    "rrelu": lambda x: torch.nn.functional.rrelu(-x - 1, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "rand_like": lambda x: x + torch.rand_like(x),
    "normal": lambda x: torch.normal(x, x.abs() + 1),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "poisson": lambda x: torch.poisson(x.exp()),
    "multinomial": lambda x: torch.multinomial(x.exp(), 2),
    "randperm": lambda x: x[torch.randperm(3)],
    "exponential_": lambda x: torch.zeros_like(x).exponential_() * x,
    "in place": lambda x: (x * 1).uniform_(),
    "gamma": lambda x: torch._standard_gamma(x.exp()),
    "generator": lambda x: x + torch.rand(3, dtype=D, generator=torch.Generator().manual_seed(5)),
}


@pytest.mark.parametrize("name", SHARED)
def test_the_same_draws_are_those_of_a_reseeded_loop(name):
    rows = []
    for x in X:
        torch.manual_seed(3)
        rows.append(SHARED[name](x))
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        torch.testing.assert_close(pf.vmap(SHARED[name], randomness="same")(X), torch.stack(rows))


@pytest.mark.parametrize("name", sorted(set(SHARED) - {"poisson", "bernoulli"}))
def test_different_draws_differ(name):
    same = X[:1].expand(40, 3)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        got = pf.vmap(SHARED[name], randomness="different")(same)
    assert len({tuple(row.flatten().tolist()) for row in got}) > 1
    with pytest.raises(RuntimeError, match="randomness"):
        pf.vmap(SHARED[name])(X)


def test_permutations_and_choices_are_fair():
    torch.manual_seed(0)
    got = pf.vmap(lambda x: torch.randperm(3), randomness="different")(torch.zeros(6000))
    counts = torch.bincount((got * torch.tensor([9, 3, 1])).sum(1))
    assert torch.equal(got.sort(1)[0], torch.arange(3).expand(6000, 3))
    assert ((counts[counts > 0] - 1000).abs() < 150).all()
    assert (counts > 0).sum() == 6
    chosen = pf.vmap(lambda w: torch.multinomial(w, 1), randomness="different")(
        torch.tensor([[0.0, 1.0, 3.0]]).expand(4000, 3)
    )
    assert abs((chosen == 2).double().mean() - 0.75) < 0.03


def test_a_pathwise_derivative():
    def f(a):
        return torch._standard_gamma(a).sum()

    a = torch.tensor([0.5, 2.0, 5.0], dtype=D)
    torch.manual_seed(1)
    expected = torch.autograd.grad(f(b := a.clone().requires_grad_()), b)[0]
    for k in range(3):
        torch.manual_seed(1)
        torch.testing.assert_close(pf.jvp(f, (a,), (torch.eye(3, dtype=D)[k],))[1], expected[k])


@pytest.mark.parametrize("dtype", [D, torch.int64, torch.complex128, torch.bool])
def test_lanes_need_not_agree_on_what_else_a_true_number_is(dtype):
    def f(x):
        return x + 1 if x.sum() and not x[0] else x * 2 if torch.is_nonzero(x[1]) else x * 3

    x = torch.cat([X, torch.arange(60, dtype=D).reshape(20, 3), torch.full((1, 3), torch.nan)]).to(dtype)
    expected = torch.stack([f(r) for r in x])
    nested = torch.stack([x, x.flip(0)])
    with warnings.catch_warnings(), pf.report() as report:
        warnings.simplefilter("error")
        torch.testing.assert_close(pf.vmap(f)(x), expected, equal_nan=True)
        torch.testing.assert_close(pf.vmap(pf.vmap(f))(nested), torch.stack([expected, expected.flip(0)]), equal_nan=True)
        if dtype is D:
            pf.vmap(lambda r: pf.jvp(f, (r,), (r,))[1])(x)  # a question of truth loses no derivative
    assert all(len(call.runs) <= 3 for call in report.calls)
