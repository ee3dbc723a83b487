"""Whole recurrent networks under `vmap` in one call: states of every kind, layouts, and when the long way is taken."""

import itertools

import pytest
import torch

import pushforward as pf
from pushforward.batch import fast_recurrent
from pushforward.batch.level import Batched

NETWORKS = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}


def real(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.fixture
def short(monkeypatch):
    """Which calls took the short way."""
    taken = []

    def counted(*call):
        out = fast_recurrent.network(*call)
        taken.append(out is not None)
        return out

    for function in (*NETWORKS.values(), torch.rnn_relu):
        monkeypatch.setitem(Batched._named, function, counted)
    return taken


def network(kind, **options):
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(3, 4, **{"dtype": torch.float64, **options})


def flat(out):
    return [out[0], *(out[1] if isinstance(out[1], tuple) else [out[1]])]


def check(f, args, dims, tolerance=1e-12):
    lanes = range(5)
    one = [f(*[a if d is None else a.select(d, k) for a, d in zip(args, dims, strict=True)]) for k in lanes]
    for got, *expected in zip(pf.vmap(f, in_dims=dims)(*args), *one, strict=True):
        torch.testing.assert_close(got, torch.stack(expected), rtol=tolerance, atol=tolerance)


OPTIONS = [
    {"batch_first": first, "num_layers": layers, "bidirectional": both, "bias": bias}
    for first, (layers, both, bias) in itertools.product((True, False), ((1, False, True), (2, True, True), (1, True, False)))
]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_inputs_and_states_of_every_kind(kind, options, short):
    net = network(kind, **options)
    count = options["num_layers"] * (2 if options["bidirectional"] else 1)
    states = (lambda h: (h, h * 2)) if kind == "LSTM" else (lambda h: h)
    given = lambda x, h: flat(net(x, states(h)))
    for samples in (None, 2):
        shape = (6, 3) if samples is None else (2, 6, 3) if options["batch_first"] else (6, 2, 3)
        x, h = real(5, *shape), real(5, count, *(() if samples is None else (samples,)), 4, seed=1)
        check(lambda x: flat(net(x)), (x,), (0,))
        check(lambda x: flat(net(x)), (x.movedim(0, -1),), (-1,))
        check(given, (x, h), (0, 0))
        check(given, (x, h[0]), (0, None))
        assert all(short)
        check(given, (x[0], h), (None, 0))
        assert not short.pop()


@pytest.mark.parametrize("kind", NETWORKS)
def test_single_precision_and_gradients(kind, short):
    net, x = network(kind, dtype=torch.float32, batch_first=True), real(5, 2, 6, 3, dtype=torch.float32)
    check(lambda x: flat(net(x)), (x,), (0,), 1e-5)
    loss = lambda x: net(x)[0].square().sum()
    check(lambda x: (pf.grad(loss)(x),), (x,), (0,), 1e-5)
    assert all(short)
    curve = lambda x: (pf.jvp(pf.grad(loss), (x,), (torch.ones_like(x),))[1],)
    check(curve, (x,), (0,), 1e-4)


def test_states_are_those_of_now(short):
    net = network("GRU", batch_first=True)

    def f(x):
        y, h = x.clone(), torch.zeros(2, 1, 4, dtype=x.dtype)
        part, start = y[:1], h[:1]
        h.add_(x.sum())
        y.mul_(2)
        return flat(net(part, start))

    check(f, (real(5, 2, 6, 3),), (0,))
    assert all(short)


def test_what_takes_the_long_way(short):
    net, x = network("LSTM", num_layers=2, dropout=0.5), real(5, 6, 2, 3)
    parameters = {k: torch.stack([p, p * 0.5]) for k, p in net.named_parameters()}
    pf.vmap(lambda x: net(x)[0], randomness="different")(x)
    net.eval()
    pf.vmap(lambda p: pf.functional_call(net, p, (x[0],))[0])(parameters)
    packed = lambda x: net(torch.nn.utils.rnn.pack_padded_sequence(x, [6, 4]))[0].data
    check(lambda x: (packed(x),), (x,), (0,))
    assert not any(short)
    with pytest.raises(RuntimeError):
        pf.vmap(lambda x: net(x, (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))))(x)
