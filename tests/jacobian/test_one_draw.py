"""Functions that draw: a Jacobian is of one draw, that of a plain call under the same seed, whatever computes it."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import pushforward as pf

D = torch.float64
N = 10
G = torch.Generator()
EYE = torch.eye(N, dtype=D)
WEIGHT = torch.randn(12, N, dtype=D, generator=torch.Generator().manual_seed(1)) / 3


def seeded(seed):
    torch.manual_seed(seed)
    G.manual_seed(seed)


def states():
    return torch.get_rng_state(), G.get_state()


DRAWS = {
    "dropout": lambda x: F.dropout(WEIGHT @ x, 0.5).sin(),
    "dropout twice": lambda x: F.dropout((WEIGHT @ F.dropout(x, 0.3)).sin(), 0.3) * 2,
    "feature dropout": lambda x: F.dropout2d((WEIGHT @ x).reshape(1, 6, 2, 1)).sin(),
    "alpha dropout": lambda x: F.alpha_dropout(WEIGHT @ x, training=True).sin(),
    "rrelu": lambda x: F.rrelu(WEIGHT @ x, training=True).sin(),
    "noise": lambda x: (WEIGHT @ x).sin() * torch.randn(12, dtype=D),
    "noise of its sizes": lambda x: x.exp() * torch.rand_like(x),
    "written noise": lambda x: x.exp() * torch.empty_like(x).normal_(),
    "its own generator": lambda x: (WEIGHT @ x).sin() * torch.rand(12, dtype=D, generator=G),
    "bernoulli": lambda x: x.sin() * torch.bernoulli(x.detach().sigmoid()),
    "poisson": lambda x: x.sin() * torch.poisson(x.abs() * 3),
    "order": lambda x: x[torch.randperm(N)].sin(),
    "gamma": lambda x: torch.distributions.Gamma(x.abs() + 1, x.exp()).rsample(),
    "normal": lambda x: torch.distributions.Normal(x.sin(), x.exp()).rsample(),
    "gumbel softmax": lambda x: F.gumbel_softmax(x),
    "attention": lambda x: F.scaled_dot_product_attention(*[(WEIGHT @ x).reshape(1, 4, 3)] * 3, dropout_p=0.4),
    "branch": lambda x: x.sin() if torch.rand(()) > 0.5 else x.exp(),
}
DENSE = {
    "jacfwd": pf.jacfwd,
    "jacfwd, same": lambda f: pf.jacfwd(f, randomness="same"),
    "jacfwd in chunks": lambda f: pf.jacfwd(f, chunk_size=4),
    "jacrev": pf.jacrev,
    "jacrev in chunks": lambda f: pf.jacrev(f, chunk_size=5),
    "jacobian": pf.jacobian,
    "jacobian forward": lambda f: pf.jacobian(f, mode="forward"),
    "jacobian reverse": lambda f: pf.jacobian(f, mode="reverse"),
    "jacobian forward in chunks": lambda f: pf.jacobian(f, mode="forward", chunk_size=3),
    "jacobian reverse in chunks": lambda f: pf.jacobian(f, mode="reverse", chunk_size=3),
    "value_and_jacobian": lambda f: lambda x: pf.value_and_jacobian(f)(x)[1],
    "inside": lambda f: lambda x: pf.vmap(pf.jacobian(f), randomness="same")(x[None])[0],
    "by vmap of jvp": lambda f: lambda x: pf.vmap(lambda t: pf.jvp(f, (x,), (t,))[1], out_dims=-1, randomness="same")(EYE),
}
SPARSE = {
    "global": lambda f: pf.jacobian(f, sparsity="global"),
    "local": lambda f: pf.jacobian(f, sparsity="local"),
    "auto": lambda f: pf.jacobian(f, sparsity="auto"),
    "global forward": lambda f: pf.jacobian(f, sparsity="global", mode="forward", chunk_size=2),
    "global reverse": lambda f: pf.jacobian(f, sparsity="global", mode="reverse"),
    "both": lambda f: pf.jacobian(f, sparsity="global", mode="both"),
}


def of_loop(f, x, seed):
    """The Jacobian row by row, the function called anew under the same seed for each; and the states after one call."""
    seeded(seed)
    size = f(x).numel()
    rows = []
    for k in range(size):
        seeded(seed)
        at = x.clone().requires_grad_()
        out = f(at)
        rows.append(torch.autograd.grad(out.reshape(-1)[k], at)[0])
    return torch.stack(rows).reshape(*out.shape, *x.shape), states()


def point(k):
    return torch.linspace(0.2, 1.5, N, dtype=D) + k / 10


def agrees(made, f, x, seed):
    want, after = of_loop(f, x, seed)
    seeded(seed)
    got = made(x)
    torch.testing.assert_close(got.to_dense().reshape(want.shape), want)
    for one, other in zip(states(), after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("way", DENSE)
def test_dense_jacobians_are_of_one_draw(name, way):
    f = DRAWS[name]
    made = DENSE[way](f)
    for k, around in enumerate([contextlib.nullcontext] * 4 + [pf.no_replay]):
        with around():
            agrees(made, f, point(k), k)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("way", SPARSE)
def test_sparse_jacobians_are_of_one_draw(name, way):
    f = DRAWS[name]
    if way == "both" and f(point(0)).dim() > 1:
        pytest.skip("blocks of matrices are two-dimensional")
    made = SPARSE[way](f)
    for k in range(5):
        if name == "branch":  # the pattern is of the branch taken
            seeded(k)
        agrees(made, f, point(k), k)


def test_a_pattern_holds_for_every_draw():
    x = torch.ones(N, dtype=D)
    for f in (
        lambda v: F.dropout(v, 0.5),
        lambda v: v * (torch.rand(N) > 0.5),
        lambda v: torch.where(torch.rand(N) > 0.5, v, 0.0),
        lambda v: v * torch.empty(N).bernoulli_(0.5),
    ):
        assert torch.equal(torch.from_numpy(pf.jacobian_sparsity(f, x).to_mask()), torch.eye(N, dtype=torch.bool))
        plan = pf.plan(f, x, sparsity="global")
        for seed in range(5):
            agrees(plan, f, x, seed)
    assert pf.jacobian_sparsity(lambda v: v[torch.randperm(N)], x).nnz == N * N
    assert pf.jacobian_sparsity(lambda v: (torch.rand(N, N) > 0.9).to(D) @ v, x).nnz == N * N


def test_planning_draws_nothing():
    for f in (DRAWS["dropout"], DRAWS["its own generator"], DRAWS["poisson"], torch.sin):
        for options in ({}, {"sparsity": "global"}, {"sparsity": "auto"}, {"mode": "both"}, {"memory": "1MB"}):
            seeded(3)
            before = states()
            plan = pf.plan(f, point(0), **options)
            for one, other in zip(states(), before, strict=True):
                assert torch.equal(one, other)
            agrees(plan, f, point(1), 5)


def test_a_jacobian_of_a_function_that_does_not_draw_leaves_the_generator():
    seeded(3)
    before = torch.get_rng_state()
    for options in ({}, {"sparsity": "global"}, {"mode": "both"}, {"sparsity": "global", "mode": "reverse"}):
        for _ in range(2):
            pf.jacobian(torch.sin, **options)(point(0))
    assert torch.equal(before, torch.get_rng_state())


SCALARS = {
    "dropout": lambda x: (F.dropout(x, 0.5) ** 3).sum(),
    "network": lambda x: F.dropout((WEIGHT @ x).tanh(), 0.5).pow(2).sum(),
    "noise": lambda x: (x.sin() * torch.rand_like(x)).sum() + (x[1:] * x[:-1]).sum(),
    "its own generator": lambda x: (x.sin() * torch.rand(N, dtype=D, generator=G)).prod(),
}
HESSIANS = {
    "hessian": pf.hessian,
    "in chunks": lambda f: pf.hessian(f, chunk_size=3),
    "forward": lambda f: pf.hessian(f, mode="forward"),
    "reverse": lambda f: pf.hessian(f, mode="reverse"),
    "sparse": lambda f: pf.hessian(f, sparsity="global"),
    "sparse in chunks": lambda f: pf.hessian(f, sparsity="global", chunk_size=2),
    "jacfwd(jacrev)": lambda f: pf.jacfwd(pf.jacrev(f)),
    "jacrev(jacfwd)": lambda f: pf.jacrev(pf.jacfwd(f)),
    "jacfwd(jacfwd)": lambda f: pf.jacfwd(pf.jacfwd(f, chunk_size=4)),
    "jacfwd(grad)": lambda f: pf.jacfwd(pf.grad(f), chunk_size=3),
    "hvp": lambda f: lambda x: pf.vmap(lambda t: pf.hvp(f, (x,), (t,))[1], randomness="same")(EYE),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("way", HESSIANS)
def test_hessians_are_of_one_draw(name, way):
    f = SCALARS[name]
    made = HESSIANS[way](f)
    for k, around in enumerate([contextlib.nullcontext] * 4 + [pf.no_replay]):
        x = point(k)
        seeded(k)
        f(x)
        after = states()
        rows = []
        for j in range(N):
            seeded(k)
            at = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(f(at), at, create_graph=True)
            rows.append(torch.autograd.grad(slope[j], at)[0])
        seeded(k)
        with around():
            got = made(x)
        torch.testing.assert_close(got.to_dense(), torch.stack(rows))
        for one, other in zip(states(), after, strict=True):
            assert torch.equal(one, other)


INNER = {
    "jacfwd": lambda f: pf.jacfwd(f, has_aux=True),
    "jacfwd in chunks": lambda f: pf.jacfwd(f, has_aux=True, chunk_size=4),
    "jacrev": lambda f: pf.jacrev(f, has_aux=True),
    "jacobian": lambda f: pf.jacobian(f, has_aux=True),
    "jacobian in chunks": lambda f: pf.jacobian(f, has_aux=True, mode="forward", chunk_size=4),
}


def drop_and_show(x):
    out = F.dropout(x, 0.5)
    return out**2, out


@pytest.mark.parametrize("way", INNER)
@pytest.mark.parametrize("how", [{"randomness": "different"}, {"seed": 3}, {"randomness": "different", "chunk_size": 2}])
def test_each_lane_has_a_mask_of_its_own_for_all_directions(way, how):
    x = torch.linspace(1, 2, 5 * N, dtype=D).reshape(5, N)
    for _ in range(4):
        made, out = pf.vmap(INNER[way](drop_and_show), **how)(x)
        masks = out != 0
        torch.testing.assert_close(made, torch.diag_embed(torch.where(masks, 8 * x, 0.0)))
        assert len({tuple(m.tolist()) for m in masks}) > 1
        if "seed" in how:
            for lane in range(5):
                with pf.lane_generator(3, lane):
                    torch.testing.assert_close(out[lane], F.dropout(x[lane], 0.5))


def test_randomness_is_still_asked_for_the_lanes():
    x = torch.ones(5, N)
    for t in (pf.jacfwd, pf.jacrev, pf.jacobian, pf.hessian):
        with pytest.raises(pf.RandomnessError, match="randomness='different'"):
            pf.vmap(t(lambda v: F.dropout(v, 0.5).sum()))(x)
    with pytest.raises(pf.RandomnessError):
        pf.jacfwd(lambda v: F.dropout(v, 0.5), randomness="error")(x)
    different = pf.jacfwd(lambda v: F.dropout(v, 0.5), randomness="different")(torch.ones(60)).diagonal()
    assert 0 < int((different == 0).sum()) < 60


def test_lanes_that_disagree_keep_their_masks():
    def f(x):
        out = F.dropout(x, 0.5)
        return (out**2, out) if x.sum() > 15 else (out**3, out)

    x = torch.linspace(1, 2, 5 * N, dtype=D).reshape(5, N)
    for how in ({"randomness": "different"}, {"seed": 1}):
        for chunk in (None, 4):
            made, out = pf.vmap(pf.jacfwd(f, has_aux=True, chunk_size=chunk), **how)(x)
            slope = torch.where(x.sum(1, keepdim=True) > 15, 8 * x, 24 * x**2)
            torch.testing.assert_close(made, torch.diag_embed(torch.where(out != 0, slope, 0.0)))


def test_derivatives_of_jacobians_keep_the_draw():
    f = lambda x: F.dropout(x, 0.5) ** 3
    for k in range(4):
        x = point(k)
        seeded(k)
        on = F.dropout(x, 0.5) != 0
        want = torch.where(on, 48 * x, 0.0)
        for jac in (pf.jacfwd, pf.jacrev, lambda f: pf.jacfwd(f, chunk_size=3)):
            seeded(k)
            torch.testing.assert_close(pf.grad(lambda x: jac(f)(x).sum())(x), want)
            seeded(k)
            torch.testing.assert_close(pf.jvp(jac(f), (x,), (x,))[1], torch.diag(want * x))


def test_a_recorded_program_draws_once_or_is_refused():
    f = lambda v: F.dropout(v, 0.5) ** 2
    x = torch.linspace(1, 2, N, dtype=D)
    for t in (pf.jacfwd(f), pf.jacrev(f, chunk_size=3)):
        program = pf.trace(t)(x)
        for seed in range(3):
            seeded(seed)
            got = program(x)
            seeded(seed)
            torch.testing.assert_close(got, torch.diag(torch.where(f(x) != 0, 8 * x, 0.0)))
    for record in (pf.trace, make_fx):
        with pytest.raises(pf.RandomnessError, match="without chunk_size"):
            record(pf.jacfwd(f, chunk_size=3))(x)
        record(pf.jacfwd(torch.sin, chunk_size=3))(x)


def test_tensors_without_numbers_have_no_generator():
    x = torch.ones(4, device="meta")
    for t in (pf.jacfwd, lambda f: pf.jacfwd(f, chunk_size=2), pf.jacrev, pf.jacobian):
        assert t(torch.sin)(x).shape == (4, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(N, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).double()

    def forward(self, x):
        return self.body(x)


def test_a_network_with_dropout_by_its_parameters():
    net, x = Net(), point(0)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    f = lambda p: pf.functional_call(net, p, (x,))
    for seed in range(3):
        seeded(seed)
        want = pf.jacrev(f)(parameters)
        for t in (pf.jacfwd, lambda f: pf.jacfwd(f, chunk_size=30), pf.jacobian, lambda f: pf.jacobian(f, mode="forward")):
            seeded(seed)
            got = t(f)(parameters)
            for name in want:
                torch.testing.assert_close(got[name], want[name])


def test_checkpointed_functions_draw_again_what_they_drew():
    from torch.utils.checkpoint import checkpoint

    part = lambda x: F.dropout((WEIGHT @ x).sin(), 0.5) * 2
    f = lambda x: checkpoint(part, x, use_reentrant=False)
    for k in range(3):
        want, _ = of_loop(part, point(k), k)
        for way in ("jacrev", "jacrev in chunks", "jacfwd", "jacfwd in chunks", "jacobian reverse"):
            seeded(k)
            torch.testing.assert_close(DENSE[way](f)(point(k)), want)
