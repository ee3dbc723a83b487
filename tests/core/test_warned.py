"""Warnings that are heard before they are shown, by several listeners that come and go in any order."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

import pushforward as pf
from pushforward.core.warned import Hook, listen, unlisten


class Ears:
    def __init__(self, keep: bool = False) -> None:
        self.keep, self.said = keep, []

    def hear(self, message: Any, category: Any, filename: str, lineno: int) -> bool:
        self.said.append(str(message))
        return self.keep


def test_listeners_leave_in_any_order():
    shown = warnings.showwarning
    for order in ((0, 1), (1, 0)):
        ears = Ears().hear, Ears().hear
        for ear in ears:
            listen(ear)
        for k in order:
            unlisten(ears[k])
        assert warnings.showwarning is shown
        assert Hook.users == 0


def test_each_hears_and_one_may_keep_it():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        a, b = Ears(), Ears(keep=True)
        hear, keep = a.hear, b.hear
        listen(hear)
        warnings.warn("one", stacklevel=1)
        listen(keep)
        warnings.warn("two", stacklevel=1)
        unlisten(hear)
        unlisten(keep)
        warnings.warn("three", stacklevel=1)
    assert a.said == ["one", "two"]
    assert b.said == ["two"]
    assert [str(w.message) for w in shown] == ["one", "three"]


def test_somebody_puts_back_what_stood_there_meanwhile():
    before = warnings.showwarning
    try:
        for _ in range(3):
            ear = Ears().hear
            listen(ear)
            theirs = warnings.showwarning

            def shows(*args: Any, theirs: Any = theirs) -> None:
                theirs(*args)

            warnings.showwarning = shows
            unlisten(ear)
            assert warnings.showwarning is shows  # it is not ours to take away
            ear = Ears().hear
            listen(ear)
            warnings.showwarning = theirs
            unlisten(ear)
            with pytest.warns(UserWarning, match="still"):
                warnings.warn("still", stacklevel=1)
    finally:
        warnings.showwarning = before


def test_transforms_leave_the_way_warnings_are_shown_as_it_was():
    shown, warn = warnings.showwarning, warnings.warn
    x = torch.randn(4, 5)

    def positive(x):
        return x[x > 0]

    def warned(x):
        warnings.warn("about x", stacklevel=1)
        return x[x > 0]

    for _ in range(6):
        pf.vmap(positive)(x)
        with pytest.warns(UserWarning, match="about x") as said:
            pf.vmap(warned)(x)
        assert len(said) == 1
        assert warnings.showwarning is shown
        assert warnings.warn is warn


def test_what_torch_itself_warns_of_is_said_once_a_call():
    def spread(x):
        return x.var(0) + x.sum()  # of one number

    with pytest.warns(UserWarning, match="var") as plain:
        spread(torch.ones(1))
    for _ in range(5):
        with pytest.warns(UserWarning, match="var") as said:
            pf.vmap(spread)(torch.ones(3, 1))
        assert [str(w.message) for w in said] == [str(w.message) for w in plain]


def test_warnings_are_of_the_users_line():
    x = torch.arange(20.0)

    def lost(x):
        return copy.deepcopy(x) * x  # in a file of Python's own

    def ways(r):
        return r * r.item()

    kept = []
    for call, kind, code in (
        (lambda: pf.jvp(lost, (x,), (x,)), pf.DerivativeLost, lost),
        (lambda: pf.jvp(ways, (x[3],), (x[3],)), pf.DerivativeLost, ways),
        (lambda: pf.vmap(ways)(x), pf.SlowFallback, ways),
        (lambda: (pf.vmap(lambda r: kept.append(r) or r)(x), kept[0] + 1), pf.EscapedValue, None),
    ):
        with pytest.warns(kind) as said:
            call()
        assert said[0].filename == __file__
        code = (code or test_warnings_are_of_the_users_line).__code__
        assert said[0].lineno > code.co_firstlineno


def test_functions_of_torch_that_lose_a_derivative_are_named():
    x = torch.tensor([2.0, 2.0])
    image = torch.ones(1, 1, 4)
    calls = {
        "Upsample.__init__": lambda x: torch.nn.Upsample(scale_factor=x[1])(image).sum() * x,
        "Binomial.enumerate_support": lambda x: torch.distributions.Binomial(x, torch.tensor(0.5)).enumerate_support().sum() * x,
        "pad_sequence": lambda x: torch.nn.utils.rnn.pad_sequence([x, x[:1]], padding_value=x[0]).sum() * x,
        "": lambda x: torch.full((2,), x[0]) * x,
    }
    for name, f in calls.items():
        with pytest.warns(pf.DerivativeLost) as said:
            pf.jvp(f, (x,), (x,))
        assert said[0].filename == __file__
        assert said[0].lineno == f.__code__.co_firstlineno
        assert (f"in torch's `{name}`, called at test_warned.py:{said[0].lineno}," in str(said[0].message)) is (name != "")
        strict = lambda x: pf.jvp(f, (x,), (x,), strict=True)
        for call in (lambda: strict(x), lambda: pf.vmap(strict)(x[None])):
            with pytest.raises(pf.DerivativeLostError, match=f"{name}.*test_warned.py:{said[0].lineno}"):
                call()


def test_lines_of_files_of_one_name_are_different_lines():
    text = "def f(x):\n    return x * x.sum().item()\n"
    x = torch.ones(2)
    for folder in ("one", "another"):
        names: dict[str, Any] = {}
        exec(compile(text, f"/{folder}/model.py", "exec"), names)
        with pytest.warns(pf.DerivativeLost, match=r"at model\.py:2 "):
            pf.jvp(names["f"], (x,), (x,))


def test_a_deep_copy_is_a_constant_as_torch_tensor_is():
    def f(x):
        return (copy.deepcopy(x) * x).sum()

    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pf.DerivativeLost)
        for _ in range(4):
            assert torch.equal(pf.jvp(f, (x,), (x,))[1], (x * x).sum())
            assert torch.equal(pf.grad(f)(x).detach(), x)
            assert torch.equal(pf.vmap(pf.grad(f))(x).detach(), x)
            assert torch.equal(pf.vmap(f)(x), (x * x).sum(1))
            assert torch.equal(pf.vmap(lambda x: pf.jvp(f, (x,), (x,))[1])(x), (x * x).sum(1))
    with pytest.raises(pf.DerivativeLostError, match=r"copy\.deepcopy"):
        pf.jvp(f, (x,), (x,), strict=True)
