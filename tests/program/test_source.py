"""Printed programs: they run, they compute what the function computes, and they look as they looked."""

from __future__ import annotations

import linecache
import os
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pushforward as pf
from tests.program import functions as f

SNAPSHOTS = Path(__file__).parent / "snapshots"
x, t = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.25, -0.5])
X = torch.linspace(-2, 2, 12).reshape(4, 3)
WEIGHTS = {"w": f.WEIGHT, "b": torch.ones(4)}


def energy_hvp(x, v):
    return pf.jvp(pf.grad(f.energy), (x,), (v,))


def scaled_jvp(x, v):
    return pf.jvp(f.scaled, (x,), (v,))


def scaled_linearized(x, v):
    out, push = pf.linearize(f.scaled, x)
    return {"out": out, "pushed": push(v)}


def per_direction(x, directions):
    return pf.vmap(lambda v: pf.jvp(f.scaled, (x,), (v,))[1])(directions)


COMPOSITIONS = {
    "vmap_scaled": (pf.vmap(f.scaled), (X,)),
    "grad_energy": (pf.grad(f.energy), (x,)),
    "jvp_scaled": (scaled_jvp, (x, t)),
    "jvp_grad_energy": (energy_hvp, (x, t)),
    "vmap_grad_network": (pf.vmap(pf.grad(f.network)), (X,)),
    "hessian_energy": (pf.hessian(f.energy), (x,)),
    "jacfwd_scaled": (pf.jacfwd(f.scaled), (x,)),
    "jacrev_scaled": (pf.jacrev(f.scaled), (x,)),
    "linearize_scaled": (scaled_linearized, (x, t)),
    "vmap_jvp_scaled": (per_direction, (x, X)),
    "grad_two_inputs": (pf.grad(f.two_inputs), (WEIGHTS, x)),
    "grad_branches": (pf.grad(lambda x: f.branches(x).sum()), (x,)),
    "buffer": (f.buffer, (x,)),
    "jacfwd_steps": (pf.jacfwd(f.steps), (x,)),
}


def run(text, program, args):
    scope: dict = {}
    exec(text, scope)
    function = next(v for k, v in scope.items() if k not in ("torch", "__builtins__"))
    return function(*tree_leaves(args), *[c.example for c in program.captured])


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_text_runs_and_equals_the_function(name):
    function, args = COMPOSITIONS[name]
    program = pf.trace(function)(*args)
    ours, theirs, expected = run(program.source(), program, args), program(*args), function(*args)
    for a, b, c in zip(tree_leaves(ours), tree_leaves(theirs), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)
    assert type(ours) is type(expected)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_text_is_the_snapshot(name):
    function, args = COMPOSITIONS[name]
    text, path = pf.source(function)(*args), SNAPSHOTS / f"{name}.py.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name}: the program changed; if it should, run with UPDATE_SNAPSHOTS=1"


def test_names_and_lines_are_the_users():
    text = pf.source(pf.vmap(pf.grad(f.network)))(X)
    assert "h = torch.tanh(" in text
    assert "WEIGHT,  # float32[4, 3], captured: WEIGHT" in text
    assert "functions.py:21: h = torch.tanh(x @ WEIGHT.t())" in text
    assert "backward of functions.py:22" in text


def test_lines_of_what_is_executed_from_a_string_are_not_those_of_another_string():
    """As Python 3.13 keeps the text that `python -c` runs, under the name that all such texts have."""
    space: dict = {"torch": torch}
    exec("def g(x):\n    u = torch.sin(x)\n    return u * 2", space)
    linecache.cache["<string>"] = 30, None, ["import sys\n", "    v = torch.sin(x)\n", "    return v * 2\n"], "<string>"
    try:
        text = pf.source(pf.jacfwd(space["g"]))(x)
    finally:
        del linecache.cache["<string>"]
    assert "#" not in text.split("):")[1]
    assert " v = " not in text


def test_a_tangent_does_not_take_the_name_of_its_value():
    text = pf.source(lambda x, v: pf.jvp(f.scaled, (x,), (v,))[1])(x, t)
    assert "\n    y = " not in text  # the value of y is not needed, and its tangent is not y


def test_a_branch_becomes_an_assertion():
    text = pf.source(f.branches)(torch.ones(3))
    assert "assert gt  # functions.py:33: if x.sum() > 0:" in text
    scope: dict = {}
    exec(text, scope)
    torch.testing.assert_close(scope["branches"](torch.ones(3)), f.branches(torch.ones(3)))
    with pytest.raises(AssertionError):
        scope["branches"](-torch.ones(3))


def test_special_numbers_and_dtypes_are_printed():
    def function(x):
        return torch.where(x > 0, x, float("-inf")).double() + torch.tensor([1, 2, 3])

    text = pf.source(function)(x)
    scope: dict = {}
    exec(text, scope)
    torch.testing.assert_close(scope["function"](x), function(x))
    assert scope["function"](x).dtype is torch.float64
