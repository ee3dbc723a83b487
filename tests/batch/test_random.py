"""Draws under vmap: refused, shared, or one a lane; the same in every run of a call; by seeds, those of a loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pushforward as pf

DRAWS = {
    "rand": lambda x: torch.rand(3),
    "randn": lambda x: torch.randn(3) + x,
    "randint": lambda x: torch.randint(1000, (3,)),
    "randperm": lambda x: torch.randperm(50),
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 1000),
    "normal": lambda x: torch.normal(x, x.abs()),
    "bernoulli": lambda x: torch.bernoulli((x * 0 + 0.5).repeat(20)),
    "poisson": lambda x: torch.poisson(x.abs() * 100),
    "binomial": lambda x: torch.binomial(torch.full((3,), 1000.0), x.abs() * 0.5),
    "multinomial": lambda x: torch.multinomial(torch.ones(40), 20),
    "gamma": lambda x: torch.distributions.Gamma(x.abs(), 1.0).rsample(),
    "dirichlet": lambda x: torch.distributions.Dirichlet(x.abs()).rsample(),
    "categorical": lambda x: torch.distributions.Categorical(torch.ones(500) / 500).sample((3,)),
    "uniform_": lambda x: torch.empty(3).uniform_(),
    "normal_": lambda x: x.clone().normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "random_": lambda x: x.clone().random_(1000),
    "geometric_": lambda x: torch.empty(3).geometric_(0.001),
    "cauchy_": lambda x: torch.empty(3).cauchy_(),
    "log_normal_": lambda x: torch.empty(3).log_normal_(),
    "bernoulli_": lambda x: torch.zeros(60).bernoulli_(0.5),
    "dropout": lambda x: F.dropout(torch.ones(60)) * x[0],
    "feature_dropout": lambda x: F.dropout2d(torch.ones(1, 60, 2, 2)),
    "alpha_dropout": lambda x: F.alpha_dropout(x.repeat(20), training=True),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "attention with dropout": lambda x: F.scaled_dot_product_attention(
        *[x.repeat(20).reshape(1, 20, 3)] * 3, dropout_p=0.5
    ),
}


@pytest.fixture
def x():
    return torch.full((6, 3), 0.7)


@pytest.mark.parametrize("name", DRAWS)
def test_error_same_and_different(name, x):
    f = DRAWS[name]
    with pytest.raises(pf.RandomnessError, match=r"test_random.py:\d+ draws random numbers"):
        pf.vmap(f)(x)
    same = pf.vmap(f, randomness="same")(x)
    assert bool((same == same[0]).all())
    different = pf.vmap(f, randomness="different")(x)
    assert different.shape == same.shape
    assert not any(bool((different[i] == different[j]).all()) for i in range(6) for j in range(i))


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_draws_of_a_loop(name, x):
    f = DRAWS[name]
    got = pf.vmap(f, seed=3)(x)
    for lane in (0, 5):
        with pf.lane_generator(3, lane):
            torch.testing.assert_close(got[lane], f(x[lane]))
    torch.testing.assert_close(pf.vmap(f, seed=3, chunk_size=4)(x), got)
    torch.testing.assert_close(pf.vmap(f, seed=3)(x[:2]), got[:2])
    assert not bool((pf.vmap(f, seed=4)(x) == got).all())


def test_a_seed_with_an_explicit_generator(x):
    got = pf.vmap(lambda r: r + torch.rand(3, generator=None), seed=8)(x)
    for lane in range(6):
        torch.testing.assert_close(got[lane], x[lane] + torch.rand(3, generator=pf.lane_generator(8, lane)))
    with pytest.raises(pf.ArgumentError, match="a seed gives each lane draws of its own"):
        pf.vmap(torch.sin, randomness="same", seed=1)


def test_a_seed_leaves_the_default_generator_alone(x):
    torch.manual_seed(0)
    want = torch.rand(1)
    torch.manual_seed(0)
    pf.vmap(lambda r: r + torch.rand(3), seed=2)(x)
    assert torch.rand(1) == want


def test_seeds_in_nested_calls():
    inner = lambda x: pf.vmap(lambda y: y + torch.randn(()), seed=2)(x)
    got = pf.vmap(inner)(torch.zeros(3, 2))
    torch.testing.assert_close(got, inner(torch.zeros(2)).expand(3, 2))


@pytest.mark.parametrize("mode", ["same", "different"])
def test_explicit_generators(mode, x):
    def f(r, generator):
        u = torch.rand(3, generator=generator)
        return r + u if bool(u[0] > 0.5) else r - u

    generator = torch.Generator().manual_seed(5)
    got = pf.vmap(lambda r: f(r, generator), randomness=mode)(x)
    again = torch.Generator().manual_seed(5)
    draws = torch.rand((6, 3) if mode == "different" else (3,), generator=again)
    draws = draws.expand(6, 3)
    torch.testing.assert_close(got, torch.where(draws[:, :1] > 0.5, x + draws, x - draws))
    assert torch.equal(generator.get_state(), again.get_state())


def prefix(r):
    return [
        torch.randn(3),
        torch.poisson(torch.full((3,), 4.0)),
        torch.randperm(3).float(),
        torch.rand_like(r),
        torch.zeros(3).normal_(),
        torch.binomial(torch.full((3,), 9.0), r.sigmoid()),
        torch.bernoulli(torch.full((3,), 0.5)),
    ]


@pytest.mark.parametrize("mode", ["same", "different"])
def test_runs_repeat_their_draws(mode):
    """What a lane drew before the lanes disagreed is what it draws when its turn comes, whoever runs with it."""

    def split(r):
        drawn = torch.stack(prefix(r))
        if drawn[1].sum() > 12:
            return drawn, torch.rand(())
        if drawn[0].sum() > 0:
            return drawn, torch.rand(()) + 1
        return drawn, torch.rand(()) + 2

    x = torch.linspace(-1, 1, 30).reshape(10, 3)
    torch.manual_seed(1)
    drawn, last = pf.vmap(split, randomness=mode)(x)
    torch.manual_seed(1)
    want = pf.vmap(lambda r: torch.stack([*prefix(r), torch.rand(()).expand(3)]), randomness=mode)(x)
    torch.testing.assert_close(drawn[:, :6], want[:, :6])
    if mode == "different":
        torch.testing.assert_close(last % 1, want[:, 7, 0])
        assert len(set(last.long().tolist())) > 1


def test_one_mask_for_value_tangent_and_linear_map():
    drop, x = nn.Dropout(0.5), torch.ones(40)
    out, tangent = pf.jvp(drop, (x,), (x,))
    torch.testing.assert_close(out, tangent)
    out, push = pf.linearize(drop, x)
    torch.testing.assert_close(push(x), out)
    torch.testing.assert_close(push(2 * x), 2 * out)
    out, pull = pf.vjp(drop, x)
    torch.testing.assert_close(pull(x)[0], out)
    rows = pf.vmap(lambda r: torch.stack(pf.jvp(drop, (r,), (r,))), randomness="different")(torch.ones(5, 40))
    torch.testing.assert_close(rows[:, 0], rows[:, 1])
    assert not bool((rows == rows[0]).all())


def test_no_lanes_draw_nothing():
    assert pf.vmap(lambda r: r + torch.rand(3), randomness="different")(torch.empty(0, 3)).shape == (0, 3)
    assert pf.vmap(lambda r: r + torch.rand(3), seed=1)(torch.empty(0, 3)).shape == (0, 3)


def test_a_dropout_module():
    drop = torch.nn.Dropout(0.5)
    with pytest.raises(pf.RandomnessError, match=r"Say vmap.*randomness='different'") as raised:
        pf.vmap(drop)(torch.ones(64, 16))  # which of the two is meant is for the caller to say
    assert "randomness='same'" in str(raised.value)
    y = pf.vmap(drop, randomness="different")(torch.ones(64, 16))
    assert y.shape == (64, 16)
    assert bool(((y == 0) | (y == 2)).all())
    assert len({tuple(r.tolist()) for r in y}) > 1
    assert torch.equal(pf.vmap(drop.eval())(torch.ones(64, 16)), torch.ones(64, 16))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_slopes_that_were_drawn_are_the_derivative(randomness, in_place, seed):
    if seed is not None and randomness == "same":
        return
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    how = {"randomness": randomness} if seed is None else {"randomness": randomness, "seed": seed}

    def f(x):
        return torch.nn.functional.rrelu(x * 1, training=True, inplace=in_place)

    def total(x):
        return pf.vmap(f, **how)(x).sum()

    leaf = x.clone().requires_grad_()
    ways = {
        "vmap(grad)": lambda: pf.vmap(pf.grad(lambda x: f(x).sum()), **how)(x),
        "grad(vmap)": lambda: pf.grad(total)(x),
        "autograd": lambda: torch.autograd.grad(total(leaf), leaf)[0],
        "jvp(vmap)": lambda: pf.jvp(lambda x: pf.vmap(f, **how)(x), (x,), (torch.ones_like(x),))[1],
        "vmap(jvp)": lambda: pf.vmap(lambda x: pf.jvp(f, (x,), (torch.ones_like(x),))[1], **how)(x),
        "second": lambda: pf.grad(lambda x: pf.vmap(pf.grad(lambda x: f(x).square().sum() / 2), **how)(x).sum())(x).sqrt(),
    }
    for name, way in ways.items():
        for call in range(5):
            torch.manual_seed(call)
            slopes = pf.vmap(f, **how)(x) / x
            torch.manual_seed(call)
            got = way()
            torch.testing.assert_close(got, slopes, msg=lambda m, name=name: f"{name}: {m}")
    if randomness == "different":
        assert (slopes[x < 0] > 1 / 8).all()
        assert slopes[x < 0].unique().numel() > 4


def test_the_same_draw_in_every_chunk_and_for_lanes_of_every_size():
    def f(x):
        y = x.sum() + torch.rand(2) + F.dropout(torch.ones(20), 0.5).sum()
        return y + torch.poisson(torch.full((), 9.0)) if y[0] > 3 else y

    def plain(x):
        torch.manual_seed(0)
        return f(x)

    lanes = [torch.ones(k % 3 + 1) for k in range(7)]
    batch = torch.arange(7.0)[:, None]
    for x, rows, how in (
        (batch, batch, {}), (batch, batch, {"chunk_size": 2}),
        (pf.ragged(lanes), lanes, {}), (pf.ragged(lanes), lanes, {"chunk_size": 2}),
    ):  # fmt: skip
        expected = torch.stack([plain(r) for r in rows])
        plain(rows[0])
        after = torch.get_rng_state()
        torch.manual_seed(0)
        torch.testing.assert_close(pf.vmap(f, randomness="same", **how)(x), expected)
        assert torch.equal(torch.get_rng_state(), after)
