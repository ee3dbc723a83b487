"""`compile`: when programs are shared and when they are not, and that results are those of the function."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pushforward as pf

x, v = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.25, -0.5])
X = torch.linspace(-2, 2, 12).reshape(4, 3)


def energy(x):
    return (torch.sin(x) * x).sum()


def graph(function, **kwargs):
    return pf.compile(function, backend="graph", **kwargs)


def same(compiled, function, *args, **kwargs):
    ours, expected = compiled(*args, **kwargs), function(*args, **kwargs)
    for a, b in zip(tree_leaves(ours), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b)
    assert type(ours) is type(expected)
    return ours


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (pf.vmap(energy), (X,)),
        (pf.grad(energy), (x,)),
        (lambda x, v: pf.jvp(pf.grad(energy), (x,), (v,)), (x, v)),
        (pf.vmap(pf.grad(energy)), (X,)),
        (pf.hessian(energy), (x,)),
        (pf.jacfwd(torch.tanh), (x,)),
        (pf.jacrev(torch.tanh), (x,)),
        (pf.vmap(pf.hessian(energy)), (X,)),
    ],
)
def test_compositions(function, args):
    compiled = graph(function)
    same(compiled, function, *args)
    same(compiled, function, *[a * 1.5 for a in args])
    assert len(compiled.programs) == 1


def test_a_call_runs_no_python_of_the_function():
    calls = []

    def function(x):
        calls.append(1)
        return x.sin()

    compiled = graph(function)
    for _ in range(5):
        compiled(x)
    assert len(calls) == 1


Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.parametrize(
    "tree",
    [
        {"a": x, "b": [v, (x, v)]},
        (x, {"k": v}, []),
        Point(x, v),
        Pair(x, v),
        collections.OrderedDict(a=x, b=v),
        [x, None, 2.0, "name", v],
    ],
)
def test_structures_in_and_out(tree):
    def function(tree):
        return torch.utils._pytree.tree_map(lambda leaf: leaf.sin() if isinstance(leaf, torch.Tensor) else leaf, tree)

    if isinstance(tree, Pair):
        graph(lambda p: p)(tree)  # makes the dataclass known as a structure
    compiled = graph(function)
    out = compiled(tree)
    assert type(out) is type(tree)
    again = compiled(tree)
    for a, b in zip(tree_leaves(again), tree_leaves(function(tree)), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert len(compiled.programs) == 1


def test_structure_shape_dtype_and_strides_make_programs():
    compiled = graph(lambda t: [a * 2 for a in (t.values() if isinstance(t, dict) else t)], dynamic=False)
    kinds = [
        [x],
        [x, x.clone()],
        (x,),
        {"a": x},
        {"b": x},
        [x.double()],
        [torch.ones(4)],
        [torch.ones(3, 2)],
        [torch.ones(2, 3).t()],
    ]
    for k, kind in enumerate(kinds, 1):
        compiled(kind)
        compiled(kind)
        assert len(compiled.programs) == k


def test_keywords_and_their_absence():
    def function(x, scale=None, *, shift=0.0):
        return (x if scale is None else x * scale) + shift

    compiled = graph(function)
    same(compiled, function, x)
    same(compiled, function, x, v)
    same(compiled, function, x, scale=v)
    same(compiled, function, x, shift=v)
    same(compiled, function, x, shift=1.5)
    same(compiled, function, x, shift=2.5)
    assert len(compiled.programs) == 6
    same(compiled, function, x, shift=1.5)
    assert len(compiled.programs) == 6


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (2, 3), ("a", "b"), (None, 0), (True, False)])
def test_python_leaves_are_part_of_the_program(one, other):
    def function(x, leaf):
        factor = {True: 2, None: 3}.get(leaf, leaf) if leaf is True or leaf is None else leaf
        return x * (ord(factor) if isinstance(factor, str) else factor) + isinstance(leaf, float)

    compiled = graph(function)
    for leaf in (one, other, one, other):
        same(compiled, function, x, leaf)
    assert len(compiled.programs) == 2


def test_a_tensor_given_twice():
    compiled = graph(lambda a, b: a - 2 * b)
    torch.testing.assert_close(compiled(x, x), -x)
    torch.testing.assert_close(compiled(x, v), x - 2 * v)
    torch.testing.assert_close(compiled(v, x), v - 2 * x)
    torch.testing.assert_close(compiled(v, v), -v)


def test_grad_mode_and_autocast_make_programs():
    compiled = graph(lambda a, b: a @ b)
    a = torch.ones(4, 4)
    assert compiled(a, a).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(a, a).dtype is torch.bfloat16
    assert compiled(a, a).dtype is torch.float32
    with torch.no_grad():
        assert not compiled(a, a).requires_grad
    with torch.inference_mode():
        same(compiled, torch.mm, a, a)


def branches(x):
    if x.sum() > 0:
        return x * 2
    if x[0] < -5:
        return x * x
    return x - 1


def test_branches_make_one_program_a_path():
    compiled = graph(branches)
    for given in (x, -x, x * 3, -x * 2, torch.full((3,), -6.0), x, -x):
        same(compiled, branches, given)
    assert len(compiled.programs) == 3
    assert [q.answer for q in compiled.programs[0].questions] == [True]


def test_branches_under_transforms():
    function = pf.vmap(pf.grad(lambda x: branches(x).sum()))
    compiled = graph(function)
    for given in (X, -X, X):
        same(compiled, function, given)


def test_loops_and_items():
    def function(x):
        k = 0
        while x.norm() < 10 and k < 5:
            x, k = x * 2, k + 1
        return x + int(x[0].item() > 0)

    compiled = graph(function)
    for scale in (1.0, 0.1, 3.0, 1.0):
        same(compiled, function, x * scale)


def test_an_operator_on_a_path_not_taken_does_not_run():
    def function(x, n):
        if n > 2:
            return x[n - 1]
        return x[0]

    compiled, one, three = graph(function), torch.tensor(1), torch.tensor(3)
    same(compiled, function, x, three)
    same(compiled, function, x[:1], one)
    same(compiled, function, x, one)


def test_too_many_paths_are_left_to_the_function_and_said_once():
    def function(x):
        return x * round(x[0].item())

    compiled = graph(function)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k in range(12):
            same(compiled, function, torch.full((2,), float(k)))
    assert len(compiled.programs) == 8
    assert len([w for w in said if issubclass(w.category, pf.SlowFallback)]) == 1


def test_what_cannot_be_recorded_runs_and_is_said_once():
    def function(x):
        return torch.from_numpy(x.numpy() * 2)

    compiled = graph(function)
    with pytest.warns(pf.SlowFallback, match="could not be recorded"):
        same(compiled, function, x)
    same(compiled, function, -x)
    assert compiled.programs == []


def test_sizes_that_depend_on_values():
    def function(x):
        return x[x > 0].sum() + x.nonzero().sum()

    compiled = graph(function)
    for given in (x, -x, x * 0, torch.ones(3)):
        same(compiled, function, given)
    assert len(compiled.programs) == 1


def test_errors_are_the_functions_own():
    def function(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        graph(function)(x)
    with pytest.raises(RuntimeError, match=r"size|shape"):
        graph(lambda a, b: a @ b)(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError):
        graph(lambda a: a)(x, x)


def test_arguments_of_compile_are_checked():
    with pytest.raises(pf.ArgumentError, match="backend"):
        pf.compile(energy, backend="fast")
    with pytest.raises(pf.ArgumentError, match="fn must be a function"):
        pf.compile(3)
    with pytest.raises(pf.ArgumentError, match="dynamic"):
        pf.compile(energy, dynamic="yes")


def test_symbolic_batch_sizes():
    function = pf.vmap(pf.grad(energy))
    compiled = graph(function, dynamic=True)
    for n in (5, 7, 100, 3):
        same(compiled, function, torch.randn(n, 3))
    assert len(compiled.programs) == 1
    same(compiled, function, torch.randn(1, 3))
    assert len(compiled.programs) == 2
    assert compiled.programs[0].symbolic


def test_sizes_seen_to_change_become_symbols():
    function = pf.vmap(pf.grad(energy))
    compiled = graph(function)
    for n in (5, 7, 9, 11, 13):
        same(compiled, function, torch.randn(n, 3))
    assert len(compiled.programs) == 2


def test_two_sizes_that_must_agree():
    compiled = graph(lambda a, b: (a * b).sum(), dynamic=True)
    for n in (4, 6):
        same(compiled, lambda a, b: (a * b).sum(), torch.ones(n, 2), torch.ones(n, 2))
    assert len(compiled.programs) == 1
    with pytest.raises(RuntimeError):
        compiled(torch.ones(4, 2), torch.ones(6, 2))
    same(compiled, lambda a, b: (a * b).sum(), torch.ones(4, 2), torch.ones(1, 2))


def test_random_numbers_are_new_at_each_call_and_those_of_the_function():
    def function(x):
        return x + torch.rand(3)

    compiled = graph(function)
    compiled(x)
    torch.manual_seed(0)
    ours = [compiled(x), compiled(x)]
    torch.manual_seed(0)
    expected = [function(x), function(x)]
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(ours[0], ours[1])


def test_writes_to_arguments_happen():
    def function(x, out):
        out.add_(x)
        return out * 2

    compiled = graph(function)
    for _ in range(2):
        a, b = torch.ones(3), torch.ones(3)
        torch.testing.assert_close(compiled(x, a), function(x, b))
        torch.testing.assert_close(a, b)


def test_inside_transforms_it_is_the_function():
    compiled = graph(energy)
    torch.testing.assert_close(pf.grad(compiled)(x), pf.grad(energy)(x))
    torch.testing.assert_close(pf.vmap(pf.grad(compiled))(X), pf.vmap(pf.grad(energy))(X))
    torch.testing.assert_close(pf.jvp(compiled, (x,), (v,)), pf.jvp(energy, (x,), (v,)))
    torch.testing.assert_close(pf.hessian(compiled)(x), pf.hessian(energy)(x))
    outer = graph(pf.grad(compiled))
    torch.testing.assert_close(outer(x), pf.grad(energy)(x))
    assert len(outer.programs) == 1


def test_a_call_inside_vmap_on_plain_tensors():
    compiled = graph(energy)
    compiled(x)
    torch.testing.assert_close(pf.vmap(lambda a: a * compiled(x))(X), X * energy(x))


def test_name_and_document_are_kept():
    compiled = graph(energy)
    assert compiled.__name__ == "energy"
    assert compiled.__wrapped__ is energy
