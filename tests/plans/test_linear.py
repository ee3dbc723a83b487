"""The derivative that `linearize` returns is recorded in one of its calls, and replayed from then on."""

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import pushforward as pf
from pushforward.plans import linear

CALLS = 4


def network():
    torch.manual_seed(0)
    return (
        torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
        .double()
        .requires_grad_(False)
    )


def written_into(x):
    y = torch.zeros(8, dtype=x.dtype)
    y[1:4] = x[:3] * x[3:]
    y[torch.tensor([5, 6])] = x[:2]
    return y.mul_(2).sin_()


FUNCTIONS = {
    "three outputs": (lambda x: torch.stack([x[0] * x[1], x[1] ** 2, x[0].sin()]), (2,)),
    "network": (network(), (4, 5)),
    "attention": (lambda x: (x @ x.T).softmax(-1) @ x, (4, 3)),
    "slices": (lambda x: torch.cat([x[1:] * x[:-1], x.cumsum(0)])[::2], (6,)),
    "convolution": (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3, dtype=x.dtype)).relu().mean((2, 3)), (2, 3, 8, 8)),
    "weight": (
        lambda w: F.conv2d(torch.ones(2, 3, 8, 8, dtype=w.dtype), w, padding=1).sigmoid().sum((2, 3)),
        (4, 3, 3, 3),
    ),
    "by index": (lambda x: x[torch.tensor([0, 0, 2])] * x.sum(), (6,)),
    "normalised": (lambda x: F.layer_norm(x, (3,)) + F.batch_norm(x, None, None, training=True), (6, 3)),
    "writes": (written_into, (6,)),
    "inverse": (lambda x: torch.linalg.inv(x + 4 * torch.eye(3, dtype=x.dtype)), (3, 3)),
    "identity": (lambda x: x, (6,)),
    "expanded": (lambda x: x.sum().expand(5), (6,)),
    "a choice": (lambda x: torch.where(x > 0, x, x * x), (6,)),
    "large": (lambda x: (x.sin() * x).repeat(3), (20_000,)),
    "three, one constant": (lambda x: (x.sin(), x.sum(), torch.ones(3)), (6,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_call_gives_the_derivative(name):
    f, shape = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    push = pf.linearize(f, x)[1]
    for _ in range(CALLS):
        v = torch.randn(shape, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(push(v), pf.jvp(f, (x,), (v,))[1])


@pytest.fixture
def replays(monkeypatch):
    """How often a recording was replayed, and recorded."""
    counts = {"recorded": 0, "replayed": 0}
    call, record = linear.Pushes.__call__, linear.Pushes.recorded

    def counted(self, directions):
        before = counts["recorded"]
        out = call(self, directions)
        counts["replayed"] += out is not None and counts["recorded"] == before
        return out

    def recorded(self, *args, **kwargs):
        counts["recorded"] += 1
        return record(self, *args, **kwargs)

    monkeypatch.setattr(linear.Pushes, "__call__", counted)
    monkeypatch.setattr(linear.Pushes, "recorded", recorded)
    return counts


def test_small_functions_are_recorded_in_the_second_call_and_large_ones_in_the_first(replays):
    for size, recorded_after in ((4, [0, 1, 1, 1]), (20_000, [1, 1, 1, 1])):
        replays.update(recorded=0, replayed=0)
        push = pf.linearize(torch.sin, torch.ones(size))[1]
        seen = []
        for _ in range(CALLS):
            push(torch.ones(size))
            seen.append(replays["recorded"])
        assert seen == recorded_after
        assert replays["replayed"] == CALLS - (2 if size == 4 else 1)


def test_a_convolution_is_not_differentiated_by_what_nobody_asked_for():
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    push = pf.linearize(lambda w: F.conv2d(x, w), w)[1]
    counts = []
    for _ in range(3):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            push(w)
        counts.append(sum(e.count for e in profiler.key_averages() if e.key == "aten::convolution"))
    assert counts[2] == 1 < counts[0]


def test_what_does_not_depend_on_the_direction_is_computed_once():
    push = pf.linearize(lambda x: x.sin(), torch.ones(5))[1]
    for _ in range(2):
        push(torch.ones(5))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        push(torch.ones(5))
    names = {e.key for e in profiler.key_averages()}
    assert "aten::mul" in names
    assert "aten::cos" not in names


def test_results_are_new_each_time():
    push = pf.linearize(lambda x: (x * 2, x + x.sum()), torch.ones(3))[1]
    for _ in range(CALLS):
        a, b = push(torch.ones(3))
        assert a.tolist() == [2, 2, 2]
        assert b.tolist() == [4, 4, 4]
        a.zero_()
        b.zero_()


def test_directions_of_other_layouts_and_dtypes():
    x = torch.randn(3, 4, dtype=torch.float64)
    push = pf.linearize(lambda x: (x.sin() @ x.T).view(-1), x)[1]
    for v in (
        torch.randn(3, 4, dtype=torch.float64),
        torch.randn(4, 3, dtype=torch.float64).T,
        torch.ones(1, 1).double().expand(3, 4),
    ) * 3:
        torch.testing.assert_close(push(v), pf.jvp(lambda x: (x.sin() @ x.T).view(-1), (x,), (v,))[1])


def test_what_was_written_into_since_is_an_error_in_every_call():
    x = torch.randn(4)
    w = torch.randn(4)
    push = pf.linearize(lambda x: x * w, x)[1]
    for _ in range(CALLS):
        push(torch.ones(4))
    w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        push(torch.ones(4))


def test_code_of_the_users_that_runs_in_a_walk_runs_in_each(replays):
    """A node of the graph whose backward is Python: nothing is replayed."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            calls.append(1)
            return 2 * g * ctx.saved_tensors[0]

    calls = []
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    seed = torch.ones(2, requires_grad=True)
    pushes = linear.Pushes((Square.apply(seed * x),), (seed,))
    known = [pushes([torch.ones(2)]) for _ in range(CALLS)]
    assert len(calls) == 1  # the recording, which is not believed
    assert known[0] is None
    assert known[2:] == [None, None]
    assert not replays["replayed"]


def test_checkpoints_functions_of_the_users_and_hooks():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g  # what counts

    def f(x):
        y = checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False)
        z = Twice.apply(y)
        z.register_hook(lambda g: None)
        return z

    x = torch.randn(5, dtype=torch.float64)
    push = pf.linearize(f, x)[1]
    for _ in range(CALLS):
        torch.testing.assert_close(push(torch.ones_like(x)), 3 * x.sin().exp() * x.cos())


def test_one_mask_of_dropout_for_all_calls():
    x = torch.ones(50)
    out, push = pf.linearize(lambda x: F.dropout(x, 0.5) * x, x)
    for _ in range(CALLS):
        assert torch.equal(push(torch.ones(50)) != 0, out != 0)


def test_differentiated_and_mapped_after_it_was_recorded():
    x = torch.randn(4, dtype=torch.float64)
    push = pf.linearize(lambda x: x.sin() * x, x)[1]
    slope = x.cos() * x + x.sin()
    for _ in range(CALLS):
        push(x)
    v = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(pf.vmap(push)(v), slope * v)
    torch.testing.assert_close(pf.jvp(push, (v[0],), (v[1],))[1], slope * v[1])
    torch.testing.assert_close(pf.grad(lambda v: (push(v) ** 2).sum())(v[0]), 2 * slope**2 * v[0])
    w = v[0].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(push(w).sum(), w)[0], slope)
    with torch.no_grad():
        assert not push(w).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(push(v[2]), slope * v[2])


def test_gradients_by_what_was_captured_pass():
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x, v = torch.randn(2, 4, dtype=torch.float64)
    push = pf.linearize(lambda x: (x * w).sin(), x)[1]
    for _ in range(CALLS):
        (got,) = torch.autograd.grad(push(v).sum(), w, retain_graph=True)
        (expected,) = torch.autograd.grad(((x * w).cos() * w * v).sum(), w)
        torch.testing.assert_close(got, expected)
