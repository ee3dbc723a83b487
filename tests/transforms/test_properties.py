"""Properties of the transforms on random shapes, dimensions and nestings: what the stacked loop and the chain rule say."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pushforward as pf

D = torch.float64
close = torch.testing.assert_close
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def random(shape, seed):
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=D)


UNARY = {
    "sin": torch.sin,
    "sum of squares": lambda x: (x * x).sum(),
    "softmax": lambda x: x.reshape(-1).softmax(0),
    "cumulative": lambda x: x.reshape(-1).cumsum(0) * 2,
    "last row": lambda x: x[-1:] if x.dim() else x,
    "written": lambda x: torch.zeros_like(x).add_(x).mul_(x),
    "in two": lambda x: (x + 1, {"cos": x.cos()}),
}
BINARY = {
    "product": lambda x, y: x * y,
    "outer": lambda x, y: x.reshape(-1)[:, None] * y.reshape(-1),
    "dot": lambda x, y: x.sum() * y.sin().sum(),
    "joined": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]).tanh(),
}
SHAPES = st.lists(st.integers(0, 3), max_size=3)
SMOOTH = ("sin", "sum of squares", "softmax", "written")


def leaves(out):
    return torch.utils._pytree.tree_leaves(out)


def stacked(rows):
    return [torch.stack(column) for column in zip(*[leaves(row) for row in rows], strict=True)]


@st.composite
def mapped(draw, sizes=(0, 1, 2, 3)):
    """A value of one lane's shape, its lanes at some dimension, and that dimension as it is said."""
    shape = draw(SHAPES)
    size = draw(st.sampled_from(sizes))
    dim = draw(st.integers(-len(shape) - 1, len(shape)))
    lanes = random((size, *shape), draw(st.integers(0, 99)))
    return lanes, lanes.movedim(0, dim), dim


@quick
@given(st.sampled_from(sorted(UNARY)), mapped(sizes=(1, 2, 3)), st.data())
def test_vmap_is_the_stacked_loop(name, value, data):
    lanes, given_, dim = value
    f = UNARY[name]
    rows = [f(lane) for lane in lanes]
    smallest = min(leaf.dim() for leaf in leaves(rows[0]))
    out_dim = data.draw(st.integers(-smallest - 1, smallest))
    got = leaves(pf.vmap(f, in_dims=dim, out_dims=out_dim)(given_))
    for a, e in zip(got, stacked(rows), strict=True):
        close(a, e.movedim(0, out_dim))


@quick
@given(st.sampled_from(sorted(UNARY)), mapped(sizes=(0,)))
def test_no_lanes_have_the_sizes_of_a_lane(name, value):
    lanes, given_, dim = value
    f = UNARY[name]
    one = leaves(f(torch.ones(lanes.shape[1:], dtype=D)))
    got = leaves(pf.vmap(f, in_dims=dim)(given_))
    assert [tuple(g.shape) for g in got] == [(0, *o.shape) for o in one]


@quick
@given(
    st.sampled_from(sorted(BINARY)),
    mapped(sizes=(2,)),
    mapped(sizes=(2,)),
    st.sampled_from(["both", "first", "second"]),
)
def test_each_argument_is_mapped_or_shared(name, first, second, which):
    f = BINARY[name]
    (x, x_in, x_dim), (y, y_in, y_dim) = first, second
    if name == "product":
        y, y_in, y_dim = x.cos(), x_in.cos(), x_dim
    in_dims = (x_dim if which != "second" else None, y_dim if which != "first" else None)
    args = (x_in if which != "second" else x[0], y_in if which != "first" else y[0])
    rows = [f(x[k if which != "second" else 0], y[k if which != "first" else 0]) for k in range(2)]
    close(pf.vmap(f, in_dims=in_dims)(*args), torch.stack(rows))


def packed(lanes, dims):
    """Lanes of lanes, each level's dimension at the place that is said for it."""
    return torch.stack([packed(row, dims[1:]) for row in lanes], dims[0]) if dims else lanes


@quick
@given(st.sampled_from(sorted(UNARY)), st.lists(st.integers(1, 2), min_size=1, max_size=3), SHAPES, st.data())
def test_nested_vmap_is_the_nested_loop(name, sizes, shape, data):
    f = UNARY[name]
    lanes = random((*sizes, *shape), 7)
    ranks = [len(shape) + len(sizes) - k for k in range(len(sizes))]
    dims = [data.draw(st.integers(-rank, rank - 1)) for rank in ranks]
    nested = f
    for dim in reversed(dims):
        nested = pf.vmap(nested, in_dims=dim)
    rows = [f(lane) for lane in lanes.flatten(0, len(sizes) - 1)]
    for a, e in zip(leaves(nested(packed(lanes, dims))), stacked(rows), strict=True):
        close(a, e.unflatten(0, sizes))


@quick
@given(st.sampled_from(SMOOTH), SHAPES, st.floats(-2, 2), st.floats(-2, 2))
def test_jvp_is_linear_in_the_direction(name, shape, a, b):
    f = UNARY[name]
    x, v, w = (random(shape, k) for k in range(3))
    push = lambda t: pf.jvp(f, (x,), (t,))[1]
    close(push(a * v + b * w), a * push(v) + b * push(w))


@quick
@given(st.sampled_from(SMOOTH), SHAPES)
def test_forward_and_reverse_are_transposes(name, shape):
    f = UNARY[name]
    x, v = random(shape, 1), random(shape, 2)
    out, pull = pf.vjp(f, x)
    u = random(out.shape, 3)
    value, tangent = pf.jvp(f, (x,), (v,))
    close(value, out)
    close((u * tangent).sum(), (pull(u)[0] * v).sum())


@quick
@given(st.sampled_from(SMOOTH), st.sampled_from(SMOOTH), st.lists(st.integers(1, 3), max_size=2))
def test_the_chain_rule(outer, inner, shape):
    f, g = UNARY[outer], UNARY[inner]
    x, v = random(shape, 1), random(shape, 2)
    y, t = pf.jvp(g, (x,), (v,))
    close(pf.jvp(lambda z: f(g(z)), (x,), (v,)), pf.jvp(f, (y,), (t,)))


NESTED = {
    "vmap": lambda f: lambda x: pf.vmap(f)(torch.stack([x, x]))[0],
    "jvp": lambda f: lambda x: pf.jvp(f, (x,), (torch.cos(x.detach()),))[1],
    "grad": lambda f: lambda x: (pf.grad(f)(x) * torch.cos(x.detach())).sum(),
    "linearize": lambda f: lambda x: pf.linearize(f, x)[1](torch.cos(x.detach())),
}


@settings(quick, max_examples=60)
@given(st.lists(st.sampled_from(sorted(NESTED)), min_size=1, max_size=4), st.integers(1, 3))
def test_every_nesting_differentiates_as_often_as_it_says(names, size):
    """f(x) = Σ exp(a x): each derivative along cos x gives Σ aᵏ cosᵏ(x) exp(a x), with the direction held fixed."""
    a = 0.5
    f = lambda x: torch.exp(a * x).sum()
    for name in reversed(names):
        f = NESTED[name](f)
    x = random((size,), 5)
    order = sum(name != "vmap" for name in names)
    close(f(x), (a**order * x.cos() ** order * torch.exp(a * x)).sum())


@quick
@given(st.sampled_from(SMOOTH), st.lists(st.integers(1, 2), max_size=2), st.integers(1, 3))
def test_vmap_commutes_with_derivatives(name, shape, size):
    f = lambda x: UNARY[name](x).sum()
    x, v = random((size, *shape), 1), random((size, *shape), 2)
    close(pf.vmap(pf.grad(f))(x), pf.grad(lambda z: pf.vmap(f)(z).sum())(x))
    close(pf.vmap(lambda p, t: pf.jvp(f, (p,), (t,))[1])(x, v), pf.jvp(pf.vmap(f), (x,), (v,))[1])


@quick
@given(st.sampled_from(SMOOTH), st.lists(st.integers(1, 2), max_size=2), st.sampled_from([None, 1, 2, 5]))
def test_jacobians_of_both_modes_agree(name, shape, chunk_size):
    f, x = UNARY[name], random(shape, 1)
    forward = pf.jacfwd(f, chunk_size=chunk_size)(x)
    close(forward, pf.jacrev(f, chunk_size=chunk_size)(x))
    assert forward.shape == (*f(x).shape, *x.shape)
