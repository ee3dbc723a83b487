"""Attention against the formula written out: masks, blocks of keys, every composition to second order, modules."""

import math
import warnings

import pytest
import torch

import pushforward as pf
from pushforward.ops import attention as kernel
from tests.ops.orders import check_orders, weighted
from tests.ops.subsets import check_subsets

F = torch.nn.functional
D = torch.float64
fused = F.scaled_dot_product_attention


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def unfused(q, k, v, attn_mask=None, is_causal=False, scale=None):
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype is torch.bool else s + attn_mask
    return torch.softmax(s, -1) @ v


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of keys also for short sequences; a slow fallback is a failure."""
    monkeypatch.setattr(kernel, "BLOCK", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pf.SlowFallback)
        yield


KEEP = torch.rand(5, 7, generator=torch.Generator().manual_seed(3)) > 0.4
KEEP[:, 0] = True
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean mask": {"attn_mask": KEEP},
    "added mask": {"attn_mask": real(2, 1, 5, 7, seed=5)},
    "scale": {"scale": 0.7},
}
Q, K, V = real(2, 3, 5, 4), real(2, 3, 7, 4, seed=1), real(2, 3, 7, 6, seed=2)[..., :4]


@pytest.mark.parametrize("name", OPTIONS)
def test_tangents(name):
    """Along each argument alone and along all of them."""
    options = OPTIONS[name]
    tangents = [real(*x.shape, seed=10 + k) for k, x in enumerate((Q, K, V))]
    for chosen in ((0,), (1,), (2,), (0, 1, 2)):
        given = tuple(t if k in chosen else None for k, t in enumerate(tangents))
        got = pf.jvp(lambda *a: fused(*a, **options), (Q, K, V), given)
        expected = pf.jvp(lambda *a: unfused(*a, **options), (Q, K, V), given)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPTIONS)
def test_orders(name):
    options, factors = OPTIONS[name], real(2, 1, 7, 4, seed=4)

    def f(x):
        q, k, v = (x * 0.7)[:, :, :5], x.cos(), x * factors
        return weighted(fused(q, k, v, **options))

    check_orders(f, real(2, 1, 7, 4))


def test_subsets():
    check_subsets(fused, Q, K, V)
    check_subsets(lambda q, k, v, m: fused(q, k, v, attn_mask=m), Q, K, V, real(5, 7), sizes=(2,))
    check_subsets(lambda q, k, v, m: fused(q, k, v, attn_mask=m), Q, K, V, KEEP, sizes=(2,))


def test_gradients_by_subsets():
    gradients = pf.grad(lambda q, k, v: weighted(fused(q, k, v)), argnums=(0, 1, 2))
    check_subsets(gradients, Q, K, V, sizes=(2,), tolerance=1e-10)


def test_tangent_of_a_mask():
    mask, move = real(2, 1, 5, 7), real(2, 1, 5, 7, seed=1)
    got = pf.jvp(lambda m: fused(Q, K, V, attn_mask=m), (mask,), (move,))
    torch.testing.assert_close(got, pf.jvp(lambda m: unfused(Q, K, V, m), (mask,), (move,)))


def test_rows_without_keys_are_zero():
    mask = KEEP.clone()
    mask[1] = False
    out, tangent = pf.jvp(lambda q: fused(q, K, V, attn_mask=mask), (Q,), (Q,))
    assert out[..., 1, :].abs().max() == 0
    assert tangent[..., 1, :].abs().max() == 0
    assert tangent.isfinite().all()


def test_heads_that_share_keys():
    q = real(2, 6, 5, 4, seed=8)
    repeated = [x.repeat_interleave(2, 1) for x in (K, V)]
    for t in ((q, None, None), (None, K, V)):
        got = pf.jvp(lambda *a: fused(*a, enable_gqa=True), (q, K, V), t)[1]
        full = tuple(None if d is None else d.repeat_interleave(2, 1) if k else d for k, d in enumerate(t))
        torch.testing.assert_close(got, pf.jvp(unfused, (q, *repeated), full)[1])
    f = lambda k: weighted(fused(q, k, V, enable_gqa=True))
    g = lambda k: weighted(unfused(q, k.repeat_interleave(2, 1), repeated[1]))
    torch.testing.assert_close(pf.jvp(pf.grad(f), (K,), (K,)), pf.jvp(pf.grad(g), (K,), (K,)))


def test_gradient_by_a_mask_in_lanes():
    mask = real(3, 2, 1, 5, 7, seed=5)

    def loss(function, m):
        return weighted(function(Q, K, V, attn_mask=m))

    got = pf.vmap(pf.grad(lambda m: loss(fused, m)))(mask)
    torch.testing.assert_close(got, torch.stack([pf.grad(lambda m: loss(unfused, m))(m) for m in mask]))
    bias = real(2, 1, 5, 7).requires_grad_()  # captured: its graph is recorded below the lanes
    pf.vmap(lambda x: loss(fused, bias * x.mean()))(real(3, 4)).sum().backward()
    by_loop = bias.detach().requires_grad_()
    sum(loss(unfused, by_loop * x.mean()) for x in real(3, 4)).backward()
    torch.testing.assert_close(bias.grad, by_loop.grad)


def test_dropout_with_a_fixed_mask():
    """The same draw for the value and its tangent."""

    def f(q):
        torch.manual_seed(0)
        return fused(q, K, V, dropout_p=0.5)

    tangent, h = pf.jvp(f, (Q,), (Q,))[1], 1e-6
    torch.testing.assert_close(tangent, (f(Q + h * Q) - f(Q - h * Q)) / (2 * h), rtol=1e-6, atol=1e-7)


def test_no_square_of_the_length_is_kept():
    """The largest tensor that the tangent rule makes grows with the length, not with its square."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for o in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(o, torch.Tensor):
                    self.size = max(self.size, o.numel())
            return out

    sizes = []
    for length in (200, 400):
        x = real(1, 1, length, 4)
        with Largest() as mode:
            pf.jvp(lambda q, x=x: fused(q, x, x), (x,), (x,))
        sizes.append(mode.size)
    assert sizes[1] <= 2 * sizes[0]


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_module(need_weights):
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
    check_orders(lambda x: weighted(attention(x, x, x, need_weights=need_weights)[0]), real(2, 3, 4))


def test_encoder_layer():
    """Per-sample gradients of parameters, and the fused path of evaluation."""
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    parameters, xs = dict(layer.named_parameters()), real(3, 5, 4)

    def loss(p, x):
        return weighted(pf.functional_call(layer, p, (x[None],)))

    got = pf.vmap(pf.grad(loss), in_dims=(None, 0))(parameters, xs)
    for lane, x in enumerate(xs):
        for key, value in pf.grad(loss)(parameters, x).items():
            torch.testing.assert_close(got[key][lane], value, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        expected = layer.eval()(xs)
        torch.testing.assert_close(pf.vmap(layer)(xs[:, None])[:, 0], expected)
