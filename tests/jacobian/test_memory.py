"""Memory is predicted before anything runs, and a budget is kept."""

import gc

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import pushforward as pf
from pushforward.jacobian.memory import in_words, parsed_bytes

pytestmark = pytest.mark.filterwarnings("ignore")
torch.manual_seed(0)
W = torch.randn(10000, 1001)
LAYERS = [torch.randn(256, 64) / 8, torch.randn(256, 256) / 16, torch.randn(32, 256) / 16]
KERNEL = torch.randn(8, 1, 3, 3)


def measured_peak(call):
    """The most bytes of tensors alive at once during a call, as the allocator tells the profiler."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    alive = peak = 0
    for event in sorted(
        (e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()
    ):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def network(x):
    for w in LAYERS:
        x = torch.tanh(w @ x)
    return x


def reaction(x):
    u, v = x.reshape(2, 40, 40)
    lap = lambda a: a.roll(1, 0) + a.roll(-1, 0) + a.roll(1, 1) + a.roll(-1, 1) - 4 * a
    return torch.stack([u * u * v + lap(u), lap(v) - u * u * v]).reshape(-1)


FUNCTIONS = {
    "dense layer": (lambda x: torch.tanh(W[:2000, :300] @ x), 300, {}),
    "dense layer in chunks": (lambda x: torch.tanh(W[:2000, :300] @ x), 300, {"mode": "forward", "chunk_size": 20}),
    "network": (network, 64, {}),
    "convolution": (
        lambda x: F.conv2d(x.reshape(1, 1, 24, 24), KERNEL, padding=1).relu().flatten(),
        576,
        {"mode": "forward"},
    ),
    "convolution of few channels": (
        lambda x: F.avg_pool2d(F.conv2d(x.reshape(1, 1, 16, 16), KERNEL[:4], padding=1).relu(), 4).flatten(),
        256,
        {"mode": "forward"},
    ),
    "tile": (lambda x: x.repeat(2000).sin(), 10, {}),
    "sums": (lambda x: (x.reshape(10, 2000) ** 2).sum(1), 20000, {}),
    "sums in chunks": (lambda x: (x.reshape(10, 2000) ** 2).sum(1), 20000, {"chunk_size": 3}),
    "matrix product": (lambda x: (x.reshape(20, 20) @ x.reshape(20, 20)).exp(), 400, {}),
    "softmax": (lambda x: x.reshape(16, 32).softmax(1) * x.sum(), 512, {}),
    "reaction, sparse": (reaction, 3200, {"sparsity": "global"}),
    "gelu and layer norm": (lambda x: F.layer_norm(F.gelu(x.reshape(8, 32)), (32,)), 256, {"mode": "reverse"}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_prediction_is_within_a_quarter(name):
    f, n, options = FUNCTIONS[name]
    x = torch.randn(n)
    plan = pf.plan(f, x, **options)
    predicted = plan.predicted_bytes
    measured = measured_peak(lambda: plan(x))
    assert 0.75 < predicted / measured < 1.25, f"{in_words(predicted)} predicted, {in_words(measured)} measured"


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("budget", [2**20, 4 * 2**20, 2**24])
def test_a_budget_is_kept(mode, budget):
    f = lambda x: (x.reshape(16, 32).softmax(1) * x.sum())[:, :20]
    x = torch.randn(512)
    matrix = 512 * 320 * 4
    if budget < 1.5 * matrix:
        with pytest.raises(pf.OutOfBudgetError, match="does not fit into") as caught:
            pf.plan(f, x, mode=mode, memory=budget // 2)
        assert "checkpoint" in str(caught.value)
        assert "sparsity" in str(caught.value)
        return
    plan = pf.plan(f, x, mode=mode, memory=budget)
    assert plan.predicted_bytes <= budget
    assert measured_peak(lambda: plan(x)) <= budget
    torch.testing.assert_close(plan(x), torch.autograd.functional.jacobian(f, x))


def test_a_large_dense_jacobian_within_half_a_gigabyte():
    f = lambda x: torch.tanh(W @ x)
    x = torch.randn(1001)
    for mode in ("auto", "reverse"):
        plan = pf.plan(f, x, memory="512MiB", mode=mode)
        results = []
        assert measured_peak(lambda: results.append(plan(x))) <= 512 * 2**20
        v = torch.randn(1001)
        torch.testing.assert_close(results[0] @ v, pf.jvp(f, (x,), (v,))[1], rtol=1e-3, atol=1e-3)


def test_nothing_runs_to_predict():
    calls = []

    def f(x):
        calls.append(type(x).__name__)
        return x.sin()

    plan = pf.plan(f, torch.randn(30))
    calls.clear()
    assert plan.predicted_bytes > 0
    assert "Tensor" not in calls


def test_a_function_that_branches_on_values_still_gets_a_plan():
    f = lambda x: x * 2 if x.sum() > 0 else x
    plan = pf.plan(f, torch.ones(10), memory="1MiB")
    assert "not predicted" in plan.candidate.note
    torch.testing.assert_close(plan(torch.ones(10)), 2 * torch.eye(10))


def test_chunks_leave_no_tensors_to_the_collector():
    f = lambda x: torch.tanh(W[:, :50] @ x)
    x = torch.randn(50)
    j = pf.jacobian(f, chunk_size=5, mode="forward")
    j(x)
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        j(x)
        gc.collect()
        left = [o for o in gc.garbage if isinstance(o, torch.Tensor) and o.numel() >= 10000]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("512 MB", 512 * 10**6), ("1.5k", 1500), (1000, 1000), ("10", 10), (2.5e9, 2_500_000_000)],
)
def test_budgets_in_words(text, size):
    assert parsed_bytes(text, torch.device("cpu")) == size


@pytest.mark.parametrize("text", ["much", "2 GiBs", -1, 0, True])
def test_budgets_that_are_none(text):
    with pytest.raises(pf.ArgumentError, match="memory="):
        parsed_bytes(text, torch.device("cpu"))


def test_a_fraction_of_what_is_free():
    assert 2**20 < parsed_bytes(0.5, torch.device("cpu")) < 2**45
