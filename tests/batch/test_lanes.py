"""Lanes that disagree: control flow equals the loop, under every transform, in as many runs as there are paths."""

from __future__ import annotations

import warnings

import pytest
import torch

import pushforward as pf

D = torch.float64


@pytest.fixture
def x():
    return torch.randn(8, 3, dtype=D, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _lost_derivatives_are_expected():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pf.DerivativeLost)
        yield


def branch(r):
    return r.sin() if r.sum() > 0 else r.cos()


def nested_branches(r):
    h = r.sin()
    y = h * 2
    v = y[1:]
    if r.sum() > 0:
        v.mul_(3)
    z = y * h
    return z * r if z.sum() > 0.5 else z + h


def loop_until(r):
    steps = 0
    while (r * r).sum() < 20:
        r = r * 1.5
        steps += 1
    return r * steps


def recursion(r, depth=0):
    return r.sin() if depth > 4 or r.sum() > 1 else recursion(r * 1.3 + 0.2, depth + 1) * r


def early_return(r):
    for k in range(3):
        if r[k] > 0.5 and r[0] < 2:
            return r * k
    return r.exp()


def fresh_buffer(r):
    b = torch.zeros(3, dtype=D)
    b[0] = r[0]
    if r[1] > 0:
        b[1:] = r[1:] * 2
    else:
        b.add_(r)
    return b * r


def factored(r):
    a = r.outer(r) + torch.eye(3, dtype=D) * r[0]
    try:
        return torch.linalg.cholesky(a).sum() * r
    except RuntimeError:
        return r


FUNCTIONS = {
    "branch": branch,
    "nested branches": nested_branches,
    "while": loop_until,
    "recursion": recursion,
    "early return": early_return,
    "fresh buffer": fresh_buffer,
    "an operator that fails in some lanes": factored,
    "item": lambda r: r * r.detach().max().item(),
    "max and min": lambda r: max(r[0], r[1]) * r + min(r),
    "sorted": lambda r: torch.stack(sorted(r)) * r,
    "range": lambda r: sum((r**k for k in range(int(r.abs().sum()))), r),
    "list index": lambda r: [r, r * 2, r.sin()][int(r.argmax())],
    "tolist": lambda r: r * sum(r.detach().tolist()),
    "mask": lambda r: r[r > 0].sum() * r,
    "masked_select": lambda r: torch.masked_select(r, r > 0).prod() * r,
    "nonzero": lambda r: r[(r > 0).nonzero().squeeze(-1)].sum() * r,
    "argwhere": lambda r: r[torch.argwhere(r > 0)[:, 0]].sum() * r,
    "unique": lambda r: torch.unique(r.detach().round()).sum() + r,
    "repeat_interleave": lambda r: r.repeat_interleave((r.abs() * 2).long()).sum() + r,
    "arange": lambda r: torch.arange(int(r.abs().sum())).sum() * r,
    "split": lambda r: torch.split(r, [int(r.argmax()), 3 - int(r.argmax())])[0].sum() + r,
    "slice": lambda r: r[int(r.argmin()) :].sum() * r,
    "assert": lambda r: (lambda _: r * 2)(bool((r > -9).all())),
    "inner vmap": lambda r: pf.vmap(lambda a: a.sin() if a > 0 else a * 2)(r) * r,
    "inner gradient": lambda r: pf.grad(lambda z: z.sin().sum() if z.sum() > 0 else (z**3).sum())(r) * r,
    "cond": lambda r: torch.cond(r.sum() > 0, lambda z: z.sin(), lambda z: z * 3, (r,)),
    "while_loop": lambda r: torch.while_loop(lambda z: z.sum() < 3, lambda z: (z + 1,), (r,))[0] ** 2,
}


def plain(f):
    """The function with nothing of ours inside, for the loop."""

    def call(r):
        with torch.enable_grad():
            return f(r)

    return call


def rate(f, r, t):
    return torch.autograd.functional.jvp(f, r, t)[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_control_flow_equals_the_loop(name, x):
    f, v = FUNCTIONS[name], torch.ones(8, 3, dtype=D)
    inner = name.startswith("inner")
    torch.testing.assert_close(pf.vmap(f)(x), torch.stack([f(r) for r in x]))
    gradients = torch.stack([pf.grad(lambda z: f(z).sum())(r) for r in x])
    if not inner:  # our own nested calls are compared with themselves below, with the loop in the random programs
        want = []
        for r in x:
            z = r.clone().requires_grad_()
            want.append(torch.autograd.grad(f(z).sum(), z)[0])
        torch.testing.assert_close(gradients, torch.stack(want))
    torch.testing.assert_close(pf.vmap(pf.grad(lambda r: f(r).sum()))(x), gradients)
    torch.testing.assert_close(pf.grad(lambda z: pf.vmap(f)(z).sum())(x), gradients)
    rates = torch.stack([pf.jvp(f, (r,), (t,))[1] for r, t in zip(x, v, strict=True)])
    if not inner and "cond" not in name and "while_loop" not in name:
        torch.testing.assert_close(rates, torch.stack([rate(f, r, t) for r, t in zip(x, v, strict=True)]))
    torch.testing.assert_close(pf.jvp(pf.vmap(f), (x,), (v,))[1], rates)
    torch.testing.assert_close(pf.vmap(lambda r, t: pf.jvp(f, (r,), (t,))[1])(x, v), rates)


@pytest.mark.parametrize("name", ["branch", "while", "mask", "fresh buffer", "inner vmap"])
def test_an_inner_question_splits_the_outer_level(name, x):
    f, y = FUNCTIONS[name], x.reshape(4, 2, 3)
    torch.testing.assert_close(pf.vmap(pf.vmap(f))(y), torch.stack([torch.stack([f(r) for r in part]) for part in y]))


# -- how many runs ---------------------------------------------------------------------------------


def counted(f):
    calls = []

    def g(*args):
        calls.append(1)
        return f(*args)

    return g, calls


def test_as_many_runs_as_paths():
    x = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0, 30.0])
    f, calls = counted(lambda r: r.sin() if r > 0 else r.cos())
    pf.vmap(f)(x)
    assert len(calls) == 2
    f, calls = counted(lambda r: (r * 2 if r > 10 else r.sin()) if r > 0 else r.cos())
    pf.vmap(f)(x)
    assert len(calls) == 3
    f, calls = counted(lambda r: r.sin() if r > -100 else r.cos())
    pf.vmap(f)(x)
    assert len(calls) == 1


def test_the_cost_of_a_loop_is_bounded():
    """Lanes × longest path for the first run, and for the others no more than the loop's own steps."""
    x = torch.cat([torch.full((n,), float(k)) for k, n in enumerate([2, 30, 3, 40, 5, 20])])
    steps = []

    def f(r):
        n = 0
        while r > n:
            r = r + 0
            steps.append(r._level.newest().size)
            n += 1
        return r * n

    with pf.report() as report:
        pf.vmap(f)(x)
    assert report.groups == report.runs == 6
    assert sum(steps) <= len(x) * 5 + int(x.sum())


def test_lanes_that_left_cost_nothing():
    sizes = []

    def f(r):
        if r > 0:
            r = r.sin()
            sizes.append(r._payload.shape[0])
        return r

    pf.vmap(f)(torch.tensor([1.0, 2.0, 3.0, -1.0]))
    assert sizes == [3]


def test_the_report_says_groups_runs_and_lines(x):
    def f(r):
        if r.sum() > 0:  # the line that is named
            return r.sin()
        return r

    with pf.report() as report:
        pf.vmap(f)(x)
        pf.vmap(torch.sin)(x)
    positive = int((x.sum(1) > 0).sum())
    assert [call.size for call in report.calls] == [8, 8]
    assert report.runs == 3
    assert sorted(report.calls[0].groups) == sorted([positive, 8 - positive])
    assert report.splits[0].where == f"test_lanes.py:{f.__code__.co_firstlineno + 1}"
    assert "vmap(f): 8 lanes, 2 runs" in str(report)


def test_divergence_error(x):
    with pytest.raises(pf.DivergenceError, match=r"test_lanes.py:\d+ the lanes disagree .* divergence='error'"):
        pf.vmap(branch, divergence="error")(x)
    torch.testing.assert_close(pf.vmap(branch, divergence="error")(x.abs()), x.abs().sin())
    with pytest.raises(pf.ArgumentError, match="divergence is 'maybe'"):
        pf.vmap(branch, divergence="maybe")


def test_a_way_for_each_lane_is_said_once():
    x = torch.arange(20.0)

    def f(r):
        return r * r.item()

    with pytest.warns(pf.SlowFallback, match="20 lanes go 20 ways"):
        torch.testing.assert_close(pf.vmap(f)(x), x * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.vmap(f)(x)


def test_nearly_as_many_ways_as_lanes_are_said_too():
    def ways(x, n):
        return pf.vmap(lambda r: r * (r % n).item())(x)

    x = torch.arange(20.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 5, 9):
            torch.testing.assert_close(ways(x, n), x * (x % n))
    with pytest.warns(pf.SlowFallback, match=r"test_lanes.py:\d+ 20 lanes go 10 ways"):
        torch.testing.assert_close(ways(x, 10), x * (x % 10))


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_names_its_lanes():
    def f(r):
        if r < 0:
            raise KeyError("negative")
        return r

    with pytest.raises(KeyError, match="negative") as caught:
        pf.vmap(f)(torch.tensor([1.0, -1.0, 2.0, 3.0, -4.0]))
    assert caught.value.__notes__ == ["vmap(f): raised for lanes 1, 4 of 5"]
    with pytest.raises(KeyError) as caught:
        pf.vmap(f)(torch.tensor([-1.0, -2.0]))
    assert not hasattr(caught.value, "__notes__")


def test_an_operator_that_fails_for_the_data_of_some_lanes():
    table, k = torch.arange(3.0), torch.tensor([0, 2, 7, 1])
    with pytest.raises((IndexError, RuntimeError)) as caught:
        pf.vmap(lambda i: table.index_select(0, i.reshape(1)))(k)
    assert caught.value.__notes__ == ["vmap(<lambda>): raised for lane 2 of 4"]

    def guarded(i):
        try:
            return table.index_select(0, i.reshape(1))[0]
        except (IndexError, RuntimeError):
            return torch.tensor(-1.0)

    torch.testing.assert_close(pf.vmap(guarded)(k), torch.tensor([0.0, 2.0, -1.0, 1.0]))


def test_a_branch_that_guards_an_operator():
    m = torch.stack([torch.eye(2), torch.zeros(2, 2), 2 * torch.eye(2)])
    f = lambda a: torch.linalg.inv(a) if torch.det(a) != 0 else a
    torch.testing.assert_close(pf.vmap(f)(m), torch.stack([torch.eye(2), torch.zeros(2, 2), 0.5 * torch.eye(2)]))


def test_different_structures_are_refused():
    with pytest.raises(pf.ArgumentError, match="different structures"):
        pf.vmap(lambda r: (r, r) if r > 0 else r)(torch.tensor([1.0, -1.0]))


# -- what a further run repeats --------------------------------------------------------------------


def test_warnings_are_given_once(x):
    def f(r):
        warnings.warn("before", stacklevel=1)
        if r.sum() > 0:
            warnings.warn("positive", stacklevel=1)
            return r
        warnings.warn("negative", stacklevel=1)
        return -r

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pf.vmap(f)(x)
    assert sorted(str(w.message) for w in seen) == ["before", "negative", "positive"]
    assert warnings.showwarning.__module__ != "pushforward.batch.repeat"


@pytest.mark.parametrize("other", ["in place", "none"])
def test_a_function_that_changes_its_argument(x, other):
    def f(r):
        r.add_(1)
        if r.sum() > 3:
            r.mul_(2)
            return r.sum()
        if other == "in place":
            r[1:].mul_(3)
        return r.sum()

    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(pf.vmap(f)(mine), torch.stack([f(r) for r in theirs]))
    torch.testing.assert_close(mine, theirs)


def test_numbers_that_differ_become_a_tensor():
    def f(r):
        n = 0
        while r > n:
            n += 1
        return r, n, "always"

    _, n, text = pf.vmap(f)(torch.tensor([0.5, 2.5, 0.1]))
    assert n.tolist() == [1, 3, 1]
    assert text == "always"


def test_no_lanes():
    assert pf.vmap(lambda r: r[r > 0].sum())(torch.empty(0, 3)).shape == (0,)
    with pytest.raises(pf.DivergenceError, match="there are no lanes"):
        pf.vmap(branch)(torch.empty(0, 3))


def test_captured_graphs_follow_the_branch(x):
    w = torch.ones(3, dtype=D, requires_grad=True)
    f = lambda r: (w * r).sin().sum() if r.sum() > 0 else (w * w * r).sum()
    got = torch.autograd.grad(pf.vmap(f)(x).sum(), w)[0]
    want = torch.autograd.grad(torch.stack([f(r) for r in x]).sum(), w)[0]
    torch.testing.assert_close(got, want)
    per_lane = pf.vmap(pf.grad(lambda p, r: (p * r).sin().sum() if r.sum() > 0 else (p * p * r).sum()), (None, 0))
    torch.testing.assert_close(per_lane(w.detach(), x).sum(0), want)


def test_chunks(x):
    for f in (branch, loop_until, fresh_buffer):
        torch.testing.assert_close(pf.vmap(f, chunk_size=3)(x), pf.vmap(f)(x))
