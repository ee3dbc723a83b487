"""Recurrent layers, embeddings, bags and segments: every mapped argument and every composition to second order."""

import warnings

import pytest
import torch

import pushforward as pf
from tests.ops.orders import check_orders, weighted
from tests.ops.subsets import check_subsets

F = torch.nn.functional
D = torch.float64


def real(*shape, seed=0, dtype=D):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D).to(dtype)


@pytest.fixture(autouse=True)
def no_loops():
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        yield


def network(kind, dtype=D, **options):
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(3, 2, batch_first=True, **options).to(dtype)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_networks(kind, options):
    net = network(kind, **options)
    f = lambda x: net(x)[0]
    check_orders(lambda x: weighted(f(x)), real(2, 3, 3))
    check_subsets(f, real(2, 3, 3))
    check_subsets(f, real(3, 3))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_fused_layer_of_single_precision(kind):
    """float32 goes by the fused kernel: lanes as a batch, ensembles, per-sample gradients and Hessians."""
    net, x = network(kind, torch.float32, num_layers=2), real(4, 2, 5, 3, dtype=torch.float32)
    for one in (x[0], x[0, :1], x[0, 0]):  # a batch of one is where states stay views of a single zero
        check_subsets(lambda x: net(x)[0], one, sizes=(4, 1), tolerance=1e-5)
    parameters = dict(net.named_parameters())

    def loss(p, x):
        out, last = pf.functional_call(net, p, (x,))
        return weighted(out) + sum(weighted(s) for s in (last if isinstance(last, tuple) else (last,)))

    got = pf.vmap(pf.grad(loss), in_dims=(None, 0))(parameters, x)
    for lane in range(4):
        for key, value in pf.grad(loss)(parameters, x[lane]).items():
            torch.testing.assert_close(got[key][lane], value, rtol=1e-4, atol=1e-5)
    ensemble = {k: torch.stack([v, v * 0.5]) for k, v in parameters.items()}
    outs = pf.vmap(lambda p: loss(p, x[0]))(ensemble)
    torch.testing.assert_close(outs[1], loss({k: v * 0.5 for k, v in parameters.items()}, x[0]), rtol=1e-4, atol=1e-5)
    wide = network(kind, D, num_layers=2)
    wide.load_state_dict(net.state_dict())
    f = lambda z, n: weighted(n(z)[0])
    v = real(2, 5, 3, seed=3)
    for run in (
        lambda g, z, d: pf.jvp(g, (z,), (d,))[1],
        lambda g, z, d: pf.jvp(pf.grad(g), (z,), (d,))[1],
        lambda g, z, d: pf.grad(lambda y: pf.jvp(g, (y,), (d,))[1])(z),
        lambda g, z, d: pf.grad(lambda y: (pf.grad(g)(y) * d).sum())(z),
    ):
        exact = run(lambda z: f(z, wide), x[0].double(), v)
        torch.testing.assert_close(run(lambda z: f(z, net), x[0], v.float()).double(), exact, rtol=1e-4, atol=1e-4)


def test_the_fused_layer_of_lanes_with_gaps_between_them():
    """Its kernel takes everything for contiguous, and one lane looks so."""
    net, x = network("LSTM", torch.float32), real(6, 5, 3, dtype=torch.float32)[::2]
    states = real(6, 1, 2, dtype=torch.float32)[::2]
    f = lambda x, h, c: net(x, (h, c))[0]
    expected = torch.stack([f(*lane) for lane in zip(x, states, -states, strict=True)])
    torch.testing.assert_close(pf.vmap(f)(x, states, -states), expected, rtol=1e-5, atol=1e-6)
    expected = torch.stack([f(a, states[0], states[1]) for a in x])
    torch.testing.assert_close(pf.vmap(f, in_dims=(0, None, None))(x, states[0], states[1]), expected, rtol=1e-5, atol=1e-6)


def test_reverse_mode_of_a_plain_call_is_mapped():
    """A pullback taken of an ordinary call, then mapped over cotangents."""
    net, x = network("LSTM", torch.float32), real(2, 5, 3, dtype=torch.float32)
    out, pull = pf.vjp(lambda p, x: pf.functional_call(net, p, (x,))[0], dict(net.named_parameters()), x)
    seeds = torch.randn(3, *out.shape)
    got = pf.vmap(pull)(seeds)
    for lane in range(3):
        one = pull(seeds[lane])
        torch.testing.assert_close(got[1][lane], one[1], rtol=1e-4, atol=1e-5)
        for key in one[0]:
            torch.testing.assert_close(got[0][key][lane], one[0][key], rtol=1e-4, atol=1e-5)


def test_packed_sequences():
    """Sequences of different lengths, by every composition."""
    for kind in ("LSTM", "GRU"):
        net = network(kind)

        def f(x, net=net):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, [4, 2], batch_first=True)
            return weighted(net(packed)[0].data)

        check_orders(f, real(2, 4, 3))


def test_unpacked_sequences():
    """There and back again: lengths, padding and gradients."""
    net, x = network("LSTM"), real(2, 4, 3)

    def f(x):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [4, 2], batch_first=True)
        return torch.nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=True, padding_value=0.5)[0]

    check_orders(lambda x: weighted(f(x)), x)
    check_subsets(f, x, sizes=(2,))


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells(kind):
    cell = getattr(torch.nn, kind)(3, 2).double()

    def f(x):
        out = cell(x)
        return out[0] if isinstance(out, tuple) else out

    check_orders(lambda x: weighted(f(x)), real(2, 3))
    check_subsets(f, real(2, 3))


# -- embeddings ------------------------------------------------------------------------------------------------------

INDICES = torch.tensor([[0, 2, 1], [2, 2, 3]])
FLAT = torch.tensor([0, 2, 1, 2, 2, 3])
OFFSETS = torch.tensor([0, 2, 2, 5])


def test_embedding():
    for padding in (None, 2):
        f = lambda w, i, p=padding: F.embedding(i, w, padding_idx=p)
        check_subsets(f, real(4, 3), INDICES)
        check_subsets(pf.grad(lambda w, i, f=f: weighted(f(w, i))), real(4, 3), INDICES)
        tangent = pf.jvp(lambda w, f=f: f(w, INDICES), (real(4, 3),), (torch.ones(4, 3, dtype=D),))[1]
        expected = torch.ones(2, 3, 3, dtype=D) if padding is None else (INDICES != 2).to(D)[..., None].expand(2, 3, 3)
        torch.testing.assert_close(tangent, expected)
    check_orders(lambda w: weighted(F.embedding(INDICES, w)), real(4, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags(mode, padding):
    def f(w, i, o):
        return F.embedding_bag(i, w, o, mode=mode, padding_idx=padding)

    check_subsets(lambda w, i: f(w, i, OFFSETS), real(4, 3), FLAT, sizes=(2,))
    check_subsets(pf.grad(lambda w: weighted(f(w, FLAT, OFFSETS))), real(4, 3), sizes=(2,))
    check_orders(lambda w: weighted(f(w, FLAT, OFFSETS)), real(4, 3))
    pull = pf.vjp(lambda w: f(w, FLAT, OFFSETS), real(4, 3))[1]
    seeds = real(2, 4, 3, seed=5)
    torch.testing.assert_close(pf.vmap(pull)(seeds)[0], torch.stack([pull(s)[0] for s in seeds]))


def test_weights_of_samples_in_bags():
    def f(w, s):
        return F.embedding_bag(FLAT, w, OFFSETS, mode="sum", per_sample_weights=s, include_last_offset=False)

    check_subsets(f, real(4, 3), real(6), sizes=(2,))
    check_subsets(pf.grad(lambda w, s: weighted(f(w, s)), argnums=(0, 1)), real(4, 3), real(6), sizes=(2,))
    check_orders(lambda z: weighted(f(z[:12].reshape(4, 3), z[12:])), real(18))


LENGTHS = torch.tensor([2, 0, 3])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 1.5])
def test_segments(reduce, initial):
    def f(x, n):
        out = torch.segment_reduce(x, reduce, lengths=n, initial=initial)
        return torch.where(out.isfinite(), out, 0)

    check_subsets(f, real(5, 2), LENGTHS, sizes=(2,))
    check_subsets(pf.grad(lambda x, n: weighted(f(x, n))), real(5, 2), LENGTHS, sizes=(2,))
    check_orders(lambda x: weighted(f(x, LENGTHS)), real(5, 2))
    by_offsets = pf.jvp(
        lambda x: torch.segment_reduce(x, reduce, offsets=torch.tensor([0, 2, 5])), (real(5),), (real(5, seed=1),)
    )
    by_lengths = pf.jvp(
        lambda x: torch.segment_reduce(x, reduce, lengths=torch.tensor([2, 3])), (real(5),), (real(5, seed=1),)
    )
    torch.testing.assert_close(by_offsets, by_lengths)
