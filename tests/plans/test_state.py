"""Plans and what is around a call: captured tensors, hooks, warnings, operators and functions of the user's, interrupts."""

import gc
import warnings
import weakref

import pytest
import torch

import pushforward as pf
from pushforward.core.torch_private import mode_count
from pushforward.plans import record, replay

D = torch.float64


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=D)


def test_a_captured_tensor_that_requires_grad_is_noticed_wherever_the_plan_was_made() -> None:
    x, w = randn(4, 2, 3), randn(3).requires_grad_()
    replay.PLANS.clear()
    for _ in range(4):
        pf.vmap(lambda v: (torch.einsum("ij,j->i", v, w), torch.einsum("ij,j->i", v * 1, w)))(x)
    seen = []

    def f(v: torch.Tensor) -> torch.Tensor:
        out = torch.einsum("ij,j->i", v, w)
        seen.append(out.requires_grad)
        return out

    pf.vmap(f)(x)
    assert seen == [True]


def test_a_value_recorded_above_its_level_stays_so() -> None:
    x = randn(3)

    def f(v: torch.Tensor) -> torch.Tensor:
        w = (v.mean().expand(3) + 0.0).tanh()
        buffer = torch.zeros(3, dtype=D)
        part = buffer[1:]
        part.copy_(w[1:])
        part.mul_(w[:2])  # needs to know that what it writes over is recorded
        return buffer.sum()

    expected = torch.autograd.functional.hessian(f, x)
    for _ in range(5):
        torch.testing.assert_close(pf.jacrev(pf.jacfwd(f))(x), expected)


@pytest.mark.parametrize("f", [lambda v: torch.nn.functional.mse_loss(v, torch.zeros(3)), torch.nn.functional.softmax])
def test_a_warning_is_given_each_time(f) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(4, 2, 3)
    original = warnings.warn
    for _ in range(5):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            pf.vmap(f)(x)
        assert len(said) == 1
        assert "plans" not in said[0].filename
        assert warnings.warn is original


def test_hooks_that_pack_see_each_saved_tensor_once() -> None:
    x = randn(4, 3).requires_grad_()
    counts = []
    for _ in range(5):
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, packed=packed: packed.append(t) or t, lambda t: t):
            pf.vmap(lambda v: torch.einsum("i,j->ij", v.cumsum(0), v).prod(0))(x)
        counts.append(len(packed))
    assert counts[0] > 0
    assert len(set(counts)) == 1


SCALE = [1.0]


@torch.library.custom_op("pushforward_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE[0]


@torch.library.register_vmap("pushforward_tests::scaled")
def scaled_lanes(info, in_dims, x):  # type: ignore[no-untyped-def]
    return x * SCALE[0], in_dims[0]


def test_rules_of_the_users_operators_run_each_time() -> None:
    x = torch.ones(4, 3)
    try:
        for k in range(6):
            SCALE[0] = float(k)
            assert pf.vmap(scaled)(x).eq(k).all()
    finally:
        SCALE[0] = 1.0


def test_a_number_before_a_tensor_is_no_value_of_a_level() -> None:
    x, y, s, t = randn(4, 3), randn(4, 3), randn(4, 3), randn(4, 3)
    numbers, tensors = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the form with a number in the middle is an old one
        for _ in range(4):
            numbers.append(pf.vmap(lambda v: torch.addcmul(v, 1, s, t))(x))
            tensors.append(pf.vmap(lambda v, u: torch.addcmul(v, u, t))(x, y))
    for a, b in zip(numbers, tensors, strict=True):
        torch.testing.assert_close(a, x[:, None] + s * t)
        torch.testing.assert_close(b, x[:, None] + y[:, None] * t)


def test_functions_of_the_users_are_not_kept() -> None:
    def run() -> weakref.ref:
        def public(v: torch.Tensor) -> torch.Tensor:
            if torch.overrides.has_torch_function_unary(v):
                return torch.overrides.handle_torch_function(public, (v,), v)
            return v + 1

        pf.vmap(public)(randn(4, 3))
        return weakref.ref(public)

    kept = run()
    gc.collect()
    assert kept() is None


def test_a_function_may_have_no_module() -> None:
    def public(v: torch.Tensor) -> torch.Tensor:
        if torch.overrides.has_torch_function_unary(v):
            return torch.overrides.handle_torch_function(public, (v,), v)
        return v + 1

    public.__module__ = None  # type: ignore[assignment]
    torch.testing.assert_close(pf.vmap(public)(torch.ones(2)), torch.full((2,), 2.0))


def test_an_interrupt_inside_a_plan_leaves_dispatch_on() -> None:
    x = randn(4, 3)
    replay.PLANS.clear()
    for _ in range(3):
        pf.vmap(lambda v: v.cumsum(0))(x)
    (plan,) = replay.PLANS[torch.Tensor.cumsum].values()
    (name,) = [k for k, v in plan.__globals__.items() if getattr(v, "__name__", "") == "cumsum"]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    plan.__globals__[name] = interrupted
    try:
        with pytest.raises(KeyboardInterrupt) as kept:  # whose traceback holds the plan's frame
            pf.vmap(lambda v: v.cumsum(0))(x)
        torch.testing.assert_close(pf.vmap(lambda v: v.cumprod(0))(x), x.cumprod(1))
        assert kept.tb is not None
    finally:
        replay.PLANS.clear()


def test_an_interrupt_while_a_recorder_is_put_on_leaves_the_levels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x = randn(4, 3)
    replay.PLANS.clear()
    push, calls = record.push_mode, []

    def interrupted(mode: object) -> None:
        calls.append(mode)
        if len(calls) == 1:
            raise KeyboardInterrupt
        push(mode)

    pf.vmap(lambda v: v.cumsum(0))(x)
    monkeypatch.setattr(record, "push_mode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pf.vmap(lambda v: v.cumsum(0))(x)
    assert len(calls) == 2
    assert mode_count() == 0
    torch.testing.assert_close(pf.vmap(lambda v: v.cumsum(0))(x), x.cumsum(1))


@pytest.mark.parametrize("transform", ["vmap", "jvp"])
def test_hooks_on_saved_tensors_may_transform(transform: str) -> None:
    x, w = randn(3, 2), randn(2).requires_grad_()

    def pack(t: torch.Tensor) -> torch.Tensor:
        return pf.vmap(lambda row: row * 2)(t) / 2 if t.dim() else t

    run = {
        "vmap": lambda: pf.vmap(lambda v: (v.sin() * w).exp())(x).sum(),
        "jvp": lambda: pf.jvp(lambda v: (v.sin() * w).exp(), (x,), (x,))[1].sum(),
    }[transform]
    (expected,) = torch.autograd.grad(run(), w)
    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = run()
        torch.testing.assert_close(torch.autograd.grad(out, w)[0], expected)


def test_recording_above_autograd_is_refused() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = randn(3, 4)
    with pytest.raises(pf.TransformError, match="recorded above autograd"):
        make_fx(pf.vmap(torch.sin), pre_dispatch=True)(x)
    y = randn(3, 4)
    torch.testing.assert_close(make_fx(pf.vmap(torch.sin))(x)(y), y.sin())


def replaced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    z = b.sin()
    y = z.exp() * z  # what results of `z` are made from is known now
    z.mul_(a)  # and changes: a value of the level below takes the place of the plain payload
    return z.exp() * z + y


def pure(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    z = b.sin()
    w = z * a
    return w.exp() * w + z.exp() * z


def test_a_payload_that_becomes_a_value_of_the_level_below() -> None:
    a, b, t = randn(3, 4), randn(5, 4), randn(4)
    expected = torch.stack([torch.stack([pure(x, y) for y in b]) for x in a])
    for _ in range(4):
        found = pf.vmap(lambda x: pf.vmap(lambda y: replaced(x, y))(b))(a)
        torch.testing.assert_close(found, expected)
        mixed = pf.vmap(lambda x: pf.jvp(lambda y: replaced(x, y), (b[0],), (t,))[1])(a)
        torch.testing.assert_close(mixed, torch.stack([pf.jacrev(pure, 1)(x, b[0]) @ t for x in a]))
        turned = pf.jvp(lambda x: pf.vmap(lambda y: replaced(x, y))(b), (a[0],), (t,))[1]
        torch.testing.assert_close(turned, torch.stack([pf.jacrev(pure)(a[0], y) @ t for y in b]))


WRITES = {
    "whole, not recorded": lambda x, y: without_grad(y.sin(), x),
    "a view": lambda x, y: into_view(y.sin(), x),
    "a row": lambda x, y: into_row(y * 1, x),
    "a view of all": lambda x, y: through(y * 1, x),
}


def without_grad(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return z.mul_(x)


def into_view(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    z[:2].mul_(x[:2])
    return z


def into_row(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    z[0] = x[0]
    return z


def through(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    v = z.view(2, 2)
    v.add_(x.view(2, 2))
    return z + v.view(-1)


@pytest.mark.parametrize("name", WRITES)
def test_a_value_of_a_level_below_written_into_what_a_short_way_made(name: str) -> None:
    f, a, b = WRITES[name], randn(3, 4), randn(5, 4)
    expected = torch.stack([torch.stack([f(x, y) for y in b]) for x in a])
    for _ in range(3):
        torch.testing.assert_close(pf.vmap(lambda x: pf.vmap(lambda y: f(x, y))(b))(a), expected)
        if name != "whole, not recorded":
            pushed = pf.jvp(lambda x: pf.vmap(lambda y: f(x, y))(b), (a[0],), (a[1],))[1]
            torch.testing.assert_close(pushed, torch.stack([pf.jacrev(lambda x, y=y: f(x, y))(a[0]) @ a[1] for y in b]))


def test_an_argument_is_not_written_into_by_a_level_below_it() -> None:
    a, b = randn(3, 4), randn(5, 4)
    before = b.clone()
    with pytest.raises(pf.CapturedWriteError):
        pf.vmap(lambda x: pf.vmap(lambda y: y.mul_(x))(b))(a)
    torch.testing.assert_close(b, before)


def test_a_write_with_a_derivative_into_a_detached_view_is_refused() -> None:
    with pytest.raises(pf.CapturedWriteError, match="detached view"):
        pf.jvp(lambda x: (x * 1).detach().mul_(x), (randn(3),), (randn(3),))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_plans_are_not_for_torchs_own_duals() -> None:
    import torch.autograd.forward_ad as own

    f = lambda x: (x.sin() * x.detach()).sum()
    x, v = randn(2, 3), randn(2, 3)
    with pf.no_replay():
        for _ in range(5):
            pf.vmap(f)(x)
        with own.dual_level():
            moved = own.unpack_dual(pf.vmap(f)(own.make_dual(x, v))).tangent
        torch.testing.assert_close(moved, (x.cos() * x * v).sum(1))
        torch.testing.assert_close(torch.func.grad(lambda x: pf.vmap(f)(x).sum())(x), x.cos() * x)
