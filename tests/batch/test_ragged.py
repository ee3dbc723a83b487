"""Ragged batches equal the loop over their lanes, grouped or padded, and their results can be read as other things."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import pushforward as pf

D = torch.float64


def rows(sizes, *rest, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, *rest, dtype=D, generator=generator) for n in sizes]


SIZES = [2, 5, 1, 5, 2, 7]


pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


@pytest.mark.parametrize("make", [pf.ragged, torch.nested.nested_tensor, lambda r: torch.nested.nested_tensor(r, layout=torch.jagged)])
def test_inputs(make):
    data = rows(SIZES, 3)
    f = lambda r: r.sin().sum(0)
    want = torch.stack([f(r) for r in data])
    torch.testing.assert_close(pf.vmap(f)(make(data)), want)
    scale = torch.arange(6.0, dtype=D)
    torch.testing.assert_close(pf.vmap(lambda r, s: f(r) * s)(make(data), scale), want * scale[:, None])
    torch.testing.assert_close(pf.vmap(lambda r, s: f(r) * s, (0, None))(make(data), scale[2]), want * scale[2])
    torch.testing.assert_close(pf.vmap(lambda r, s: f(r) * s)(make(data), s=scale), want * scale[:, None])
    torch.testing.assert_close(pf.vmap(f, chunk_size=1)(make(data)), want)


def test_leaves_of_different_raggedness():
    a, b = rows(SIZES, 2), rows(SIZES[::-1], seed=1)
    f = lambda d: d["a"].sum(0) * d["b"].prod()
    got = pf.vmap(f)({"a": pf.ragged(a), "b": pf.ragged(b)})
    torch.testing.assert_close(got, torch.stack([f({"a": p, "b": q}) for p, q in zip(a, b, strict=True)]))
    with pytest.raises(pf.ArgumentError, match=r"ragged, 6 lanes[\s\S]*ragged, 5 lanes"):
        pf.vmap(lambda p, q: p.sum() + q.sum())(pf.ragged(a), pf.ragged(b[:5]))
    with pytest.raises(pf.ArgumentError, match=r"args\[0\] is ragged; its in_dim must be 0 or None"):
        pf.vmap(torch.sum, in_dims=1)(pf.ragged(a))


def test_lanes_of_one_size_run_together():
    calls = []

    def f(r):
        calls.append(r.shape[0])
        return r.sum() if r.sum() > 0 else r.prod()

    data = rows(SIZES)
    with pf.report() as report:
        got = pf.vmap(f)(pf.ragged(data))
    torch.testing.assert_close(got, torch.stack([r.sum() if r.sum() > 0 else r.prod() for r in data]))
    assert set(calls) == {1, 2, 5, 7}
    assert report.runs == len(calls) <= 6
    assert sum(report.calls[0].groups) == 6


def test_results_of_different_shapes():
    data = rows(SIZES, 3)
    out = pf.vmap(lambda r: (r.cumsum(0), r[:, 0].sum()))(pf.ragged(data))
    assert isinstance(out[0], pf.Ragged)
    assert out[1].shape == (6,)
    for got, r in zip(out[0], data, strict=True):
        torch.testing.assert_close(got, r.cumsum(0))
    masked = pf.vmap(lambda r: r[r > 0])(torch.tensor([[1.0, -1.0], [2.0, 3.0], [-1.0, 4.0]]))
    assert [r.tolist() for r in masked] == [[1.0], [2.0, 3.0], [4.0]]
    with pytest.raises(pf.ArgumentError, match="its out_dim must be 0"):
        pf.vmap(lambda r: r * 2, out_dims=1)(pf.ragged(data))


def test_a_ragged_batch_as_other_things():
    data = rows(SIZES, 3)
    batch = pf.ragged(data)
    assert repr(batch[:2]) == "Ragged(2 lanes of float64, shapes [2, 3], [5, 3])"
    assert batch.lengths.tolist() == SIZES
    assert batch.shapes[2] == (1, 3)
    assert len(batch) == 6
    padded, mask = batch.to_padded(-1.0)
    assert padded.shape == mask.shape == (6, 7, 3)
    assert bool((padded[~mask] == -1).all())
    torch.testing.assert_close(padded[mask], torch.cat([r.flatten() for r in data]))
    nested = batch.to_nested()
    assert nested.layout is torch.jagged
    for a, b in zip(nested.unbind(), batch.to_list(), strict=True):
        torch.testing.assert_close(a, b)
    assert pf.ragged([torch.ones(2, 3), torch.ones(3, 2)]).to_nested().is_nested
    torch.testing.assert_close(batch[1], data[1])
    assert batch[1:3].shapes == [(5, 3), (1, 3)]
    assert batch[[0, 5]].lengths.tolist() == [2, 7]
    assert batch[torch.tensor([True, False, False, False, False, True])].lengths.tolist() == [2, 7]
    assert batch.to(torch.float32).dtype is torch.float32
    assert batch.cpu().device.type == "cpu"
    assert pf.ragged([]).to_padded()[0].shape == (0,)
    assert repr(pf.ragged([])) == "Ragged(0 lanes of no dtype, shapes none)"


def test_what_is_no_ragged_batch():
    with pytest.raises(pf.ArgumentError, match="element 1 is an int, not a tensor"):
        pf.ragged([torch.ones(2), 3])
    with pytest.raises(pf.ArgumentError, match=r"element 1 has dtype torch\.float64"):
        pf.ragged([torch.ones(2), torch.ones(2, dtype=D)])
    with pytest.raises(pf.ArgumentError, match=r"element 1 has shape \[2, 2\].*ranks must agree"):
        pf.ragged([torch.ones(2), torch.ones(2, 2)])


def test_transforms_of_a_ragged_batch():
    data = rows(SIZES, 2)
    batch, one = pf.ragged(data), pf.ragged([torch.ones_like(r) for r in data])
    f = lambda b: pf.vmap(lambda r: r.sin().prod())(b)
    gradient = pf.grad(lambda b: f(b).sum())(batch)
    rate = pf.jvp(f, (batch,), (one,))[1]
    for r, g, t in zip(data, gradient, rate, strict=True):
        want = pf.grad(lambda z: z.sin().prod())(r)
        torch.testing.assert_close(g, want)
        torch.testing.assert_close(t, want.sum())
    leaves = pf.ragged([r.clone() for r in data]).requires_grad_()
    pf.vmap(lambda r: r.cumsum(0))(leaves)[1].sum().backward()
    assert leaves[1].grad is not None
    assert leaves[0].grad is None or not leaves[0].grad.any()


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_gradients_of_each_sequence(kind):
    torch.manual_seed(0)
    if kind == "lstm":
        net: nn.Module = nn.LSTM(3, 4, batch_first=True).double()
        call = lambda p, s: pf.functional_call(net, p, (s[None],))[0][0, -1].square().sum()
    else:
        net = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True), 2).double()
        call = lambda p, s: pf.functional_call(net, p, (s[None],))[0].mean(0).square().sum()
    params = {k: v.detach() for k, v in net.named_parameters()}
    data = rows([2, 4, 1, 4], 3 if kind == "lstm" else 4)
    got = pf.vmap(pf.grad(call), in_dims=(None, 0))(params, pf.ragged(data))
    for i, s in enumerate(data):
        leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
        loss = call(leaves, s)
        want = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for name, w in zip(leaves, want, strict=True):
            torch.testing.assert_close(got[name][i], torch.zeros_like(leaves[name]) if w is None else w)


def test_padding_with_a_mask():
    data = rows(SIZES, 3)

    def mean(r, mask):
        return (r * mask).sum(0) / mask[:, 0].sum()

    with pf.report() as report:
        got = pf.vmap(mean, ragged="pad")(pf.ragged(data))
    torch.testing.assert_close(got, torch.stack([r.mean(0) for r in data]))
    assert report.paddings[0].total == 6 * 7 * 3
    assert report.paddings[0].waste == pytest.approx(1 - 22 / 42)
    assert "48% of 126 elements hold no data" in str(report)
    torch.testing.assert_close(
        pf.vmap(lambda r: r.sum(0), ragged="pad")(pf.ragged(data)), torch.stack([r.sum(0) for r in data])
    )
    two = pf.vmap(lambda a, b, mask: (a * mask[0]).sum() + (b * mask[1]).sum(), ragged="pad")
    other = rows(SIZES[::-1])
    want = torch.stack([a.sum() + b.sum() for a, b in zip(data, other, strict=True)])
    torch.testing.assert_close(two(pf.ragged(data), pf.ragged(other)), want)
    with pytest.raises(pf.ArgumentError, match="ragged is 'fill'"):
        pf.vmap(mean, ragged="fill")


def test_an_encoder_that_looks_at_its_mask():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).double().eval()
    data = rows(SIZES, 4)

    def pooled(s, mask):
        mask = mask[:, 0]
        out = net(s[None], src_key_padding_mask=~mask[None])[0]
        return (out * mask[:, None]).sum(0) / mask.sum()

    want = torch.stack([net(s[None])[0].mean(0) for s in data])
    torch.testing.assert_close(pf.vmap(pooled, ragged="pad")(pf.ragged(data)), want)
    torch.testing.assert_close(pf.vmap(lambda s: net(s[None])[0].mean(0))(pf.ragged(data)), want)


def test_a_plain_list_of_lanes_is_taken_as_one_and_said():
    lanes = [torch.ones(2, 3), torch.ones(4, 3)]
    torch.testing.assert_close(pf.vmap(lambda a: a[0] + a[1])([torch.ones(2), torch.ones(2)]), torch.full((2,), 2.0))
    for _ in range(3):
        with pytest.warns(UserWarning, match=r"args\[0\]: a list .* pf\.ragged") as said:
            torch.testing.assert_close(pf.vmap(lambda a: a.sum())(lanes), torch.tensor([6.0, 12.0]))
        assert said[0].filename == __file__
    with pytest.raises(pf.ArgumentError, match=r"args\[0\]\[1\]: shape \[4, 3\].*\n.*\n.*pf\.ragged\(args\[0\]\)"):
        pf.vmap(lambda a: a.sum(), in_dims=([0, 0],))(lanes)
    with pytest.raises(pf.ArgumentError, match=r"pf\.ragged\(batch\)"):
        pf.vmap(lambda batch: batch.sum())(batch=lanes)
    torch.testing.assert_close(pf.vmap(lambda a: a.sum())(pf.ragged(lanes)), torch.tensor([6.0, 12.0]))


def test_what_a_tensor_has_is_there_or_says_what_is():
    batch = pf.ragged([torch.ones(2), torch.zeros(3)])
    assert batch.numel() == 5
    for kind, dtype in (("double", torch.float64), ("half", torch.float16), ("bfloat16", torch.bfloat16)):
        assert getattr(batch, kind)().dtype is dtype
    assert batch.double().float().dtype is torch.float32
    with pytest.raises(AttributeError, match=r"\.shapes"):
        _ = batch.shape
    with pytest.raises(AttributeError, match=r"pf\.vmap\(lambda x: x\.mean"):
        batch.mean()
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = batch.nothing
    assert not hasattr(batch, "sum")
    assert [r.tolist() for r in copy.deepcopy(batch)] == [[1, 1], [0, 0, 0]]
    assert [r.tolist() for r in pickle.loads(pickle.dumps(batch))] == [[1, 1], [0, 0, 0]]


def test_batches_of_one_type():
    stacked = pf.vmap(lambda x: x[:2])(pf.ragged([torch.ones(2), torch.zeros(3)]))
    assert isinstance(stacked, torch.Tensor)
    for value in (stacked, pf.ragged(stacked), list(stacked)):
        assert repr(pf.ragged(value)) == "Ragged(2 lanes of float32, shapes [2], [2])"


def test_batches_that_cannot_be():
    with pytest.raises(pf.ArgumentError, match=r"args\[0\] is ragged and has no lanes"):
        pf.vmap(torch.sum)(pf.ragged([]))
    odd = pf.vmap(lambda x: x if x > 0 else x[None])(torch.tensor([1.0, -1.0]))
    with pytest.raises(pf.ArgumentError, match=r"lanes of one rank"):
        odd.to_nested()


def test_seeds_are_ints():
    for call in (lambda: pf.vmap(torch.rand_like, seed=1.5), lambda: pf.lane_generator(1.5, 0)):
        with pytest.raises(pf.ArgumentError, match=r"seed is 1\.5"):
            call()
    for lane in (-1, 0.5):
        with pytest.raises(pf.ArgumentError, match=r"lane is"):
            pf.lane_generator(1, lane)
    assert pf.vmap(torch.rand_like, seed=np.int64(3))(torch.ones(2)).equal(pf.vmap(torch.rand_like, seed=3)(torch.ones(2)))


def test_structures_are_said_in_words():
    x = torch.ones(2)
    for call, said in {
        lambda: pf.vmap(lambda a: a, in_dims=({"a": 0},))(x): r"it has \(\{'a': \*\},\), the inputs have \(\*,\)",
        lambda: pf.vmap(lambda a: (a, a), out_dims=(0, 0, 0))(x): r"it has \(\*, \*, \*\), the output has \(\*, \*\)",
    }.items():
        with pytest.raises(pf.ArgumentError, match=said):
            call()
