"""What replayed calls depend on: all that a function could see, and nothing that looking would change."""

from __future__ import annotations

import contextlib
import types
import typing
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pushforward as pf
from pushforward.plans import call_program, whole

D = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def both(call: Any) -> None:
    """One call beside one that runs the function."""
    out = call()
    with pf.no_replay():
        torch.testing.assert_close(out, call(), equal_nan=True)


@contextlib.contextmanager
def counted():
    """How many lists of operators are run."""
    runs: list[Any] = []
    run = call_program.Replayed.__call__
    call_program.Replayed.__call__ = lambda self, leaves: (runs.append(self), run(self, leaves))[1]
    try:
        yield runs
    finally:
        call_program.Replayed.__call__ = run


# -- functions that share their code ------------------------------------------------------------------------------


def test_one_derivative_more() -> None:
    scale = 2.0
    f = lambda x: scale * x**5
    third = pf.grad(pf.grad(pf.grad(f)))
    x = torch.tensor(1.5, dtype=D)
    for _ in range(6):
        both(lambda: third(x))
    for again in (pf.grad(third), pf.vmap(third), pf.grad(pf.grad(third)), pf.jacfwd(third), pf.jacrev(pf.jacfwd(third))):
        for _ in range(5):
            both(lambda again=again: again(x if again is not pf.vmap else x[None]) if x.dim() else again(x[None]))
    scale = 10.0
    both(lambda: third(x))


def test_by_which_arguments() -> None:
    f = lambda x, y: x**3 * y**4
    a, b = torch.tensor(2.0, dtype=D), torch.tensor(3.0, dtype=D)
    for order in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 1)):
        for _ in range(5):
            both(lambda order=order: pf.grad(pf.grad(pf.grad(f, order[0]), order[1]), order[2])(a, b))


def test_one_decorator_twice() -> None:
    log: list[int] = []
    scale = 2.0

    def decorated(f):
        return lambda *args: f(*args)

    @decorated
    def inner(x):
        log.append(1)
        return scale * x

    @decorated
    def outer(x):
        return inner(x).sin()

    for _ in range(8):
        pf.vmap(outer)(torch.ones(2))
    assert len(log) == 8
    scale = 5.0
    both(lambda: pf.vmap(outer)(torch.ones(2)))


def test_layers_made_by_one_function() -> None:
    def layer(f, scale, act):
        return lambda x: act(scale * f(x))

    start = lambda x: x
    nets = [
        layer(layer(start, 2.0, torch.tanh), 1.0, torch.sin),
        layer(layer(start, 9.0, torch.relu), 1.0, torch.sin),
        layer(layer(layer(start, 0.5, torch.exp), 0.3, torch.cos), 1.0, torch.sin),
    ]
    for net in nets:
        for k in range(6):
            both(lambda k=k, net=net: pf.grad(lambda x: net(x).sum())(normal(2, seed=k)))


def test_functions_that_call_themselves_and_each_other() -> None:
    def power(x, n):
        return x if n == 0 else x * other(x, n - 1)

    def other(x, n):
        return x + 1 if n == 0 else power(x, n - 1)

    with counted() as runs:
        for k in range(6):
            both(lambda k=k: pf.grad(lambda x: power(x, 4).sum())(normal(3, seed=k)))
        kept = other
        other = lambda x, n: x.sin()
        both(lambda: pf.grad(lambda x: power(x, 4).sum())(normal(3)))
        other = kept
    assert runs


def test_a_key_does_not_grow_with_every_mention() -> None:
    space: dict[str, Any] = {}
    lines = ["def a0(x): return x * 2", "def b0(x): return x * 3"]
    for k in range(1, 20):
        lines += [f"def a{k}(x): return a{k - 1}(x) if x.dim() < 9 else b{k - 1}(x)"]
        lines += [f"def b{k}(x): return b{k - 1}(x) if x.dim() < 9 else a{k - 1}(x)"]
    exec("\n".join(lines), space)
    for _ in range(6):
        both(lambda: pf.vmap(space["a19"])(torch.ones(2)))
    described = whole.Described()
    described.add(space["a19"])
    assert len(described.key) < 400
    space["a0"] = lambda x: x * 7
    both(lambda: pf.vmap(space["a19"])(torch.ones(2)))


# -- what else a function can see ---------------------------------------------------------------------------------


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: float = 1.0


class Odd(typing.NamedTuple):
    a: torch.Tensor

    @property
    def size(self) -> float:
        return SCALE[0]

    def __add__(self, other: Any) -> Any:
        return self.a + SCALE[0]


SCALE = [2.0]


def test_named_tuples_with_code_of_their_own() -> None:
    for f in (lambda p: p[0] * p.size, lambda p: p + 1):
        for k in range(7):
            SCALE[0] = 2.0 + (k > 4)
            both(lambda f=f: pf.vmap(f)(Odd(torch.ones(3, dtype=D))))
    with counted() as runs:
        for k in range(6):
            both(lambda k=k: pf.vmap(lambda p: p[0].sin(), in_dims=(Pair(0, None),))(Pair(normal(3, seed=k))))
    assert runs


def test_attributes_of_functions_and_tensors() -> None:
    def h(x):
        return x * 2

    h.mean = 0.5
    w = torch.ones(3, dtype=D)
    w.mean = 2.0  # type: ignore[assignment]
    for f in (lambda x: h(x) - h.mean, lambda x: x * w.mean, lambda x: (lambda g: g.mean * x)(h)):
        for k in range(7):
            h.mean = w.mean = 0.5 + (k > 4)  # type: ignore[assignment]
            both(lambda f=f: pf.vmap(f)(torch.ones(3, dtype=D)))


def test_what_kind_of_tensor_it_is() -> None:
    w = torch.ones(3, dtype=D)
    for f in (lambda x: x * w if type(w) is torch.Tensor else x + w, lambda x: x if isinstance(w, torch.nn.Parameter) else -x):
        for k in range(7):
            w = torch.ones(3, dtype=D) if k < 5 else torch.nn.Parameter(torch.ones(3, dtype=D), requires_grad=False)
            both(lambda f=f: pf.vmap(f)(torch.ones(2, 3, dtype=D)))


def test_which_objects_are_the_same() -> None:
    u: Any = [1.0]
    v: Any = [1.0]
    f = lambda x: x * 2 if u is v else x * 3
    make = lambda: lambda x: x
    for first, second in (([1.0], [1.0]), (make(), make()), ((1.0, [2.0]), (1.0, [2.0])), ({"a": 1}, {"a": 1})):
        u, v = first, second
        for k in range(7):
            if k > 4:
                v = u
            both(lambda: pf.vmap(f)(torch.ones(2, dtype=D)))


def test_builtins_of_its_own() -> None:
    for k in range(7):
        answer = 3 if k < 5 else 4
        f = eval("lambda x: x * len((1, 2))", {"__builtins__": {"len": lambda x, answer=answer: answer}})
        g = types.FunctionType(BUILT.__code__, f.__globals__)
        both(lambda g=g: pf.vmap(g)(torch.ones(2, dtype=D)))


BUILT = lambda x: x * len((1, 2))


def test_ranges_and_addresses() -> None:
    r = range(0, 3, 2)
    w = torch.ones(3, dtype=D)
    keep = []
    for k in range(8):
        if k > 4:
            r = range(0, 4, 2)
            w = torch.ones(3 + k, dtype=D)[:3]
            keep.append(w)
        both(lambda: pf.vmap(lambda x: x * len(f"{r}") + len(str(r.stop)))(torch.ones(2, dtype=D)))
        both(lambda: pf.vmap(lambda x: x * (w.const_data_ptr() % 97))(torch.ones(2, dtype=D)))


def test_an_argument_by_name() -> None:
    def f(x, y):
        return (x**2 * y**3).sum()

    def g(y, x):
        return f(y, x)

    g.__wrapped__ = f
    a, b = torch.tensor(2.0, dtype=D), torch.tensor(3.0, dtype=D)
    for k in range(8):
        if k == 5:
            del g.__wrapped__
        both(lambda: pf.grad(g, argnums="y")(a, b))


# -- what looking may not change ----------------------------------------------------------------------------------


class Watched:
    reads = 0
    value = 2.0

    @property
    def drawn(self) -> torch.Tensor:
        Watched.reads += 1
        return torch.rand(())

    def __getattr__(self, name: str) -> float:
        Watched.reads += 1
        return 3.0


def test_code_behind_attributes_runs_as_often_as_the_function_reads_them() -> None:
    o = Watched()
    drawn, twice = (lambda x: x * o.drawn), (lambda x: x * o.anything + o.anything)
    for f, reads in ((drawn, 1), (twice, 2), (lambda x: x if x.dim() < 9 else o.drawn, 0)):
        for _ in range(7):
            Watched.reads = 0
            torch.manual_seed(0)
            pf.vmap(f, randomness="same")(torch.ones(2))
            state = torch.get_rng_state()
            assert Watched.reads == reads
            Watched.reads = 0
            torch.manual_seed(0)
            with pf.no_replay():
                pf.vmap(f, randomness="same")(torch.ones(2))
            assert torch.equal(state, torch.get_rng_state())


def test_slots_modules_and_classes_are_followed() -> None:
    class Slotted:
        __slots__ = ("scale",)

    class Constants:
        scale = 2.0
        twice = staticmethod(lambda x: x * 2)

    o, m = Slotted(), torch.nn.Module()
    o.scale = 1.0
    m.register_buffer("shift", torch.ones(3, dtype=D))
    f = lambda x: Constants.twice(x).sin() * o.scale + m.shift * Constants.scale
    with counted() as runs:
        for k in range(12):
            if k == 6:
                o.scale = 4.0
            if k == 7:
                m.shift += 1
            if k == 8:
                Constants.scale = 5.0
            if k == 9:
                m.shift = torch.zeros(3, dtype=D)
            both(lambda: pf.vmap(f)(normal(2, 3)))
    assert runs


# -- formulas, views, modes, warnings -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian", "prod", "cumprod"])
def test_derivatives_that_look_at_numbers(name: str) -> None:
    g = {
        "max": lambda x: x.max().log(), "min": lambda x: x.min().sqrt(), "median": lambda x: x.median().log(),
        "nanmedian": lambda x: x.nanmedian().log(), "prod": lambda x: x.prod(), "cumprod": lambda x: x.cumprod(0).sum(),
    }[name]  # fmt: skip
    hard = [[-2.0, -1, 0, -3], [1e200, 1e200, 2, 1], [0.0, 1, 0, 3], [torch.nan, 2.0, 1, 1], [torch.inf, 2.0, 0, 1]]
    for transform in (pf.grad, lambda f: pf.vmap(pf.grad(f)), pf.jacrev, lambda f: pf.grad(lambda x: F.pad(x, (1, 1)).sum() * f(x))):
        call = transform(g)
        batched = transform not in (pf.grad, pf.jacrev) and call.__name__ == g.__name__
        for k in range(6):
            x = normal(4, seed=k).abs() + 1
            call(x[None] if batched else x)
        for row in hard:
            x = torch.tensor(row, dtype=D)
            both(lambda x=x, call=call, batched=batched: call(x[None] if batched else x))


def test_results_in_inference_mode_are_as_ever() -> None:
    f = lambda x: (x.sin() * x).sum()
    p = torch.ones(3, requires_grad=True)
    for _ in range(6):
        with torch.inference_mode():
            g = pf.grad(f)(torch.randn(3))
        (g * p).sum().backward()


def test_results_can_be_changed_in_place() -> None:
    w, b = normal(3, 3), normal(3, seed=1)
    p = torch.ones(3, dtype=D, requires_grad=True)
    for f in (lambda x: F.linear(x, w, b), lambda x: torch.einsum("i,ij->j", x, w)):
        for call in (lambda f=f: pf.vmap(f)(normal(2, 3)), lambda f=f: pf.jvp(f, (normal(3),), (normal(3),))[1]):
            with counted() as runs:
                for _ in range(7):
                    assert not call()._is_view()
                    call().detach_()
                    with torch.no_grad():
                        y = call()
                    y.mul_(p)
            assert runs


def test_a_warning_of_torch_is_said_each_time() -> None:
    f = lambda x: torch.range(0, 2) * x.sum()
    for _ in range(6):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            pf.vmap(f)(torch.ones(2, 3))
        assert said


def test_looking_in_vain_ends() -> None:
    w = [float(k) for k in range(5000)]
    f = lambda x: x * w[1]
    step = 0.0
    g = lambda x: x * step
    for k in range(3 * whole.MOST_KEYS):
        step = float(k)
        pf.vmap(f)(torch.ones(2))
        pf.vmap(g)(torch.ones(2))
    for h in (f, g):
        _, plans = whole.CALLS[id(h.__code__)]
        assert plans is False or False in plans.values()
    assert torch.equal(pf.vmap(f)(torch.ones(2)), torch.ones(2))


def test_functions_of_one_code_do_not_keep_each_other_from_being_replayed() -> None:
    make = lambda w: lambda x: x * w
    weights = [torch.ones(n, requires_grad=n % 2 == 0) for n in range(2, 6)]
    for _ in range(2 * whole.PATIENCE):
        for w in weights:
            assert pf.vmap(make(w))(torch.ones(3, len(w))).requires_grad is w.requires_grad
    with counted() as runs:
        for w in weights:
            pf.vmap(make(w))(torch.ones(3, len(w)))
    assert len(runs) == 2


def test_results_that_lie_in_an_argument_stay_views_of_it() -> None:
    views = {
        "mapped": lambda x: pf.vmap(lambda r: r[1:])(x),
        "whole": lambda x: pf.vmap(lambda r: r.T)(x),
        "primal": lambda x: pf.jvp(lambda x: (x.T, x.sin()), (x,), (torch.ones_like(x),))[0][0],
        "beside": lambda x: pf.vmap(lambda r: (r.cos(), r[:, :1]))(x)[1],
    }
    p = torch.ones((), dtype=D, requires_grad=True)
    for name, view in views.items():
        for call in range(7):
            a, b = normal(2, 3, 3, seed=call), normal(2, 3, 3, seed=call)
            if name == "primal":
                a, b = a[0], b[0]
            results = []
            for x, replays in ((a, True), (b, False)):
                with contextlib.nullcontext() if replays else pf.no_replay():
                    y = view(x)
                    before = x._version
                    y.mul_(p)
                    results.append((x.detach(), x.requires_grad, y._is_view(), x._version - before))
            assert torch.equal(results[0][0], results[1][0]), name
            assert results[0][1:] == results[1][1:], name


def test_results_that_lie_in_each_other_are_views() -> None:
    def f(x):
        y = x.sin()
        return y, y[:2]

    p = torch.ones((), dtype=D, requires_grad=True)
    for call in range(7):
        a, b = pf.vmap(f)(normal(2, 3, seed=call))
        with pf.no_replay():
            c, d = pf.vmap(f)(normal(2, 3, seed=call))
        for y in (a, c):
            y.mul_(p)
        assert (b.requires_grad, b._version) == (d.requires_grad, d._version)


def test_the_text_of_a_tensor_reads_its_numbers() -> None:
    w = torch.tensor([1.0, 2.0])
    texts = {
        "format": lambda x: (x.sum() * 2, f"{w}"),
        "number": lambda x: (x.sum() * 2, f"{w[0]:.3f}"),
        "repr": lambda x: (x.sum() * 2, f"{w!r}"),
        "percent": lambda x: (x.sum() * 2, "%s" % w),  # noqa: UP031
        "another's": lambda x: (x.sum() * 2, f"{x.shape} {w}"),
    }
    for name, f in texts.items():
        for call in range(7):
            w.fill_(call)
            assert pf.vmap(f)(torch.ones(2, 3))[1] == f(torch.ones(3))[1], name
            assert pf.grad(f, has_aux=True)(torch.ones(3))[1] == f(torch.ones(3))[1], name
