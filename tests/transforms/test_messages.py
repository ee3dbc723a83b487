"""Arguments that do not fit: each message names the argument, what it is, and what to write instead."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import pushforward as pf

X = torch.tensor([1.0, 2.0, 3.0])
ROWS = torch.ones(2, 3)
LAYER = nn.Linear(3, 2)


def loss(x):
    return (x * x).sum()


def square(x):
    return x * x


def dual(call):
    with pf.forward_ad.dual_level():
        return call()


WITH_FUNCTION = {
    "vmap": pf.vmap,
    "grad": pf.grad,
    "grad_and_value": pf.grad_and_value,
    "jacfwd": pf.jacfwd,
    "jacrev": pf.jacrev,
    "jacobian": pf.jacobian,
    "value_and_jacobian": pf.value_and_jacobian,
    "hessian": pf.hessian,
    "trace": pf.trace,
    "source": pf.source,
    "compile": pf.compile,
    "jvp": lambda f: pf.jvp(f, (X,), (X,)),
    "hvp": lambda f: pf.hvp(f, (X,), (X,)),
    "vjp": lambda f: pf.vjp(f, X),
    "linearize": lambda f: pf.linearize(f, X),
    "plan": lambda f: pf.plan(f, X),
    "jacobian_sparsity": lambda f: pf.jacobian_sparsity(f, X),
    "hessian_sparsity": lambda f: pf.hessian_sparsity(f, X),
    "check": lambda f: pf.check(f, (X,)),
    "routes": lambda f: pf.routes(f, (X,)),
    "JacobianPlan.load": lambda f: pf.JacobianPlan.load("plan.npz", f, X),
}


@pytest.mark.parametrize("given", [None, X, 3.0, "sin", [square]], ids=["None", "tensor", "float", "str", "list"])
@pytest.mark.parametrize("name", WITH_FUNCTION)
def test_what_is_no_function_is_refused_where_it_is_given(name, given):
    kinds = {"NoneType": "None", "Tensor": "a tensor of shape [3] and dtype float32"}
    kind = kinds.get(type(given).__name__, f"a {type(given).__name__}")
    with pytest.raises(pf.ArgumentError) as caught:
        WITH_FUNCTION[name](given)
    assert str(caught.value).startswith(f"{name}: ")
    assert f" must be a function (or a module), but is {kind}; write {name}(" in str(caught.value)


TRANSFORMS = [pf.grad, pf.grad_and_value, pf.jacfwd, pf.jacrev, pf.jacobian, pf.value_and_jacobian, pf.hessian]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_argnums(transform):
    name = transform.__name__
    f = lambda x, y: (x * y).sum()
    for argnums, said in {
        2: "argument 2 is out of range; 2 positional arguments were given",
        -3: "argument -3 is out of range",
        "z": "there is no parameter 'z'; there are x, y",
        (): "argnums is empty",
        (0, -2): "named twice",
        ("x", 0): "named twice",
    }.items():
        with pytest.raises(pf.ArgumentError, match=rf"{name}\(<lambda>, argnums={re.escape(repr(argnums))}\): .*{re.escape(said)}"):
            transform(f, argnums=argnums)(X, X)
    for argnums, said in [(None, "is None"), (0.0, "is a float"), (True, "is a bool"), (X, "is a tensor"), ((0, None), "holds None")]:
        with pytest.raises(pf.ArgumentError, match=rf"{name}\(<lambda>, argnums=.*but {said}"):
            transform(f, argnums=argnums)
    with pytest.raises(pf.ArgumentError, match=rf"write {name}\(f\)\(x\)"):
        transform(loss, X)  # `grad(f, x)` for `grad(f)(x)`
    with pytest.raises(pf.ArgumentError, match=r"0 positional arguments were given .*by position"):
        transform(loss)(x=X)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_aux(transform):
    others = [(loss, "a tensor"), (lambda x: [loss(x), 1], "a list of 2"), (lambda x: (loss(x), 1, 2), "a tuple of 3")]
    for f, returned in others:
        said = rf"has_aux=True\): the function must return a tuple \(output, aux\).* returned {returned}"
        with pytest.raises(pf.ArgumentError, match=said):
            transform(f, has_aux=True)(X)
    if transform in (pf.grad, pf.grad_and_value):
        with pytest.raises(pf.ArgumentError, match="say has_aux=True"):
            transform(lambda x: (loss(x), x))(X)


CALLS = {
    # vmap
    "in_dims, a tensor": (lambda: pf.vmap(square, ROWS), r"in_dims .*a tensor of shape \[2, 3\].*write vmap\(f\)\(xs\)"),
    "in_dims, a float in a tuple": (lambda: pf.vmap(square, (0.0,))(ROWS), r"in_dims=\(0\.0,\).*holds 0\.0, a float"),
    "in_dims, a truth value": (lambda: pf.vmap(square, True)(ROWS), r"in_dims=True.*a bool"),
    "in_dims, a name": (lambda: pf.vmap(square, "rows")(ROWS), r"in_dims='rows'.*a str"),
    "in_dims, too many": (lambda: pf.vmap(square, (0, 0))(ROWS), r"in_dims=\(0, 0\).*\(\*, \*\), the inputs have \(\*,\)"),
    "in_dims, too deep": (lambda: pf.vmap(square, ((0,),))(ROWS), r"in_dims=\(\(0,\),\)"),
    "in_dims, another key": (lambda: pf.vmap(lambda d: d["a"], {"b": 0})({"a": ROWS}), r"\{'b': \*\}, the inputs have \{'a': \*\}"),
    "out_dims, a truth value": (lambda: pf.vmap(square, out_dims=True)(ROWS), r"out_dims=True.*a bool"),
    "out_dims, a float": (lambda: pf.vmap(square, out_dims=0.0)(ROWS), r"out_dims=0\.0.*but is a float"),
    "out_dims, a name": (lambda: pf.vmap(square, out_dims="a")(ROWS), r"out_dims='a'.*but is a str"),
    "out_dims, too deep": (lambda: pf.vmap(square, out_dims=((0,),))(ROWS), r"out_dims=\(\(0,\),\)"),
    "out_dims, a tensor": (lambda: pf.vmap(square, out_dims=X)(ROWS), r"out_dims.*a tensor of shape"),
    "out_dims, too many": (lambda: pf.vmap(square, out_dims=(0, 0))(ROWS), r"\(\*, \*\), the output has a tensor"),
    "an array": (lambda: pf.vmap(square)(np.ones((2, 3))), r"args\[0\] is a numpy array of shape \[2, 3\].*write torch\.tensor\(x\)"),
    "numbers": (lambda: pf.vmap(square)([1.0, 2.0]), r"args\[0\]\[0\] is a float.*write torch\.tensor"),
    "nothing": (lambda: pf.vmap(square)(None), r"args\[0\] is None"),
    "chunk_size": (lambda: pf.vmap(square, chunk_size=True)(ROWS), r"chunk_size is True"),
    # modules
    "functional_call of a function": (
        lambda: pf.functional_call(square, {}, (X,)),
        r"functional_call: module must be .*Module.*a function",
    ),
    "parameters, an iterator": (
        lambda: pf.functional_call(LAYER, LAYER.named_parameters(), (X,)),
        r"parameter_and_buffer_dicts must be a dict.*a generator; write dict\(module\.named_parameters\(\)\)",
    ),
    "parameters, None": (lambda: pf.functional_call(LAYER, None, (X,)), r"parameter_and_buffer_dicts .*but is None"),
    "parameters, a module": (
        lambda: pf.functional_call(LAYER, LAYER, (X,)),
        r"is a Linear; write dict\(module\.named_parameters\(\)\)",
    ),
    "a parameter, an array": (
        lambda: pf.functional_call(LAYER, {"weight": np.ones((2, 3))}, (X,)),
        r"'weight' must be a tensor, but is a numpy array of shape \[2, 3\].*torch\.tensor",
    ),
    "stack of one module": (
        lambda: pf.stack_module_state(LAYER),
        r"models must be a list of modules, but is a Linear; write .*\[model",
    ),
    "stack of functions": (lambda: pf.stack_module_state([square, square]), r"models\[0\] must be .*Module, but is a function"),
    "stack of None": (lambda: pf.stack_module_state(None), r"models must be a list of modules, but is None"),
    "frozen_statistics of a function": (lambda: pf.frozen_statistics(square).__enter__(), r"model must be .*Module.*a function"),
    # ragged
    "ragged of nothing": (lambda: pf.ragged(None), r"ragged: tensors must be a list of tensors, but is None"),
    "ragged of a number": (lambda: pf.ragged(3), r"ragged: tensors must be a list of tensors, but is an int"),
    "ragged of arrays": (
        lambda: pf.ragged([np.ones(2)]),
        r"ragged: element 0 is a numpy array of shape \[2\].*write torch\.tensor\(x\)",
    ),
    # forward_ad
    "a dual of None": (lambda: dual(lambda: pf.forward_ad.make_dual(X, None)), r"make_dual: the tangent is None"),
    "a dual of a number": (
        lambda: dual(lambda: pf.forward_ad.make_dual(2.0, 1.0)),
        r"make_dual: the primal is a float.*torch\.tensor\(2\.0\)",
    ),
    "a level by number": (
        lambda: dual(lambda: pf.forward_ad.make_dual(X, X, level=0)),
        r"make_dual: level is an int.*dual_level\(\) as level",
    ),
    "unpack a number": (lambda: dual(lambda: pf.forward_ad.unpack_dual(2.0)), r"unpack_dual: .*a float"),
    # programs
    "a program of None": (lambda: pf.trace(square)(X)(None), r"args\[0\] is None.*traced .*tensor of shape \[3\] and dtype float32"),
    "a program of an array": (lambda: pf.trace(square)(X)(np.ones(3)), r"args\[0\] is a numpy array.*write torch\.tensor\(x\)"),
    "a program of another dtype": (lambda: pf.trace(square)(X)(X.double()), r"args\[0\] .*float64.*float32"),
    "a program of another number": (lambda: pf.trace(lambda x, n: x * n)(X, 2.0)(X, 3.0), r"args\[1\] is 3\.0.*traced with 2\.0"),
    "a program of another number by name": (
        lambda: pf.trace(lambda x, n: x * n)(X, n=2)(X, n=3),
        r"kwargs\['n'\] is 3.*traced with 2",
    ),
    # plans
    "no plan": (lambda: pf.JacobianPlan.load(__file__, square, X), r"JacobianPlan\.load\(.*test_messages\.py\).*holds no plan"),
    "values of a dense plan": (lambda: pf.plan(square, X).values(X), r"sparsity"),
    "to_scipy of None": (lambda: pf.to_scipy(None), r"to_scipy: jacobian must be a tensor, but is None"),
    "to_scipy of a block of three dimensions": (
        lambda: pf.to_scipy(torch.ones(2, 3, 4)),
        r"to_scipy: .*shape \[2, 3, 4\].*two dimensions",
    ),
    "a sparsity of a function without tensors": (
        lambda: pf.jacobian_sparsity(lambda x: None, X),
        r"must return a tensor, but returned None",
    ),
    # checks
    "modes, one": (lambda: pf.check(loss, (X,), modes=3), r"modes"),
    "seed": (lambda: pf.check(loss, (X,), seed="a"), r"check: seed is 'a'"),
    "tangents, an array": (lambda: pf.check(loss, (X,), (np.ones(3),)), r"primals\[0\] .*its tangent a numpy array of shape \[3\]"),
    "tangents, a number": (lambda: pf.check(loss, (X,), (1.0,)), r"primals\[0\] .*its tangent a float"),
    "cotangents, an array": (lambda: pf.check(square, (X,), None, np.ones(3)), r"cotangents.*a numpy array"),
    "routes of nothing": (
        lambda: pf.routes(lambda x: None, (X,)),
        r"routes\(<lambda>\): the function must return a .*tensor, but returned None",
    ),
    "routes, a tangent": (lambda: pf.routes(loss, (X,), (X[:2],)), r"routes\(loss\): primals\[0\].*\[2\]"),
}


@pytest.mark.parametrize("name", CALLS)
def test_messages(name):
    call, said = CALLS[name]
    for _ in range(4):
        with pytest.raises(pf.ArgumentError, match=f"(?s){said}"):
            call()


def test_modes_may_be_one_word():
    assert pf.check(loss, (X,), modes="forward").ok


def test_a_check_of_a_function_without_a_derivative_says_so():
    for f, what in ((lambda x: None, "None"), (lambda x: float(x.sum()), "a float"), (lambda x: [1, "a"], "a list")):
        report = pf.check(f, (X,))
        assert not report.ok
        assert report.findings[0].kind == "lost-derivative"
        assert f"returns no floating-point tensor, but {what}:" in report.findings[0].message
    report = pf.check(lambda x: x.argmax(), (X,))
    assert report.ok
    assert "a tensor of shape [] and dtype int64" in str(report)


def test_a_plain_tensor_has_no_tangent_outside_of_a_level_too():
    out = pf.forward_ad.unpack_dual(X)
    assert out.primal is X
    assert out.tangent is None
    with pf.forward_ad.dual_level():
        kept = pf.forward_ad.make_dual(X, X)
    with pytest.raises(pf.EscapedValueError):
        pf.forward_ad.unpack_dual(kept)


def test_programs_take_the_numbers_that_they_were_traced_with():
    program = pf.trace(lambda x, n, how: x * n if how == "times" else x)(X, 2.0, "times")
    torch.testing.assert_close(program(X + 1, 2.0, "times"), (X + 1) * 2)
    weights = np.array([1.0, 2.0, 3.0])
    program = pf.trace(lambda x, w: x * torch.from_numpy(w).float())(X, weights)
    torch.testing.assert_close(program(X, weights.copy()), X * X)
    with pytest.raises(pf.ArgumentError, match=r"args\[1\]"):
        program(X, weights + 1)
    nan = float("nan")
    assert pf.trace(lambda x, n: x * n)(X, nan)(X, float("nan")).isnan().all()
