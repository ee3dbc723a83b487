"""Worked examples by value: batching, forward and reverse mode as their documentation tells them."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree

import pushforward as pf

D = torch.float64
close = torch.testing.assert_close


def tensor(*numbers):
    return torch.tensor(numbers, dtype=D)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


# -- batching -----------------------------------------------------------------------------------------------------------


def test_dot_of_rows():
    x, y = random(4, 3), random(4, 3, seed=1)
    close(pf.vmap(torch.dot)(x, y), (x * y).sum(1))
    close(pf.vmap(torch.dot, in_dims=1)(x.mT, y.mT), (x * y).sum(1))
    close(pf.vmap(torch.dot, in_dims=(0, None))(x, y[0]), x @ y[0])


def test_a_model_of_one_feature_vector_maps_over_examples():
    w = random(3).requires_grad_()
    examples = random(5, 3, seed=1)
    model = lambda features: features.dot(w).relu()
    close(pf.vmap(model)(examples), torch.stack([model(e) for e in examples]))


def test_nested_vmap_is_the_table_of_all_pairs():
    x, y = random(4, 3), random(5, 3, seed=1)
    close(pf.vmap(lambda a: pf.vmap(lambda b: torch.dot(a, b))(y))(x), x @ y.mT)
    table = pf.vmap(pf.vmap(torch.mul, in_dims=(None, 0)), in_dims=(0, None))(x, y)
    close(table, x[:, None] * y)


def test_in_dims_and_out_dims_of_every_form():
    x, y = random(2, 5, 3), random(5, 3, seed=1)
    close(pf.vmap(lambda a, b: a + b, in_dims=(1, 0), out_dims=-1)(x, y), (x + y).movedim(1, -1))
    close(pf.vmap(lambda a, b: a + b, in_dims=(-2, None))(x, y[0]), (x + y[0]).movedim(1, 0))
    as_dict = lambda d: {"sum": d["a"] + d["b"], "kept": d["b"]}
    given = {"a": x, "b": y}
    for in_dims in ({"a": 1, "b": 0}, ({"a": 1, "b": 0},)):
        out = pf.vmap(as_dict, in_dims=in_dims, out_dims={"sum": 2, "kept": 0})(given)
        close(out, {"sum": (x + y).movedim(1, 2), "kept": y})
    close(pf.vmap(lambda pair: pair[0][0] * pair[1], in_dims=(([1], 0),))(([x], y)), (x * y).movedim(1, 0))


def test_keyword_arguments_are_mapped_over_their_first_dimension():
    x, y = random(4, 3), random(4, seed=1)
    close(pf.vmap(lambda a, scale: a * scale)(x, scale=y), x * y[:, None])


def test_outputs_may_hold_none_and_python_values():
    out = pf.vmap(lambda a: (a, None, 3, {"name": "lane", "b": [a.sum()]}))(x := random(2, 3))
    close(out[0], x)
    assert out[1:3] == (None, 3)
    assert out[3]["name"] == "lane"
    close(out[3]["b"][0], x.sum(1))


@pytest.mark.parametrize("size", [0, 1, 5, 7])
@pytest.mark.parametrize("chunk_size", [None, 1, 3, 100])
def test_chunks_give_the_same(size, chunk_size):
    x = random(size, 3)
    close(pf.vmap(lambda a: a.sin().sum(), chunk_size=chunk_size)(x), x.sin().sum(1))


def test_the_basis_trick_gives_the_jacobian_in_one_call():
    x = random(3).requires_grad_()
    y = x.sin() * x.sum()
    jacobian = pf.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(torch.eye(3, dtype=D))
    close(jacobian, torch.diag(x.cos() * x.sum()) + x.sin()[:, None].expand(3, 3))


def test_vmap_of_autograds_own_vjp_gives_gradients_by_sample():
    w, samples = random(3), random(5, 3, seed=1)
    grads = pf.vmap(lambda s: torch.autograd.functional.vjp(lambda v: torch.dot(s, v), w)[1])(samples)
    close(grads, samples)


# -- forward mode ---------------------------------------------------------------------------------------------------------


def three(x):
    """(x0 x1, x1², sin x0)."""
    return torch.stack([x[0] * x[1], x[1] ** 2, x[0].sin()])


AT = tensor(2, 3)
JACOBIAN = torch.tensor([[3, 2], [0, 6], [math.cos(2), 0]], dtype=D)


def test_columns_of_the_jacobian():
    assert abs(float(JACOBIAN[2, 0]) + 0.4161) < 1e-4
    value, first = pf.jvp(three, (AT,), (tensor(1, 0),))
    close(value, tensor(6, 9, math.sin(2)))
    close(first, JACOBIAN[:, 0])
    close(pf.jvp(three, (AT,), (tensor(0, 1),))[1], JACOBIAN[:, 1])
    close(pf.jvp(three, (AT,), (tensor(-2, 5),))[1], JACOBIAN @ tensor(-2, 5))
    for jacobian in (pf.jacfwd, pf.jacrev, pf.jacobian):
        close(jacobian(three)(AT), JACOBIAN)
    close(pf.vmap(lambda v: pf.jvp(three, (AT,), (v,))[1])(torch.eye(2, dtype=D)), JACOBIAN.mT)


def test_the_square_at_two():
    value, tangent = pf.jvp(lambda x: x**2, (torch.tensor(2.0),), (torch.tensor(1.0),))
    assert (float(value), float(tangent)) == (4.0, 4.0)


def test_a_zero_tangent_selects_inputs():
    x, y = random(3), random(3, seed=1)
    one, zero = torch.ones(3, dtype=D), torch.zeros(3, dtype=D)
    close(pf.jvp(torch.mul, (x, y), (one, zero))[1], y)
    close(pf.jvp(torch.mul, (x, y), (one, None))[1], y)


def test_the_tangent_has_the_structure_of_the_output():
    out, tangent = pf.jvp(lambda x: {"double": 2 * x, "rest": (x.sin(), [x**2])}, (AT,), (tensor(1, 1),))
    close(tangent, {"double": tensor(2, 2), "rest": (AT.cos(), [2 * AT])})
    assert _pytree.tree_structure(out) == _pytree.tree_structure(tangent)


def test_aux():
    assert pf.jvp(lambda x: (x**2, "aux"), (AT,), (AT,), has_aux=True)[2] == "aux"
    out, pull, aux = pf.vjp(lambda x: (x**2, {"seen": x + 1}), AT, has_aux=True)
    close(pull(torch.ones_like(out))[0], 2 * AT)
    close(aux["seen"], AT + 1)
    gradient, aux = pf.grad(lambda x: ((x**2).sum(), x.sum()), has_aux=True)(AT)
    close(gradient, 2 * AT)
    close(aux, AT.sum())
    gradient, (value, aux) = pf.grad_and_value(lambda x: ((x**2).sum(), 7), has_aux=True)(AT)
    close((gradient, value), (2 * AT, (AT**2).sum()))
    assert aux == 7
    for transform in (pf.jacfwd, pf.jacrev):
        jacobian, aux = transform(lambda x: (three(x), x.sum()), has_aux=True)(AT)
        close((jacobian, aux), (JACOBIAN, AT.sum()))
    hessian, aux = pf.hessian(lambda x: ((x**3).sum(), 1), has_aux=True)(AT)
    close(hessian, torch.diag(6 * AT))
    assert aux == 1


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 9])
def test_chunks_of_directions(chunk_size):
    close(pf.jacfwd(three, chunk_size=chunk_size)(AT), JACOBIAN)
    close(pf.jacrev(three, chunk_size=chunk_size)(AT), JACOBIAN)
    close(pf.hessian(lambda x: (x**3).sum(), chunk_size=chunk_size)(AT), torch.diag(6 * AT))


def test_dual_numbers_by_hand():
    ad = pf.forward_ad
    with ad.dual_level():
        x = ad.make_dual(AT, tensor(1, 0))
        primal, tangent = ad.unpack_dual(three(x))
        close(tangent, JACOBIAN[:, 0])
        close(primal, three(AT))
        assert ad.unpack_dual(AT).tangent is None
    with pytest.raises(pf.TransformError, match=r"closed|ended|over"):
        x + 1


def test_a_number_is_a_point_too():
    x = torch.tensor(0.3, dtype=D)
    for derivative, expected in (
        (pf.grad, x.cos()),
        (pf.jacfwd, x.cos()),
        (pf.jacrev, x.cos()),
        (pf.jacobian, x.cos()),
    ):
        close(derivative(torch.sin)(x), expected)
        close(pf.vmap(derivative(torch.sin))(x.expand(2)), expected.expand(2))
    close(pf.hessian(torch.sin)(x), -x.sin())
    close(pf.vmap(pf.hessian(torch.sin))(x.expand(2)), -x.sin().expand(2))


# -- reverse mode ---------------------------------------------------------------------------------------------------------


def test_arguments_by_position_and_by_name():
    f = lambda a, b, c=2.0: (a * b**2 * c).sum()
    a, b = random(3), random(3, seed=1)
    by_a, by_b = 2 * b**2, 4 * a * b
    close(pf.grad(f)(a, b), by_a)
    close(pf.grad(f, argnums=1)(a, b), by_b)
    close(pf.grad(f, argnums=-1)(a, b), by_b)
    close(pf.grad(f, argnums="b")(a, b), by_b)
    close(pf.grad(f, argnums=("a", "b"))(a, b), (by_a, by_b))
    close(pf.grad(f, argnums=(1, 0))(a, b), (by_b, by_a))
    close(pf.jacrev(lambda a, b: a * b, argnums="b")(a, b), torch.diag(a))
    close(pf.jacfwd(lambda a, b: a * b, argnums="b")(a, b), torch.diag(a))


def test_a_pullback_can_be_called_again_and_mapped():
    out, pull = pf.vjp(three, AT)
    u, v = random(3), random(3, seed=1)
    close(pull(u)[0], JACOBIAN.mT @ u)
    close(pull(v)[0], JACOBIAN.mT @ v)
    close(pf.vmap(pull)(torch.eye(3, dtype=D))[0], JACOBIAN)
    close(out, three(AT))


def test_linearize_reuses_the_point():
    def branching(x):
        return x.sin() * x if x.sum() > 0 else x

    out, push = pf.linearize(branching, AT)
    close(out, AT.sin() * AT)
    close(pf.vmap(push)(torch.eye(2, dtype=D)), torch.diag(AT.cos() * AT + AT.sin()))


# -- pytrees --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class State:
    position: torch.Tensor
    momentum: torch.Tensor
    label: str = "state"


class Point(NamedTuple):
    position: torch.Tensor
    momentum: torch.Tensor


class Output(collections.OrderedDict):
    """A dictionary that is indexed by attribute too, as models of the transformers library return one."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


_pytree.register_pytree_node(
    Output,
    lambda o: (list(o.values()), list(o)),
    lambda values, keys: Output(zip(keys, values, strict=True)),
    flatten_with_keys_fn=lambda o: ([(_pytree.MappingKey(k), v) for k, v in o.items()], list(o)),
)
CONTAINERS = {
    "dataclass": State,
    "namedtuple": Point,
    "OrderedDict": lambda x, y: collections.OrderedDict(position=x, momentum=y),
    "registered": lambda x, y: Output(position=x, momentum=y),
}


def part(state, name):
    return state[name] if isinstance(state, dict) else getattr(state, name)


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_go_through_every_transform(name):
    make = CONTAINERS[name]
    x, y = random(2, 3), random(2, 3, seed=1)

    def step(state):
        return make(part(state, "position") * part(state, "momentum"), part(state, "momentum").sin())

    def energy(state):
        return (part(state, "position") * part(state, "momentum").sin()).sum()

    out = pf.vmap(step)(make(x, y))
    assert type(out) is type(make(x, y))
    close(part(out, "position"), x * y)
    tangent = pf.jvp(step, (make(x[0], y[0]),), (make(x[1], y[1]),))[1]
    close(part(tangent, "position"), x[0] * y[1] + x[1] * y[0])
    gradient = pf.grad(energy)(make(x[0], y[0]))
    assert type(gradient) is type(make(x, y))
    close(part(gradient, "position"), y[0].sin())
    by_sample = pf.vmap(pf.grad(energy))(make(x, y))
    close(part(by_sample, "momentum"), x * y.cos())
    close(part(pf.jvp(pf.grad(energy), (make(x[0], y[0]),), (make(x[1], y[1]),))[1], "position"), y[0].cos() * y[1])


# -- messages -------------------------------------------------------------------------------------------------------------

MESSAGES = {
    "shapes of a tangent": (
        lambda: pf.jvp(lambda p: p["w"] * 2, ({"w": random(3)},), ({"w": random(2)},)),
        [r"primals\[0\]\['w'\]", r"\[3\]", r"tangents\[0\]\['w'\]", r"\[2\]"],
    ),
    "dtypes of a tangent": (
        lambda: pf.jvp(torch.sin, (random(3),), (random(3).float(),)),
        [r"primals\[0\]", "float64", "float32"],
    ),
    "structure of the tangents": (
        lambda: pf.jvp(lambda p: p["w"] * 2, ({"w": random(3)},), ({"v": random(3)},)),
        ["structures differ", "'w'", "'v'"],
    ),
    "a list for a tuple": (
        lambda: pf.jvp(lambda p: p[0] * 2, ((random(3),),), ({"a": random(3)},)),
        ["structures differ"],
    ),
    "number of tangents": (lambda: pf.jvp(torch.mul, (AT, AT), (AT,)), ["2 primals", "1 tangents"]),
    "sizes of lanes": (
        lambda: pf.vmap(torch.dot)(random(2, 3), random(4, 3)),
        [r"args\[0\]: shape \[2, 3\]", r"args\[1\]: shape \[4, 3\]", "size 4"],
    ),
    "in_dims out of range": (
        lambda: pf.vmap(lambda d: d["a"], in_dims=({"a": 2},))({"a": random(2, 3)}),
        [r"in_dim 2 of args\[0\]\['a'\]", r"shape \[2, 3\]"],
    ),
    "nothing mapped": (lambda: pf.vmap(torch.sin, in_dims=None)(random(2)), ["no input is mapped"]),
    "cotangent": (lambda: pf.vjp(torch.sin, random(3))[1](random(2)), [r"\[2\]", r"\[3\]"]),
    "no scalar": (lambda: pf.grad(torch.sin)(random(3)), ["scalar", r"\[3\]"]),
    "no such argument": (lambda: pf.grad(lambda a, b: a * b, argnums="c")(AT, AT), ["'c'", "a, b"]),
    "position out of range": (lambda: pf.grad(lambda a: a, argnums=3)(AT), ["argument 3 is out of range"]),
    "size of chunks": (lambda: pf.vmap(torch.sin, chunk_size=0)(AT), ["chunk_size is 0"]),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_name_the_argument_and_both_sides(name):
    call, patterns = MESSAGES[name]
    with pytest.raises(pf.ArgumentError) as caught:
        call()
    for pattern in patterns:
        assert caught.match(pattern)
