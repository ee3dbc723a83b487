"""`nn.MultiheadAttention` under `vmap`: its short way is the loop over lanes, in values and in derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pushforward as pf


@pytest.fixture
def attend():
    torch.manual_seed(0)
    return nn.MultiheadAttention(6, 2, dtype=torch.float64)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


PADDED = torch.tensor([[False, False, True]] * 2)
CASES = {
    "itself": lambda m, x, y: m(x, x, x),
    "no weights": lambda m, x, y: m(x, x, x, need_weights=False)[0],
    "another": lambda m, x, y: m(x, y, y),
    "three": lambda m, x, y: m(x, y, y * 2),
    "weights of heads": lambda m, x, y: m(x, y, y, average_attn_weights=False)[1],
    "mask": lambda m, x, y: m(x, x, x, attn_mask=torch.ones(3, 3).tril().bool().logical_not()),
    "mask of its own": lambda m, x, y: m(x, x, x, attn_mask=x.flatten(1) @ x.flatten(1).mT),
    "keys without data": lambda m, x, y: m(x, x, x, key_padding_mask=PADDED if x.dim() == 3 else PADDED[0]),
    "another from outside": lambda m, x, y: m(x, torch.ones(3, *x.shape[1:]).to(x), torch.ones(3, *x.shape[1:]).to(x)),
}


@pytest.mark.parametrize("samples", [(), (2,)], ids=["one sample", "two samples"])
@pytest.mark.parametrize("case", CASES)
def test_lanes_are_more_samples(attend, case, samples):
    f = CASES[case]
    for lanes in (1, 4):
        x, y = randn(lanes, 3, *samples, 6), randn(lanes, 5, *samples, 6)
        got = pf.vmap(lambda x, y: f(attend, x, y))(x, y)
        want = [f(attend, a, b) for a, b in zip(x, y, strict=True)]
        if isinstance(got, tuple):
            for k, part in enumerate(got):
                torch.testing.assert_close(part, torch.stack([w[k] for w in want]))
        else:
            torch.testing.assert_close(got, torch.stack(want))


def test_derivatives_by_inputs_and_weights(attend):
    x = randn(4, 3, 2, 6)
    loss = lambda x: attend(x, x, x)[0].pow(2).sum()
    torch.testing.assert_close(pf.vmap(pf.grad(loss))(x), torch.stack([pf.grad(loss)(a) for a in x]))
    pf.vmap(loss)(x).sum().backward()
    got = [p.grad.clone() for p in attend.parameters()]
    attend.zero_grad()
    sum(loss(a) for a in x).backward()
    for own, p in zip(got, attend.parameters(), strict=True):
        torch.testing.assert_close(own, p.grad)
    second = lambda x: pf.grad(lambda x: pf.grad(loss)(x).pow(2).sum())(x)
    torch.testing.assert_close(pf.vmap(second)(x), torch.stack([second(a) for a in x]))
    along = lambda x: pf.jvp(pf.grad(loss), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(pf.vmap(along)(x), torch.stack([along(a) for a in x]))


def test_one_gradient_a_sample_by_weights(attend):
    x = randn(4, 3, 2, 6)
    params = {k: p.detach() for k, p in attend.named_parameters()}
    loss = lambda p, x: pf.functional_call(attend, p, (x, x, x))[0].pow(2).sum()
    got = pf.vmap(pf.grad(loss), in_dims=(None, 0))(params, x)
    for k, a in enumerate(x):
        want = pf.grad(loss)(params, a)
        for name, g in want.items():
            torch.testing.assert_close(got[name][k], g)


def test_draws_are_still_asked_about():
    attend = nn.MultiheadAttention(6, 2, dropout=0.5, dtype=torch.float64)
    x = randn(4, 3, 2, 6)
    with pytest.raises(pf.RandomnessError):
        pf.vmap(lambda x: attend(x, x, x)[0])(x)
    attend.eval()
    torch.testing.assert_close(
        pf.vmap(lambda x: attend(x, x, x)[0])(x), torch.stack([attend(a, a, a)[0] for a in x])
    )


@pytest.mark.parametrize(
    "wrong", [lambda m, x: m(x, x[:, :1], x[:, :1]), lambda m, x: m(x[..., :4], x[..., :4], x[..., :4])]
)
def test_what_is_wrong_for_one_is_wrong_for_all(attend, wrong):
    x = randn(4, 3, 2, 6)
    with pytest.raises((RuntimeError, AssertionError)):
        wrong(attend, x[0])
    with pytest.raises((RuntimeError, AssertionError)):
        pf.vmap(lambda x: wrong(attend, x))(x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("samples", [(), (2,)], ids=["one sample", "two samples"])
def test_self_attention_with_samples_in_front(samples, bias):
    torch.manual_seed(1)
    attend = nn.MultiheadAttention(6, 3, dtype=torch.float64, batch_first=True, bias=bias)
    x = randn(4, *samples, 5, 6)
    f = lambda x: attend(x, x, x, need_weights=False)[0]
    out = pf.vmap(f)(x)
    torch.testing.assert_close(out, torch.stack([f(a) for a in x]))
    loss = lambda x: f(x).sin().sum()
    torch.testing.assert_close(pf.vmap(pf.grad(loss))(x), torch.stack([pf.grad(loss)(a) for a in x]))
    torch.testing.assert_close(
        pf.vmap(lambda x: pf.jvp(f, (x,), (x * x,))[1])(x), torch.stack([pf.jvp(f, (a,), (a * a,))[1] for a in x])
    )
    got = torch.autograd.grad(pf.vmap(loss)(x).sum(), list(attend.parameters()))
    want = torch.autograd.grad(sum(loss(a) for a in x), list(attend.parameters()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_layers_of_a_transformer_and_calls_that_do_not_fit():
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, dtype=torch.float64)
    x = randn(4, 3, 6)
    for f in (lambda x: layer(x), lambda x: layer(x[None])[0], lambda x: layer(torch.stack([x, x * 2])).sum(0)):
        torch.testing.assert_close(pf.vmap(f)(x), torch.stack([f(a) for a in x]))
    attend = nn.MultiheadAttention(6, 2, dtype=torch.float64)
    with pytest.raises((RuntimeError, AssertionError)):
        pf.vmap(lambda x: attend(x, x, x, need_weights=False)[0])(randn(4, 3, 5))
    with pytest.raises((RuntimeError, AssertionError)):
        pf.vmap(lambda x: attend(x, x, x, need_weights=False)[0])(x.float())
