"""Writes inside a transform: fresh buffers, views of them, arguments, and values that share a tangent."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf

D = torch.float64


def through_a_view(r):
    buffer = torch.zeros(3, dtype=D)
    view = buffer[1:]
    view[0] = r[0] * 2
    buffer[0] = r[1]
    buffer *= 2
    return view.sum() + buffer.sum()


def shared_tangent(r):
    y = r + 1
    y.mul_(3)
    return (y * r).sum()


def shared_tangent_with_view(r):
    y = r + 1
    view = y[:2]
    view.mul_(3)
    y[2] = r[0] ** 2
    return (y * r).sum()


def overwritten_view(r):
    x = r.clone()
    view = x[0]
    x.copy_(r * r)
    return view * 2


def rows(r):
    out = torch.empty(2, 3, dtype=D)
    out[0] = r
    out[1].copy_(r.sin())
    out.transpose(0, 1)[1] += r[:2]
    return (out**2).sum()


def out_argument(r):
    out = torch.empty(3, dtype=D)
    torch.sin(r, out=out)
    return (out * r).sum()


def metadata(r):
    x = r.clone().unsqueeze_(0).transpose_(0, 1)
    x += 1
    return (x.squeeze_(1) * r).sum()


def masked(r):
    x = r.clone()
    x[x > 0] = 0.5
    return (x * r).sum()


def rebound_constant(r):
    total = torch.zeros((), dtype=D)
    for k in range(3):
        total += r[k] * k
    return total * total


FUNCTIONS = [
    through_a_view,
    shared_tangent,
    shared_tangent_with_view,
    overwritten_view,
    rows,
    out_argument,
    metadata,
    masked,
    rebound_constant,
]


def reference(f, x):
    x = x.detach().clone().requires_grad_()
    y = reference_forms.get(f, f)(x)
    return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]


reference_forms = {out_argument: lambda r: (r.sin() * r).sum()}  # torch refuses out= where it differentiates


@pytest.mark.parametrize("f", FUNCTIONS)
def test_every_composition_equals_the_loop(f):
    x = torch.randn(4, 3, dtype=D, generator=torch.Generator().manual_seed(3))
    v = torch.randn(4, 3, dtype=D, generator=torch.Generator().manual_seed(4))
    values, grads = (torch.stack(c) for c in zip(*[reference(f, r) for r in x]))
    products = (grads * v).sum(1)
    before = x.clone()
    torch.testing.assert_close(pf.vmap(f)(x), values)
    torch.testing.assert_close(pf.vmap(f, in_dims=1)(x.T.contiguous()), values)
    torch.testing.assert_close(torch.stack([pf.jvp(f, (r,), (t,))[1] for r, t in zip(x, v)]), products)
    torch.testing.assert_close(pf.jvp(pf.vmap(f), (x,), (v,))[1], products)
    torch.testing.assert_close(pf.vmap(lambda r, t: pf.jvp(f, (r,), (t,))[1])(x, v), products)
    if f is not out_argument:
        torch.testing.assert_close(torch.stack([pf.grad(f)(r) for r in x]), grads)
        torch.testing.assert_close(pf.vmap(pf.grad(f))(x), grads)
    torch.testing.assert_close(pf.grad(lambda a: pf.vmap(f)(a).sum())(x), grads)
    torch.testing.assert_close(pf.grad(lambda r: pf.jvp(f, (r,), (v[0],))[0])(x[0]), grads[0])
    assert torch.equal(x, before)


def test_a_mutated_argument_changes_as_in_a_plain_call_and_its_tangent_does_not():
    x, t = torch.ones(3, dtype=D), torch.full((3,), 2.0, dtype=D)
    out, tangent = pf.jvp(lambda r: r.mul_(3).sum(), (x,), (t,))
    assert out == 9
    assert tangent == 18
    assert torch.equal(x, torch.full((3,), 3.0, dtype=D))
    assert torch.equal(t, torch.full((3,), 2.0, dtype=D))


def test_writes_into_captured_tensors():
    total = torch.zeros(3)
    with pytest.raises(pf.CapturedWriteError, match="made outside"):
        pf.vmap(lambda r: total.add_(r))(torch.ones(2, 3))
    with pytest.raises(pf.CapturedWriteError, match="made outside"):
        pf.vmap(lambda r: total.view(-1)[:1].copy_(r[:1]))(torch.ones(2, 3))
    with pytest.raises(pf.CapturedWriteError, match="made outside"):
        pf.jvp(lambda r: total.add_(r), (torch.ones(3),), (torch.ones(3),))
    count = torch.zeros(())
    pf.vmap(lambda r: (count.add_(1), r)[1])(torch.ones(5, 3))
    assert count == 1
