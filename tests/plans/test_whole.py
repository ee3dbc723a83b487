"""Calls that are replayed as a whole: which are, what they see of the world, and who may not notice."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
import warnings
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import pushforward as pf
from pushforward.plans import pure, whole

D = torch.float64
factor = 2.0
table = torch.arange(4.0, dtype=D)
PLACES, LENGTHS = torch.tensor([2, 4]), torch.tensor(6)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def replayed(f: Any) -> bool:
    """Whether a list of operators that is believed stands for calls of a function."""
    code = getattr(f, "__code__", f)
    known = whole.CALLS.get(id(code))
    return bool(known and known[1] and any(type(p) is whole.Replayed and not p.doubts for p in known[1].values()))


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * factor


def listed(x: torch.Tensor) -> torch.Tensor:
    parts = []
    for k in range(x.shape[0]):
        if k:
            parts.append(x[k] * k)
    return torch.stack(parts).sum() + sum([p.exp() for p in parts])


def chosen(x: torch.Tensor, power: int = 2, *, shift: float = 0.5) -> torch.Tensor:
    if x.dim() != 1:
        raise ValueError
    first, *rest = x.unbind(0)
    return (first + shift) ** power + torch.stack(rest).prod()


PURE = {
    "arithmetic": lambda x: (x * x + 1.5).sin().sum(),
    "helper": lambda x: helper(x).sum() + helper(x * x).prod(),
    "list": listed,
    "defaults": chosen,
    "functional": lambda x: F.softplus(x).sum() + F.cross_entropy(x[None], torch.tensor([1])),
    "table": lambda x: (x * table).sum() + torch.linalg.vector_norm(x + table),
    "inner": lambda x: pf.grad(lambda y: (y * x).sin().sum())(x).sum(),
    "partial": functools.partial(chosen, power=3).func,
    "builtin": torch.linalg.vector_norm,
    "products": lambda x: (torch.outer(x, x) @ x).dot(x),
    "used twice": lambda x: (lambda y: (y + y * y + y.exp() * y).sum())(x.sigmoid()),
    "comprehension": lambda x: sum(x[k] ** k for k in range(3)) + torch.stack([v * 2 for v in x]).logsumexp(0),
}
TRANSFORMS = {
    "vmap": lambda f: lambda x: pf.vmap(f)(torch.stack([x, x + 1, 2 * x])),
    "grad": pf.grad,
    "grad_and_value": pf.grad_and_value,
    "jvp": lambda f: lambda x: pf.jvp(f, (x,), (x * x,)),
    "jacfwd": pf.jacfwd,
    "jacrev": lambda f: pf.jacrev(lambda x: x * f(x)),
    "hessian": pf.hessian,
    "hvp": lambda f: lambda x: pf.hvp(f, (x,), (x + 1,)),
    "vmap(grad)": lambda f: lambda x: pf.vmap(pf.grad(f))(torch.stack([x, x + 1])),
    "vmap(jvp(grad))": lambda f: lambda x: pf.vmap(lambda x: pf.jvp(pf.grad(f), (x,), (x,)))(torch.stack([x, x + 1])),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", PURE)
def test_replayed_calls_are_those_of_the_function(name: str, transform: str) -> None:
    f = PURE[name]
    if name != "builtin":  # one that no other test has called
        f = types.FunctionType(f.__code__.replace(), f.__globals__, f.__name__, f.__defaults__, f.__closure__)
        f.__kwdefaults__ = PURE[name].__kwdefaults__
    call = TRANSFORMS[transform](f)
    for k in range(6):
        x = normal(4, seed=k)
        got = call(x)
        with pf.no_replay():
            torch.testing.assert_close(got, call(x), rtol=1e-11, atol=1e-11)
    if transform in ("vmap", "grad", "vmap(grad)", "hvp", "jacfwd", "hessian") and name != "builtin":
        assert replayed(f) is not reads_numbers(name, transform)


def reads_numbers(name: str, transform: str) -> bool:
    """Whether a derivative looks at numbers: torch's of a product, ours where something was selected and is differentiated again."""
    if name in ("helper", "defaults", "partial"):
        return transform in ("grad", "vmap(grad)")
    return (name, transform) in {("comprehension", "hvp"), ("functional", "hvp"), ("table", "hvp"), ("table", "hessian")}


def test_what_is_taken_from_outside_is_seen_in_every_call() -> None:
    global factor, helper
    scale, numbers, captured = 1.0, [1.0, 2.0], normal(3)
    options = {"power": 2}
    f = lambda x: (helper(x) * scale * sum(numbers) + captured).sum() ** options["power"]
    call, x, kept = pf.vmap(pf.grad(f)), normal(2, 3, seed=1), helper

    def right() -> None:
        with pf.no_replay():
            expected = call(x)
        torch.testing.assert_close(call(x), expected)

    for _ in range(5):
        right()
    assert replayed(f)
    try:
        factor = 5.0
        right()
        helper = lambda x: x.exp() + factor  # type: ignore[assignment]
        right()
    finally:
        factor, helper = 2.0, kept
    scale = 3.0
    right()
    numbers.append(7.0)
    right()
    options["power"] = 3
    right()
    captured += 1
    right()
    captured = normal(1, 3)
    right()
    captured = normal(3).requires_grad_()
    assert call(x).requires_grad
    captured = normal(3).to(torch.float32)
    right()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * torch.tensor([table[1], 1.0, 2.0]),
        lambda x: x * torch.as_tensor([[table[1], 1.0, 2.0]])[0],
        lambda x: x * x.new_tensor([table[1], 1.0, 2.0]),
        lambda x: x * torch.full((3,), table[1]),
        lambda x: x * torch.scalar_tensor(table[1]),
        lambda x: x * torch.asarray(table[:3]),
        lambda x: torch.add(x, x, alpha=table[1]),
        lambda x: x * float(table[1]),
        lambda x: x * (2.0 if table[1] > 1.0 else 3.0),
    ],
)
def test_numbers_of_captured_tensors_are_read_in_every_call(f: Any) -> None:
    x = normal(3)
    for how in (pf.jacfwd(f), lambda x: pf.vmap(f)(x[None])):
        for k in range(6):
            table.mul_(1.5)
            got = how(x)
            with pf.no_replay():
                torch.testing.assert_close(got, how(x), msg=str(k))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.tensor_split(x, PLACES)[0].sum(),
        lambda x: x.tensor_split(PLACES)[1].prod(),
        lambda x: x[: PLACES[0]].prod() * x[PLACES].sum(),
        lambda x: F.ctc_loss(x.reshape(6, 1, 4).log_softmax(-1), PLACES[None] % 3 + 1, LENGTHS[None], LENGTHS[None] // 3),
        lambda x: sum(x[k] for k in range(PLACES[0])) * x.narrow(0, PLACES[0], 1).sum(),
        lambda x: torch.repeat_interleave(x[:2], PLACES, output_size=6).prod(),
        lambda x: (F.one_hot(PLACES, 7).sum(0)[:6] * x[:6]).prod(),
    ],
)
def test_numbers_of_integer_tensors_are_read_in_every_call(f: Any) -> None:
    for how in (pf.grad(f), pf.jacfwd(f), lambda x: pf.vmap(f)(x[None])):
        for k in range(8):
            PLACES.copy_(torch.tensor([2 + k // 4, 4 - k // 4]))
            LENGTHS.fill_(6 - k // 6)
            x = normal(24, seed=k)
            got = how(x)
            with pf.no_replay():
                torch.testing.assert_close(got, how(x), msg=str(k))


def test_functions_with_one_code_and_other_surroundings() -> None:
    made = [lambda x, k=k: (x**k).sum() for k in range(1, 5)]
    x = normal(3)
    for _ in range(5):
        for k, f in enumerate(made, 1):
            torch.testing.assert_close(pf.grad(f)(x), k * x ** (k - 1))
    spaces = [{"torch": torch, "c": c} for c in (1.0, -2.0)]
    for space in spaces:
        exec("def f(x): return (torch.sin(x) * c).sum()", space)
    for _ in range(5):
        for space in spaces:
            torch.testing.assert_close(pf.grad(space["f"])(x), space["c"] * x.cos())


class Settings:
    scale = 2.0

    def __init__(self) -> None:
        self.shift, self.function = normal(3), torch.sin

    @property
    def twice(self) -> float:
        return 2 * self.scale

    def method(self, x: torch.Tensor) -> torch.Tensor:
        COUNTER.calls += 1
        return x.sum()


def test_attributes_of_objects_are_looked_up_in_every_call() -> None:
    settings = Settings()
    f = lambda x: (settings.function(x) * settings.scale + settings.shift.exp() * settings.scale * x).sum()
    for k in range(12):
        if k == 5:
            settings.scale = 3.0
        if k == 6:
            settings.function = torch.cos
        if k == 7:
            settings.shift = normal(1)
        if k == 8:
            settings.shift += 1
        if k == 9:
            settings.function = lambda x: x * settings.scale
        x = normal(3, seed=k)
        got = pf.grad(f)(x)
        with pf.no_replay():
            torch.testing.assert_close(got, pf.grad(f)(x))
        assert k != 4 or replayed(f)
    COUNTER.calls = 0
    for _ in range(6):
        pf.grad(lambda x: settings.method(x))(normal(3))
    assert COUNTER.calls == 6
    for k in range(6):
        settings.scale = k
        assert pf.grad(lambda x: (x * settings.twice).sum())(normal(3)).tolist() == [2 * k] * 3


class Counter:
    def __init__(self) -> None:
        self.calls = 0


COUNTER = Counter()
SEEN: list[Any] = []


def counts(x: torch.Tensor) -> torch.Tensor:
    COUNTER.calls += 1
    return x.sin().sum()


def keeps(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(x.shape)
    return x.sin().sum()


def hooks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(lambda g: SEEN.append(1))
    return y.sum()


def guards(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        SEEN.append(1)
    return x.sin().sum()


@pytest.mark.parametrize("f", [counts, keeps, hooks, guards])
def test_a_function_that_does_more_runs_each_time(f: Any) -> None:
    COUNTER.calls = 0
    SEEN.clear()
    for _ in range(6):
        pf.grad(f)(normal(3))
    assert COUNTER.calls + len(SEEN) == 6
    assert not replayed(f)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x[0] if x.sum() > 0 else x[1]),
        lambda x: x[x > 0].sum(),
        lambda x: torch.where(x > 0, x.log(), 0.0).sum(),
        lambda x: F.dropout(x, 0.5).sum(),
        lambda x: x.sum() * float(x.detach()[0]),
        lambda x: x.sort()[0][: int(x.argmax())].sum(),
    ],
)
def test_what_depends_on_numbers_is_not_replayed(f: Any) -> None:
    call = pf.grad_and_value(f)
    for k in range(6):
        x = normal(4, seed=k)
        y = x.clone()
        torch.manual_seed(k)
        got = call(x)
        torch.manual_seed(k)
        with pf.no_replay():
            expected = call(y)
        torch.testing.assert_close(got, expected, equal_nan=True)
        torch.testing.assert_close(x, y)
    assert not replayed(f)


def doubles(x: torch.Tensor) -> torch.Tensor:
    x += x
    return x.sin()


def test_writes_into_arguments_happen_once_a_call() -> None:
    for k in range(6):
        x = normal(3, 2, seed=k)
        y = x.clone()
        torch.testing.assert_close(pf.vmap(doubles)(x), (2 * y).sin())
        torch.testing.assert_close(x, 2 * y)


def test_random_numbers_are_drawn_as_often() -> None:
    f = lambda x: x + torch.rand(3, dtype=D)
    drawn = []
    for replay in (True, False):
        torch.manual_seed(3)
        if replay:
            drawn.append([pf.vmap(f, randomness="different")(normal(2, 3)) for _ in range(5)])
        else:
            with pf.no_replay():
                drawn.append([pf.vmap(f, randomness="different")(normal(2, 3)) for _ in range(5)])
    torch.testing.assert_close(drawn[0], drawn[1])


def test_errors_that_depend_on_numbers_are_raised() -> None:
    inverse = lambda a: torch.linalg.inv(a).sum()
    unused = lambda x, i: (x[i], x.sum())[1]
    good, index = normal(3, 3) + 5 * torch.eye(3, dtype=D), torch.tensor([0, 1])
    for _ in range(5):
        pf.grad(inverse)(good)
        pf.grad(unused)(normal(3), index)
    assert replayed(inverse)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        pf.grad(inverse)(torch.zeros(3, 3, dtype=D))
    with pytest.raises(IndexError):
        pf.grad(unused)(normal(3), torch.tensor([0, 9]))


def test_statistics_are_updated_once_a_call() -> None:
    mean, var, x = torch.zeros(3, dtype=D), torch.ones(3, dtype=D), normal(5, 3)
    again = mean.clone(), var.clone()
    for _ in range(5):
        pf.grad(lambda x: F.batch_norm(x, mean, var, training=True).sum())(x)
        F.batch_norm(x, *again, training=True)
    torch.testing.assert_close((mean, var), again)


def test_results_are_the_callers() -> None:
    f = lambda x: (torch.ones(2, dtype=D), torch.tensor([2.0, 3.0]) + 0 * x, x, torch.tensor(5.0) * 1)
    call = pf.jacfwd(lambda x: f(x)[1], has_aux=False)
    for _ in range(6):
        (ones, numbers, same, five), _ = pf.jvp(f, (normal(2),), (normal(2),))
        assert (ones.tolist(), numbers.tolist(), float(five)) == ([1, 1], [2, 3], 5)
        for made in (ones, numbers, same, five, call(normal(2))):
            made.mul_(3)
    assert replayed(f)


def test_results_that_are_the_argument() -> None:
    x = normal(3, 2)
    with pf.no_replay():
        shared = pf.vmap(lambda x: x)(x).data_ptr() == x.data_ptr()
    for _ in range(6):
        assert (pf.vmap(lambda x: x)(x).data_ptr() == x.data_ptr()) is shared


def test_nobody_who_listens_is_passed_by() -> None:
    f = lambda x: x.sin().sum()
    x, call = normal(3), pf.grad(f)
    for _ in range(5):
        call(x)
    assert replayed(f)
    lines: list[Any] = []
    sys.settrace(lambda frame, event, _: lines.append(frame.f_code))  # type: ignore[arg-type,return-value]
    try:
        call(x)
    finally:
        sys.settrace(None)
    assert f.__code__ in lines

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            lines.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        call(x)
    assert torch.ops.aten.sin.default in lines
    with pf.report() as report:
        pf.vmap(f)(x[None])
    assert report.runs == 1
    lines.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: lines.append(1) or t, lambda t: t):
        call(x)
    assert lines


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_values_of_torchs_own_transforms_are_no_plain_tensors() -> None:
    import torch.autograd.forward_ad as own

    f = lambda x: (x.sin() * x.detach()).sum()
    x, v = normal(2, 3), normal(2, 3, seed=1)
    for _ in range(6):
        pf.vmap(f)(x)
        torch.testing.assert_close(torch.func.vmap(pf.vmap(lambda x: x * 2))(x), 2 * x)
        with own.dual_level():
            moved = own.unpack_dual(pf.vmap(f)(own.make_dual(x, v))).tangent
        torch.testing.assert_close(moved, (x.cos() * x * v).sum(1))


def test_graphs_are_kept_where_autograd_is_outside() -> None:
    f = lambda x: (x**3).sum()
    for _ in range(5):
        pf.grad(f)(normal(3))
    x = normal(3).requires_grad_()
    pf.grad(f)(x).sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())
    with torch.no_grad():
        assert not pf.grad(f)(normal(3)).requires_grad


def test_settings_of_torch_are_part_of_a_call() -> None:
    f = lambda x: (torch.ones(3) * x).sum()
    for _ in range(5):
        assert pf.vmap(f)(torch.ones(2, 3)).dtype is torch.float32
    torch.set_default_dtype(D)
    try:
        assert pf.vmap(f)(torch.ones(2, 3, dtype=torch.float32)).dtype is D
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_warning_is_given_each_time() -> None:
    f = lambda x: F.softmax(x.exp())[0]
    for _ in range(6):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            pf.vmap(f)(normal(2, 3))
        assert len(said) == 1


def test_nothing_is_kept_alive() -> None:
    held = normal(3)
    call, known = pf.vmap(functools.partial(lambda held, x: (x * held).sin(), held)), []
    for k in range(6):
        x = normal(2, 3, seed=k)
        known += [weakref.ref(x), weakref.ref(call(x))]
        del x
    known.append(weakref.ref(held))
    gc.disable()
    try:
        del call, held
        assert [ref() for ref in known] == [None] * len(known)
    finally:
        gc.enable()


def test_many_values_of_a_number_are_no_pattern() -> None:
    def run(c: float) -> torch.Tensor:
        return pf.vmap(lambda x: x * c)(torch.ones(2))

    for k in range(3 * whole.MOST_KEYS):
        assert run(float(k)).tolist() == [k, k]
    code = next(c for c in run.__code__.co_consts if hasattr(c, "co_code"))
    _, plans = whole.CALLS[id(code)]
    assert len(plans) <= whole.MOST_KEYS + 1
    assert list(plans.values()).count(False) == 1  # and no more are looked for


def test_plans_of_use_are_kept_though_other_calls_have_none() -> None:
    f = lambda x, c: (x * c).sin()
    x = normal(2, 3)
    for k in range(6 * whole.MOST_KEYS):
        pf.vmap(f, in_dims=(0, None))(x, 2.0)
        if k % 2:
            pf.vmap(f, in_dims=(0, None))(x, float(k))
    assert replayed(f)
    assert False not in whole.CALLS[id(f.__code__)][1].values()


def test_two_threads() -> None:
    f = lambda x: (x.sin() * x).sum()
    wrong = []

    def work(seed: int) -> None:
        for k in range(30):
            x = normal(5, seed=seed + k)
            if not torch.allclose(pf.grad(f)(x), x.cos() * x + x.sin()):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_every_instruction_of_a_pure_function_is_known() -> None:
    """A new version of Python renames instructions: that must not quietly turn replaying off."""
    for f in (*PURE.values(), helper):
        if hasattr(f, "__code__"):
            pure.Reading(f.__code__)
