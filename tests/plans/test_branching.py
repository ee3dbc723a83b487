"""Replayed calls of functions that ask questions: which ways are known, and lanes that part."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch

import pushforward as pf
from pushforward.core import tree
from pushforward.plans import branching, whole

from .test_whole_random import ENDS, expression

D = torch.float64
W = torch.linspace(-1, 1, 16, dtype=D).reshape(4, 4)
limit = torch.tensor(0.0, dtype=D)
runs = 0


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def replayed(f: Any) -> bool:
    """Whether a tree of ways that is believed stands for calls of a function."""
    known = whole.CALLS.get(id(f.__code__))
    return bool(known and known[1] and any(type(p) is branching.Branching and not p.doubts for p in known[1].values()))


def halved(x: torch.Tensor) -> torch.Tensor:
    while x.norm() > 1.5:
        x = x * 0.5
    return x * x.sum()


def left_early(x: torch.Tensor) -> torch.Tensor:
    for k in range(3):
        x = (W @ x).sin() + x
        if x.sum() > 1:
            return x * k
    return x.cos()


def of_two(x: torch.Tensor) -> torch.Tensor:
    a = torch.tanh(W @ x)
    b = a if a[0] > 0 else -a * x
    if (b.sum() > 0 and x[1] > 0) or x[2] > 1:
        b = b.cumsum(0) + torch.ones_like(x)
    return b


BRANCHES = {
    "if": lambda x: x.sin() * x if x.sum() > 0 else x.cos() + x * x,
    "truth of a number": lambda x: x * 2 if x.clamp(min=0)[0] else x.exp(),
    "while": halved,
    "early return": left_early,
    "two questions": of_two,
    "itself": lambda x: x if x[0] > 0 else -x,
    "constant": lambda x: torch.zeros_like(x) if x[0] > 0 else x * 3,
    "matrix": lambda x: (torch.outer(x, x) + torch.eye(4, dtype=D)).inverse() @ x if x.min() < -0.5 else W @ x,
    "captured": lambda x: x * 2 if x.sum() > limit else (W * limit).sum() + x,
    "expanded": lambda x: (x[:, None] * W).transpose(0, 1).reshape(-1)[::4] if (x > 0.5).any() else x.flip(0),
}
TRANSFORMS = {
    "vmap": pf.vmap,
    "vmap, last": lambda f: lambda x: pf.vmap(f, in_dims=1, out_dims=-1)(x.T.contiguous()),
    "vmap(grad)": lambda f: pf.vmap(pf.grad(lambda x: f(x).sin().sum())),
    "vmap(jvp)": lambda f: pf.vmap(lambda x: pf.jvp(f, (x,), (x * x,))),
    "vmap(hessian)": lambda f: pf.vmap(pf.hessian(lambda x: f(x).sin().sum())),
    "vmap(jacrev)": lambda f: pf.vmap(pf.jacrev(f)),
    "grad": lambda f: lambda x: torch.stack([pf.grad(lambda x: f(x).sin().sum())(r) for r in x[:3]]),
    "jvp": lambda f: lambda x: [pf.jvp(f, (r,), (r * r,)) for r in x[:3]],
    "jacfwd": lambda f: lambda x: [pf.jacfwd(f)(r) for r in x[:3]],
    "hvp": lambda f: lambda x: [pf.hvp(lambda x: f(x).sin().sum(), (r,), (r + 1,)) for r in x[:3]],
}


def both(call: Any, x: torch.Tensor) -> None:
    """One call beside one that runs the function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pf.SlowFallback)
        warnings.simplefilter("ignore", pf.DerivativeLost)  # which is said in the first calls only
        out = call(x)
        with pf.no_replay():
            expected = call(x)
    for a, b in zip(tree.leaves(out), tree.leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, equal_nan=True)
        assert a.requires_grad == b.requires_grad


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", BRANCHES)
def test_other_numbers_take_other_ways(name: str, transform: str) -> None:
    f = BRANCHES[name]
    g = type(f)(f.__code__.replace(co_name="again"), f.__globals__)  # one that no other test has called
    call = TRANSFORMS[transform](g)
    for seed in range(8):
        both(call, normal(11, 4, seed=seed))
    both(call, normal(1, 4, seed=9).expand(11, 4))  # all lanes one way
    limit.fill_(0.5)
    both(call, normal(11, 4, seed=10))
    limit.fill_(0.0)


@pytest.mark.parametrize("name", BRANCHES)
def test_the_function_does_not_run_again(name: str) -> None:
    f = BRANCHES[name]
    g = type(f)(f.__code__.replace(co_name="once"), f.__globals__)
    for seed in range(6):
        pf.vmap(g)(normal(40, 4, seed=seed))
    assert replayed(g)
    expected = pf.vmap(f)(normal(40, 4, seed=7))
    g.__code__ = g.__code__.replace()  # another identity: nothing is known of it
    assert not replayed(g)
    torch.testing.assert_close(pf.vmap(g)(normal(40, 4, seed=7)), expected)


def test_both_ways_of_a_split_are_run_from_the_question_on() -> None:
    def f(x):
        y = (W @ x).sin()
        return y * 2 if y.sum() > 0 else y.exp()

    for seed in range(5):
        pf.vmap(f)(normal(12, 4, seed=seed))
    [plan] = [p for p in whole.CALLS[id(f.__code__)][1].values() if type(p) is branching.Branching]
    parts = [plan.root, *[following for following, _ in plan.root.after.values()]]
    assert [p.run.text.count("\n    b") for p in parts] == [plan.root.run.text.count("\n    b"), 1, 1]
    assert plan.root.lanes
    assert len(plan.ways) == 2


def test_lanes_of_any_number_take_a_known_way() -> None:
    def f(x):
        return (x[None] + torch.zeros(3, 4, dtype=D)).sum(0) if x[0] > 0 else torch.cat([x, x])[2:6] * torch.ones(4, dtype=D)

    for seed in range(4):
        pf.vmap(f)(normal(12, 4, seed=seed))
    assert replayed(f)
    for ups in (0, 1, 2, 3, 6, 11, 12):
        x = normal(12, 4).abs()
        x[ups:, 0] *= -1
        both(pf.vmap(f), x[torch.randperm(12, generator=torch.Generator().manual_seed(ups))])


def test_a_way_that_was_never_gone() -> None:
    def f(x):
        return x * 2 if x[0] > 0 else x * 3 if x[1] > 0 else x * 5

    up = normal(6, 4).abs()
    for _ in range(5):
        both(pf.vmap(f), up)
    assert replayed(f)
    middle = up * torch.tensor([-1.0, 1, 1, 1], dtype=D)
    for x in (torch.cat([up[:3], middle[:3]]), -up, torch.cat([-up[:3], middle[:3]])) * 3:
        both(pf.vmap(f), x)
    [plan] = [p for p in whole.CALLS[id(f.__code__)][1].values() if type(p) is branching.Branching]
    assert sorted(way.answers() for way in plan.ways) == [(False, False), (False, True), (True,)]


def test_too_many_ways() -> None:
    def f(x):
        while x[0] < 1:
            x = x + 0.01
        return x

    for seed in range(8):
        both(pf.vmap(f), normal(50, 4, seed=seed))
    assert not replayed(f)
    for seed in range(60):
        x = normal(4, seed=seed)
        torch.testing.assert_close(pf.grad(lambda x: f(x).sum())(x), torch.ones(4, dtype=D))


def test_what_differs_between_ways() -> None:
    ways = {
        "dtype": lambda x: x if x[0] > 0 else x.float(),
        "number": lambda x: x.sum() if x[0] > 0 else 0.0,
        "structure": lambda x: (x, x * 2) if x.sum() > 99 else (x, x),
        "shape": lambda x: x[:2] if x[0] > 0 else x,
        "flag": lambda x: (x, x.sum() > 0),
    }
    for f in ways.values():
        for seed in range(6):
            out = pf.vmap(f)(normal(9, 4, seed=seed))
            with pf.no_replay():
                expected = pf.vmap(f)(normal(9, 4, seed=seed))
            assert type(out) is type(expected)
            for a, b in zip(tree.leaves(out), tree.leaves(expected), strict=True):
                if isinstance(a, pf.Ragged):
                    a, b = a.to_padded(0.0)[0], b.to_padded(0.0)[0]
                assert a.dtype is b.dtype
                assert torch.equal(a, b)


def test_a_result_is_the_callers() -> None:
    def f(x):
        return torch.zeros_like(x) if x[0] > 0 else torch.ones(4, dtype=D)

    def g(x):
        return torch.full((2,), 7.0, dtype=D) if x.sum() > 0 else x[:2]

    for seed in range(8):
        x = normal(7, 4, seed=seed)
        out = pf.vmap(f)(x)
        assert torch.equal(out, (x[:, :1] <= 0).double().expand(7, 4))
        out.add_(5)
        alone = pf.jvp(g, (x[0].abs(),), (x[0],))[0]
        assert alone.tolist() == [7, 7]
        alone.zero_()


def test_an_error_in_one_way_names_its_lanes() -> None:
    def f(x):
        return torch.linalg.cholesky(torch.diag(x)).sum() if x[0] > 0 else x.sum()

    x = normal(8, 4).abs()
    x[3:, 0] *= -1
    for _ in range(5):
        pf.vmap(f)(x)
    assert replayed(f)
    x[1, 2] = -1.0
    with pytest.raises(torch.linalg.LinAlgError) as raised:
        pf.vmap(f)(x)
    assert "lane 1 of 8" in raised.value.__notes__[0]


def test_reports_and_refusals_are_as_before() -> None:
    def f(x):
        return x.sin() if x[0] > 0 else x.cos()

    x = normal(10, 4)
    for _ in range(5):
        pf.vmap(f)(x)
    assert replayed(f)
    with pf.report() as report:
        pf.vmap(f)(x)
    assert len(report.splits) == 1
    same = x[:1].expand(10, 4).contiguous()
    refusing = pf.vmap(f, divergence="error")
    for _ in range(6):
        refusing(same)
    with pytest.raises(pf.DivergenceError):
        refusing(x)
    with pytest.raises(pf.DivergenceError):
        refusing(x)


def test_chunks_and_ragged_batches_run_the_function() -> None:
    def f(x):
        return x.sum() if x[0] > 0 else x.prod()

    rows = [normal(2 + k % 3, seed=k) for k in range(9)]
    expected = torch.stack([f(r) for r in rows])
    for _ in range(5):
        torch.testing.assert_close(pf.vmap(f)(pf.ragged(rows)), expected)
        torch.testing.assert_close(pf.vmap(f, chunk_size=4)(normal(9, 4)), torch.stack([f(r) for r in normal(9, 4)]))
    assert not replayed(f)


def test_numbers_that_are_no_answers_are_read_each_time() -> None:
    def f(x):
        return x * x[0].item() if x[1] > 0 else x

    for seed in range(6):
        x = normal(5, seed=seed)
        torch.testing.assert_close(pf.vmap(f)(x[None])[0], f(x))
    assert not replayed(f)


QUESTIONS = (
    "{}.sum() > 0", "{}[0] > {}[1]", "({} > 1.5).any()", "{}.norm() < 2", "({}[2] > 0) and {}[3] > 0", "not {}.max() < 0.3",
    "{}.prod() >= 0 or {}[1] > 1", "{}[0].long() % 2", "(T * C).sum() > 1",
)  # fmt: skip


def program(draw: random.Random) -> str:
    """The source of a function of four numbers that asks questions."""
    lines, names = ["def f(x):"], ["x"]

    def question(more: list[str]) -> str:
        return draw.choice(QUESTIONS).replace("{}", draw.choice(names + more))

    for k in range(draw.randint(1, 3)):
        new, how = f"v{k}", draw.random()
        if how < 0.3:
            lines.append(f"    {new} = {expression(draw, 1, names)} if {question([])} else {expression(draw, 1, names)}")
        elif how < 0.6:
            lines.append(f"    if {question([])}:\n        {new} = {expression(draw, 2, names)}")
            lines.append(f"    else:\n        {new} = {expression(draw, 1, names)}")
        elif how < 0.8:
            lines.append(f"    {new} = {draw.choice(names)}\n    while {new}.norm() > 2:\n        {new} = {new} * 0.6")
        else:
            lines.append(f"    {new} = {draw.choice(names)}\n    for i in range(3):")
            lines.append(f"        {new} = {expression(draw, 1, [*names, new])}\n        if {question([new])}:\n            break")
        names.append(new)
        if draw.random() < 0.2:
            lines.append(f"    if {question([])}:\n        return {new}[0] * 2")
    lines.append(f"    return {draw.choice(ENDS).format(f'({names[-1]} * 0.3 + {draw.choice(names)})')}")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(8))
def test_random_functions(seed: int) -> None:
    draw = random.Random(seed)
    source = program(draw)
    space: dict[str, Any] = {
        "torch": torch, "F": torch.nn.functional, "C": 1.7, "T": normal(4), "M": normal(4, 4), "INDEX": torch.tensor([3, 0, 2, 1]),
        "helper": lambda y: y.sin() * 2,
    }  # fmt: skip
    exec(source, space)
    f = space["f"]
    calls = pf.vmap(f), pf.vmap(pf.grad(f)), lambda x: pf.jvp(f, (x[0],), (x[1],)), lambda x: pf.grad(f)(x[0])
    for call in calls:
        for k in range(8):
            if k == 5:
                space["C"], space["T"] = 0.4, normal(4, seed=5)
            both(call, normal(13, 4, seed=100 * seed + k))
