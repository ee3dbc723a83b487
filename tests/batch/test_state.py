"""State and machinery inside of transforms: buffers, hooks, checkpoints, custom operators, autograd, threads."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pushforward as pf

D = torch.float64


@pytest.fixture
def x():
    return torch.randn(4, 3, dtype=D, generator=torch.Generator().manual_seed(0))


def seeded(make):
    torch.manual_seed(0)
    return make().double()


def rows_gradient(f, x):
    out = []
    for r in x:
        z = r.clone().requires_grad_()
        out.append(torch.autograd.grad(f(z), z)[0])
    return torch.stack(out)


# -- writes into what was captured -----------------------------------------------------------------


def test_the_error_names_the_captured_tensor(x):
    total = torch.zeros(3, dtype=D)

    def write_part(r):
        total[0] = r[0]
        return r

    for call in (lambda: pf.vmap(write_part)(x), lambda: pf.jvp(write_part, (x[0],), (x[0],))):
        with pytest.raises(
            pf.CapturedWriteError, match=r"test_state.py:\d+ writes .* `total` \(a tensor of shape \[3\]\).*inside"
        ):
            call()

    class Counter:
        def __init__(self):
            self.seen = torch.zeros(3, dtype=D)

        def __call__(self, r):
            self.seen.add_(r)
            return r

    with pytest.raises(pf.CapturedWriteError, match=r"`self.seen`"):
        pf.vmap(Counter())(x)
    store = {"sum": torch.zeros(3, dtype=D)}
    with pytest.raises(pf.CapturedWriteError, match=r"`store\['sum'\]`"):
        pf.vmap(lambda r: store["sum"].copy_(r))(x)


def test_unmapped_values_are_written_once(x):
    calls = torch.zeros((), dtype=torch.long)

    def f(r):
        calls.add_(1)
        return r

    pf.vmap(f)(x)
    assert int(calls) == 1


# -- normalisation ---------------------------------------------------------------------------------


def test_statistics_are_updated_once_from_the_primals(x):
    net, twin = (seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))) for _ in range(2))
    twin(x)
    for call in (
        lambda n: pf.jvp(n, (x,), (x,)),
        lambda n: pf.grad(lambda z: n(z).square().sum())(x),
        lambda n: pf.jvp(pf.grad(lambda z: n(z).square().sum()), (x,), (x,)),
    ):
        fresh = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        call(fresh)
        for (name, b), (_, want) in zip(fresh.named_buffers(), twin.named_buffers(), strict=True):
            torch.testing.assert_close(b, want, msg=name)
    del net


def test_lanes_do_not_share_statistics(x):
    net = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4))))
    f = lambda r: net(r.expand(5, 3) * torch.arange(5.0, dtype=D)[:, None])
    with pytest.raises(
        pf.CapturedWriteError, match=r"`1.0` \(BatchNorm1d\) of Sequential .*frozen_statistics.*GroupNorm"
    ):
        pf.vmap(f)(x)
    before = {k: b.clone() for k, b in net.named_buffers()}
    before["1.0.num_batches_tracked"] = net[1][0].num_batches_tracked.clone()
    with pf.frozen_statistics(net):
        got = pf.vmap(f)(x)
    assert net[1][0].training
    net.eval()
    torch.testing.assert_close(got, torch.stack([f(r) for r in x]))
    net.train()
    with pf.frozen_statistics(net, "batch"):
        got = pf.vmap(f)(x)
        torch.testing.assert_close(got, torch.stack([f(r) for r in x]))
    assert net[1][0].track_running_stats
    for k, b in net.named_buffers():
        torch.testing.assert_close(b, before[k])
    with pytest.raises(pf.ArgumentError, match="use is 'none'"), pf.frozen_statistics(net, "none"):
        pass


def test_buffers_passed_and_returned(x):
    net = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    f = lambda r: r.expand(5, 3) * torch.arange(5.0, dtype=D)[:, None]
    buffers = {k: b.expand(4, *b.shape).clone() for k, b in net.named_buffers()}
    before = {k: b.clone() for k, b in buffers.items()}
    out, after = pf.vmap(lambda r, b: pf.functional_call(net, b, (f(r),), return_buffers=True))(x, buffers)
    for lane in range(4):
        twin = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        torch.testing.assert_close(out[lane], twin(f(x[lane])))
        for k, b in twin.named_buffers():
            torch.testing.assert_close(after[k][lane], b)
    for k, b in buffers.items():
        torch.testing.assert_close(b, before[k])


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal", "lazy", "tied"])
def test_unusual_modules(kind, x):
    if kind == "lazy":
        net: nn.Module = nn.LazyLinear(2).double()
        net(x)
    elif kind == "tied":
        net = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)))
        net[2].weight = net[0].weight
    else:
        net = getattr(nn.utils.parametrizations, kind)(seeded(lambda: nn.Linear(3, 2)))
        net.eval()
    f = lambda r: net(r).square().sum()
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), rows_gradient(f, x))
    torch.testing.assert_close(pf.jvp(f, (x[0],), (x[1],))[1], rows_gradient(f, x)[0] @ x[1])


@pytest.mark.parametrize("kind", ["forward", "pre", "full_backward", "tensor"])
def test_hooks(kind, x):
    net, seen = seeded(lambda: nn.Linear(3, 2)), []
    if kind == "forward":
        net.register_forward_hook(lambda m, a, out: (seen.append(1), out * 2)[1])
    elif kind == "pre":
        net.register_forward_pre_hook(lambda m, a: (seen.append(1), (a[0] * 2,))[1])
    elif kind == "full_backward":
        net.register_full_backward_hook(lambda m, gi, go: (seen.append(1), (gi[0] * 3,))[1])

    def f(r):
        y = net(r)
        if kind == "tensor" and y.requires_grad:
            y.register_hook(lambda g: (seen.append(1), g * 5)[1])
        return y.square().sum()

    want = rows_gradient(f, x)
    seen.clear()
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), want)
    assert seen
    torch.testing.assert_close(pf.grad(lambda z: f(z))(x[0]), want[0])
    if kind in ("forward", "pre"):
        torch.testing.assert_close(pf.jvp(f, (x[0],), (x[1],))[1], want[0] @ x[1])


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant, x):
    net = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    plain = lambda r: net(r.sin()).square().sum()
    f = lambda r: checkpoint(net, r.sin(), use_reentrant=reentrant).square().sum()
    want = rows_gradient(plain, x)
    torch.testing.assert_close(pf.vmap(f)(x).detach(), torch.stack([plain(r) for r in x]).detach())
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), want)
    torch.testing.assert_close(pf.jvp(f, (x[0],), (x[1],))[1], want[0] @ x[1])
    if not reentrant:
        torch.testing.assert_close(pf.grad(lambda z: pf.vmap(f)(z).sum())(x), want)


def test_saved_tensor_hooks(x):
    def f(r):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.float64), lambda t: t):
            return (r.sin() * r.exp()).sum()

    want = rows_gradient(lambda r: (r.sin() * r.exp()).sum(), x)
    torch.testing.assert_close(pf.grad(f)(x[0]), want[0])
    torch.testing.assert_close(pf.vmap(pf.grad(f))(x), want)
    torch.testing.assert_close(pf.jvp(f, (x[0],), (x[1],))[1], want[0] @ x[1])


# -- autograd of the user's own --------------------------------------------------------------------


def by_backward(r):
    w = r.detach().clone().requires_grad_()
    (w.sin() * r.detach()).sum().backward()
    (w**2).sum().backward()
    return w.grad


def by_functional(r):
    return torch.autograd.functional.jacobian(lambda z: z.sin() * z.sum(), r)


def by_functional_hvp(r):
    return torch.autograd.functional.hvp(lambda z: (z**3).sum(), r, r)[1]


def by_create_graph(r):
    z = r.clone() if r.requires_grad else r.clone().requires_grad_()
    g = torch.autograd.grad((z.sin() * z).sum(), z, create_graph=True)[0]
    return g * g


@pytest.mark.parametrize("f", [by_backward, by_functional, by_functional_hvp, by_create_graph])
def test_autograd_inside(f, x):
    want = torch.stack([f(r) for r in x]).detach()
    torch.testing.assert_close(pf.vmap(f)(x).detach(), want)
    torch.testing.assert_close(pf.jvp(f, (x[0],), (x[1],))[0].detach(), want[0])


# -- custom operators ------------------------------------------------------------------------------


@torch.library.custom_op("pushforward_tests::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * 3)


triple.register_autograd(lambda ctx, g: g * 3)


@torch.library.custom_op("pushforward_tests::silent", mutates_args=())
def silent(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("pushforward_tests::paired", mutates_args=())
def paired(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


paired.register_autograd(
    lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_custom_operators(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pf.SlowFallback)
        torch.testing.assert_close(pf.vmap(triple)(x), 3 * x)
        torch.testing.assert_close(pf.vmap(pf.grad(lambda r: triple(r).sum()))(x), torch.full_like(x, 3))
        torch.testing.assert_close(pf.jvp(triple, (x,), (x,))[1], 3 * x)
        torch.testing.assert_close(pf.jvp(pf.vmap(triple), (x,), (x,))[1], 3 * x)
        with pytest.raises(pf.NotDifferentiableError, match="silent"):
            pf.jvp(silent, (x,), (x,))


def test_a_registered_vmap_is_honoured(x):
    seen = []

    @paired.register_vmap
    def _(info, in_dims, a, b):
        seen.append((info.batch_size, info.randomness, in_dims))
        a = a if in_dims[0] is None else a.movedim(in_dims[0], -1)
        b = b if in_dims[1] is None else b.movedim(in_dims[1], -1)
        return (a if in_dims[0] is not None else a.unsqueeze(-1)) * (
            b if in_dims[1] is not None else b.unsqueeze(-1)
        ), -1

    y = torch.arange(3.0, dtype=D)
    torch.testing.assert_close(pf.vmap(paired, (0, None))(x, y), x * y)
    assert seen == [(4, "error", (0, None))]
    torch.testing.assert_close(pf.vmap(pf.grad(lambda r: paired(r, r).sum()))(x), 2 * x)


# -- losing a derivative ---------------------------------------------------------------------------

LOSSES = {
    "item": lambda r: r * r.sum().item(),
    "float": lambda r: r * float(r.sum()),
    "tolist": lambda r: r * r.tolist()[0],
    "numpy": lambda r: r * torch.from_numpy(r.numpy()),
    "long": lambda r: r * r.long(),
    "to int32": lambda r: r * r.to(torch.int32),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_lost_derivative_is_said_once_a_line(name, x):
    f = LOSSES[name]
    with pytest.raises(pf.DerivativeLostError, match=r"test_state\.py:"):
        pf.jvp(f, (x[0],), (x[1],), strict=True)
    with pytest.warns(pf.DerivativeLost, match="its derivative is lost"):
        out, tangent = pf.jvp(f, (x[0],), (x[1],))
    torch.testing.assert_close(out, f(x[0]))
    torch.testing.assert_close(tangent, f(x[0]) / x[0] * x[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.jvp(f, (x[0],), (x[1],))
        pf.jvp(lambda r: f(r.detach()) * r, (x[0],), (x[1],), strict=True)


# -- threads ---------------------------------------------------------------------------------------


def test_two_threads_at_once(x):
    results, errors = {}, []

    def work(k):
        try:
            for _ in range(20):
                f = lambda r: r.sin() * k if r.sum() > 0 else r.cos()
                results[k] = pf.vmap(pf.grad(lambda r: f(r).sum()))(x), pf.jvp(f, (x[0],), (x[1],))[1]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for k in range(3):
        want = rows_gradient(lambda r: (r.sin() * k if r.sum() > 0 else r.cos()).sum(), x)
        torch.testing.assert_close(results[k][0], want)


def test_dropout_in_a_frozen_net(x):
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)).double().eval()
    torch.testing.assert_close(pf.vmap(net)(x), F.linear(x, net[0].weight, net[0].bias))
