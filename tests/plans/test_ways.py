"""What ways of a function must not share or lose: constants, refusals, results that are no tensors, views."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pushforward as pf
from pushforward.plans import branching, whole
from pushforward.plans.compare import close, prints

D = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def plan_of(f: Any) -> Any:
    """The plan that stands for calls of a function, if one is believed."""
    known = whole.CALLS.get(id(f.__code__))
    plans = list(known[1].values()) if known and known[1] else []
    return next((p for p in plans if type(p) in (branching.Branching, whole.Replayed) and not p.doubts), None)


def beside_loop(f: Any, calls: int = 10, lanes: int = 6) -> None:
    for seed in range(calls):
        x = normal(lanes, 4, seed=seed) if seed % 3 else normal(lanes, 4, seed=seed).abs() * (-1) ** seed
        torch.testing.assert_close(pf.vmap(f)(x), torch.stack([f(r) for r in x]), rtol=1e-12, atol=1e-13)
    assert plan_of(f) is not None


CONSTANTS = {
    "one each": lambda x: x * torch.tensor(2.0, dtype=D) if x.sum() > 0 else x * torch.tensor(3.0, dtype=D),
    "as many more": lambda x: (
        x * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=D) + torch.tensor(1.0, dtype=D)
        if x.sum() > 0
        else x * torch.tensor(3.0, dtype=D) - torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=D)
    ),
    "of one way": lambda x: x if x[0] > 0 else x + torch.tensor(1.5, dtype=D),
    "zeros": lambda x: x / torch.tensor(0.0, dtype=D) if x.sum() > 0 else x / torch.tensor(-0.0, dtype=D),
    "before and after": lambda x: (
        (x * torch.tensor(0.5, dtype=D)).sin() * torch.tensor(2.0, dtype=D)
        if (x + torch.tensor(0.25, dtype=D)).sum() > 0
        else (x * torch.tensor(0.25, dtype=D)) + torch.tensor(0.5, dtype=D)
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_ways_are_their_own(name: str) -> None:
    beside_loop(CONSTANTS[name])


def test_constants_of_ways_that_come_one_by_one() -> None:
    def f(x):
        total = x.sum()
        if total > 2:
            return x * torch.tensor(2.0, dtype=D)
        if total > 1:
            return x * torch.tensor(3.0, dtype=D) + torch.tensor(2.0, dtype=D)
        if total > 0:
            return x * torch.tensor(5.0, dtype=D) - torch.tensor(3.0, dtype=D)
        return x * torch.tensor(7.0, dtype=D)

    for transform in (lambda x: pf.vmap(f)(x), lambda x: torch.stack([pf.jvp(f, (r,), (r,))[0] for r in x])):
        for sums in ((0.5, 0.6), (0.7, 0.2), (0.1, 0.3), (1.5, 0.5), (1.2, 1.3), (3.0, 0.5), (2.5, 1.5), (-1.0, 1.5), (3.0, -2.0)) * 2:
            x = torch.tensor(sums, dtype=D)[:, None].expand(2, 4) / 4
            torch.testing.assert_close(transform(x), torch.stack([f(r) for r in x]))


def test_half_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        def f(x, dtype=dtype):
            return x * torch.tensor(1.0, dtype=dtype) if x.sum() > 0 else x * torch.tensor(1.125, dtype=dtype)

        for seed in range(8):
            x = normal(6, 4, seed=seed).to(dtype)
            assert torch.equal(pf.vmap(f)(x), torch.stack([f(r) for r in x]))


def test_divergence_is_an_error_however_often() -> None:
    f = lambda x: x.sin() if x.sum() > 0 else x.cos()
    for call in range(10):
        with pytest.raises(pf.DivergenceError):
            pf.vmap(f, divergence="error")(normal(5, 4))
        same = normal(5, 4).abs() * (-1) ** call  # all lanes one way
        torch.testing.assert_close(pf.vmap(f, divergence="error")(same), same.sin() if call % 2 == 0 else same.cos())
        pf.vmap(f)(normal(5, 4))  # by split, between


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (1, True), (1, 1.0), (float("nan"), 0.0), ("a", "b"), (None, False)])
def test_numbers_that_are_returned_beside_tensors(numbers: Any) -> None:
    yes, no = numbers

    def f(x):
        return (x.sin(), yes) if x.sum() > 0 else (x.cos(), no)

    def known(value):
        return type(value), repr(value)

    for call in range(10):
        x = normal(4).abs() * (-1) ** (call // 2)
        out, _, number = *pf.jvp(lambda x: f(x)[0], (x,), (x,)), pf.grad(lambda x: (f(x)[0].sum(), f(x)[1]), has_aux=True)(x)[1]
        torch.testing.assert_close(out, f(x)[0])
        assert known(number) == known(f(x)[1])
        batch = x.expand(3, 4)
        assert known(pf.vmap(f)(batch)[1]) == known(f(x)[1])
        both = torch.stack([x, -x])
        with pf.no_replay():
            expected = pf.vmap(f)(both)[1]
        assert known(pf.vmap(f)(both)[1]) == known(expected)


def test_an_error_in_between_costs_no_plan() -> None:
    def f(x):
        return torch.linalg.inv(x @ x.T) @ x[:, 0] if x[0, 0] > 0 else x[:, 0]

    good = normal(3, 3, seed=2).abs()
    bad = good * 0 + torch.eye(3, dtype=D)[0]
    for call in range(8):
        if call in (2, 3, 5):
            with pytest.raises(torch.linalg.LinAlgError):
                pf.jvp(f, (bad,), (good,))
        torch.testing.assert_close(pf.jvp(f, (good,), (good,))[0], f(good))
    assert plan_of(f) is not None


def test_a_new_way_records_only_its_own_lanes() -> None:
    def f(x):
        while x.sum() > 1:
            x = x * 0.5
        return x

    for _ in range(4):
        pf.vmap(f)(torch.tensor([[1.5], [3.0], [6.0], [12.0]], dtype=D))
    plan = plan_of(f)
    explored, groups = whole.explored, []
    whole.explored = lambda record, some: groups.extend(some) or explored(record, some)
    try:
        out = pf.vmap(f)(torch.tensor([[1.5], [100.0], [6.0], [12.0]], dtype=D))
    finally:
        whole.explored = explored
    assert [g.tolist() for g in groups] == [[1]]
    torch.testing.assert_close(out, torch.tensor([[0.75], [0.78125], [0.75], [0.75]], dtype=D))
    longer = plan_of(f) or next(p for p in whole.CALLS[id(f.__code__)][1].values() if type(p) is branching.Branching)
    assert len(longer.ways) == len(plan.ways) + 1
    assert set(ends_of(plan.root)) < set(ends_of(longer.root))  # the parts that were known are the same ones


def ends_of(part: Any) -> list[Any]:
    if part.after is None:
        return [part]
    return [end for following, _ in part.after.values() for end in ends_of(following)]


def test_close_is_by_lane() -> None:
    x = torch.tensor([[1.0, 2.0], [1e-3, 1e-3]], dtype=D)
    y = x.clone()
    y[1, 1] *= 1 + 1e-9
    assert close(x, x.clone(), 0)
    assert not close(x, y, 0)
    assert close(x, x * (1 + 1e-15), 0)
    half = torch.tensor([[1.0, 2.0]], dtype=torch.float16)
    assert not close(half, half * 1.1, 0)
    nan = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0], dtype=D)
    assert close(nan, nan.clone(), 0)
    assert not close(nan, nan.flip(0), 0)
    assert not close(nan, torch.tensor([float("nan"), float("inf"), float("inf"), 1.0], dtype=D), 0)


def test_prints_tell_numbers_apart() -> None:
    apart = [0.0, -0.0, 0, False, None, "0.0", float("nan"), 1, True, 1.0, torch.zeros(()), -torch.zeros(())]
    for k, a in enumerate(apart):
        for j, b in enumerate(apart):
            assert (prints(a) == prints(b)) is (k == j)


def test_the_same_number_from_every_way_is_returned() -> None:
    f = lambda x: (x.sin(), 3, "a", None, -0.0) if x.sum() > 0 else (x.cos(), 3, "a", None, -0.0)
    for seed in range(6):
        out = pf.vmap(f)(normal(5, 4, seed=seed))
        assert repr(out[1:]) == "(3, 'a', None, -0.0)"
    assert plan_of(f) is not None


def test_an_interrupt_while_a_call_is_recorded_costs_no_plan() -> None:
    f = lambda x: x.sin() if x.sum() > 0 else x.cos()
    x = normal(5, 4)
    pf.vmap(f)(x)
    watched = whole.watched

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    whole.watched = interrupted
    try:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                pf.vmap(f)(x)
    finally:
        whole.watched = watched
    for seed in range(5):
        torch.testing.assert_close(pf.vmap(f)(normal(5, 4, seed=seed)), torch.stack([f(r) for r in normal(5, 4, seed=seed)]))
    assert plan_of(f) is not None
