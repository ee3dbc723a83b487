"""The kernels of other devices, with stand-ins on the CPU that have their arguments and results."""

import math
import warnings

import pytest
import torch
from torch.library import _scoped_library

import pushforward as pf
from tests.ops.subsets import check_subsets

D = torch.float64
aten = torch.ops.aten


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def scores(q, k, bias, causal, scale):
    s = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if bias is None or not bias.numel() else s + bias
    return s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf) if causal else s


def forward(q, k, v, bias=None, causal=False, scale=None):
    assert q.dim() == k.dim() == v.dim() == 4
    s = scores(q, k, bias, causal, scale)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def backward(g, q, k, v, bias, out, lse, causal, scale):
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    p = (scores(q, k, bias, causal, scale) - lse.unsqueeze(-1)).exp()
    ds = p * (g @ v.transpose(-2, -1) - (g * out).sum(-1, keepdim=True))
    return ds @ k * factor, ds.transpose(-2, -1) @ q * factor, p.transpose(-2, -1) @ g, ds


EMPTY = torch.zeros(0)
SEED = torch.zeros(2, dtype=torch.int64)


def flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, lse = forward(q, k, v, None, is_causal, scale)
    return out, lse, EMPTY.clone(), EMPTY.clone(), q.shape[2], k.shape[2], SEED.clone(), EMPTY.clone(), EMPTY.clone()


def flash_backward(g, q, k, v, out, lse, cq, ck, mq, mk, dropout_p, is_causal, seed, offset, *, scale=None):
    assert seed.shape == (2,)
    return backward(g, q, k, v, None, out, lse, is_causal, scale)[:3]


def efficient(q, k, v, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    out, lse = forward(q, k, v, attn_bias, is_causal, scale)
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32)) if compute_log_sumexp else lse[..., :0]
    return out, lse.clone(), SEED[0].clone(), SEED[0].clone()


def efficient_backward(
    g, q, k, v, attn_bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
):
    assert seed.dim() == 0
    lse = lse[..., : q.shape[2]]
    *found, by_bias = backward(g, q, k, v, attn_bias, out, lse, is_causal, scale)
    wanted = grad_input_mask[3] and attn_bias is not None and attn_bias.numel()
    return *found, by_bias.sum_to_size(attn_bias.shape) if wanted else EMPTY.to(D)


def cudnn(q, k, v, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, lse = forward(q, k, v, attn_bias, is_causal, scale)
    return (
        out, lse.unsqueeze(-1), EMPTY.clone(), EMPTY.clone(), q.shape[2], k.shape[2], SEED[0].clone(), SEED[0].clone(),
        EMPTY.clone(),
    )  # fmt: skip


def cudnn_backward(
    g, q, k, v, out, lse, seed, offset, attn_bias, cq, ck, mq, mk, dropout_p, is_causal, *, scale=None
):
    return backward(g, q, k, v, attn_bias, out, lse.squeeze(-1), is_causal, scale)[:3]


@pytest.fixture(autouse=True)
def kernels():
    """Stand-ins on the CPU, for one test."""
    with _scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        for name in ("flash", "efficient", "cudnn"):
            library.impl(f"_scaled_dot_product_{name}_attention", globals()[name], "CPU")
            library.impl(f"_scaled_dot_product_{name}_attention_backward", globals()[name + "_backward"], "CPU")
        yield


BIAS = real(1, 2, 3, 5, seed=9)
CALLS = {
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, scale=0.3)[:2],
    "flash, causal": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)[:2],
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[:2],
    "efficient, bias": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, BIAS, True)[:2],
    "efficient, no sums": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, BIAS, False)[:1],
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2],
    "cudnn, bias": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, BIAS, True, scale=0.2)[:2],
}
Q, K, V = real(2, 2, 3, 4), real(2, 2, 5, 4, seed=1), real(2, 2, 5, 4, seed=2)
W = real(2, 2, 3, 4, seed=3)


def plain(name):
    """The same in elementary operators."""
    bias = BIAS if "bias" in name or "sums" in name else None
    scale = 0.3 if name == "flash" else 0.2 if name == "cudnn, bias" else None
    return lambda q, k, v: forward(q, k, v, bias, "causal" in name, scale)


def loss(f):
    return lambda q, k, v: (f(q, k, v)[0] * W).sum()


@pytest.mark.parametrize("name", CALLS)
def test_lanes_join_the_samples(name):
    f = CALLS[name]
    check_subsets(f, Q, K, V, sizes=(3, 1))
    if name != "efficient, no sums":  # which torch asks for where nothing is differentiated
        check_subsets(pf.grad(loss(f), argnums=(0, 1, 2)), Q, K, V, sizes=(2,))


def test_a_bias_of_each_lane_and_its_gradient():
    """Biases that stretch over samples or heads, mapped and not."""
    f = lambda q, b: aten._scaled_dot_product_efficient_attention(q, K, V, b.expand(b.shape), True)[0]
    for shape in ((1, 2, 3, 5), (2, 1, 3, 5), (2, 2, 3, 5)):
        bias = real(*shape, seed=4)
        check_subsets(f, Q, bias, sizes=(3,))
        check_subsets(pf.grad(lambda q, b: (f(q, b) * W).sum(), argnums=(0, 1)), Q, bias, sizes=(3,))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "efficient, no sums"])
def test_derivatives(name):
    f, g = CALLS[name], plain(name)
    v = tuple(real(*x.shape, seed=5 + k) for k, x in enumerate((Q, K, V)))
    out, push = pf.jvp(f, (Q, K, V), v)
    for got, expected in zip((*out[:1], *push[:1]), (g(Q, K, V)[0], pf.jvp(g, (Q, K, V), v)[1][0]), strict=True):
        torch.testing.assert_close(got, expected)
    if len(push) > 1:
        sums = pf.jvp(g, (Q, K, V), v)[1][1]
        flat = push[1].squeeze(-1)[..., :3] if push[1].dim() == 4 else push[1][..., :3]
        torch.testing.assert_close(flat, sums)
    for way in (
        lambda f: pf.grad(loss(f), argnums=(0, 1, 2))(Q, K, V),
        lambda f: pf.jvp(pf.grad(loss(f), argnums=(0, 1, 2)), (Q, K, V), v)[1],
        lambda f: pf.jvp(lambda *x: pf.jvp(loss(f), x, v)[1], (Q, K, V), v)[1],
        lambda f: pf.grad(lambda *x: pf.jvp(loss(f), x, v)[1], argnums=(0, 1, 2))(Q, K, V),
    ):
        torch.testing.assert_close(way(f), way(g))


def test_a_bias_is_differentiated():
    bias, v = real(1, 2, 3, 5, seed=4), real(1, 2, 3, 5, seed=6)
    f = lambda b: (aten._scaled_dot_product_efficient_attention(Q, K, V, b, True)[0] * W).sum()
    g = lambda b: (forward(Q, K, V, b)[0] * W).sum()
    for way in (
        lambda f: pf.jvp(f, (bias,), (v,))[1],
        lambda f: pf.grad(f)(bias),
        lambda f: pf.jvp(pf.grad(f), (bias,), (v,))[1],
    ):
        torch.testing.assert_close(way(f), way(g))


def test_sums_that_the_kernel_does_not_give():
    out, push = pf.jvp(CALLS["efficient, no sums"], (Q, K, V), (Q, K, V))
    expected = pf.jvp(plain("efficient, no sums"), (Q, K, V), (Q, K, V))
    torch.testing.assert_close((out[0], push[0]), (expected[0][0], expected[1][0]))


def test_dropout_of_a_kernel_has_no_tangent():
    f = lambda q: aten._scaled_dot_product_flash_attention(q, K, V, 0.5)[0]
    with pytest.raises(pf.NotDifferentiableError, match="dropout"):
        pf.jvp(f, (Q,), (Q,))
    with pytest.raises(pf.RandomnessError):
        pf.vmap(f)(torch.stack([Q, Q]))
