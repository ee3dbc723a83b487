"""How each transform is written, once for every library with torch.func's signatures, and by plain autograd.

A builder takes the library and the problem and gives a call without arguments, which is what is timed. Transforms
are applied inside the call, as people write them in a loop, so nothing is prepared outside of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .problem import Problem

Call = Callable[[], Any]
Builder = Callable[[Any, Problem], Call]


def vmap(T: Any, p: Problem) -> Call:
    """The function over a batch."""
    return lambda: T.vmap(p.func, p.in_dims)(*p.batch)


def jvp(T: Any, p: Problem) -> Call:
    """The value and one directional derivative."""
    return lambda: T.jvp(p.of_primals(p.func), p.primals, p.tangents)


def grad(T: Any, p: Problem) -> Call:
    """The gradient of the scalar."""
    return lambda: T.grad(p.scalar, p.argnums)(*p.args)


def vmap_grad(T: Any, p: Problem) -> Call:
    """One gradient for each example of a batch."""
    return lambda: T.vmap(T.grad(p.scalar, p.argnums), p.in_dims)(*p.batch)


def vmap_jvp(T: Any, p: Problem) -> Call:
    """Many directional derivatives at one point."""
    func, primals = p.of_primals(p.func), p.primals
    return lambda: T.vmap(lambda *tangents: T.jvp(func, primals, tangents)[1])(*p.directions)


def jvp_grad(T: Any, p: Problem) -> Call:
    """The gradient and a Hessian-vector product, forward over reverse."""
    return lambda: T.jvp(p.of_primals(T.grad(p.scalar, p.argnums)), p.primals, p.tangents)


def jacfwd(T: Any, p: Problem) -> Call:
    """The Jacobian, column by column."""
    return lambda: T.jacfwd(p.func, p.argnums)(*p.point)


def jacrev(T: Any, p: Problem) -> Call:
    """The Jacobian, row by row."""
    return lambda: T.jacrev(p.func, p.argnums)(*p.point)


def hessian(T: Any, p: Problem) -> Call:
    """The matrix of second derivatives of the scalar."""
    return lambda: T.hessian(p.scalar, p.argnums)(*p.point)


def linearize(T: Any, p: Problem) -> Call:
    """The value and the derivative as a linear function, applied once."""

    def call() -> Any:
        output, push = T.linearize(p.of_primals(p.func), *p.primals)
        return output, push(*p.tangents)

    return call


def linearized_push(T: Any, p: Problem) -> Call:
    """One use of the linear function that ``linearize`` gave before."""
    _, push = T.linearize(p.of_primals(p.func), *p.primals)
    return lambda: push(*p.tangents)


BUILDERS: dict[str, Builder] = {
    "vmap": vmap,
    "jvp": jvp,
    "grad": grad,
    "vmap(grad)": vmap_grad,
    "vmap(jvp)": vmap_jvp,
    "jvp(grad)": jvp_grad,
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "hessian": hessian,
    "linearize": linearize,
    "linearized push": linearized_push,
}


# The same by plain autograd, where it does the same: no batching, so nothing with vmap in it.


def leaves_of(p: Problem) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
    """The differentiated arguments as fresh leaves of a graph, as a pytree and as a list."""
    primals = tree_map(lambda x: x.detach().requires_grad_(), p.primals)
    return primals, tree_flatten(primals)[0]


def packed(p: Problem, flat: Any) -> Any:
    """A list of gradients in the structure that ``grad`` returns."""
    tree = tree_unflatten(list(flat), tree_flatten(p.primals)[1])
    return tree[0] if p.active == 1 else tree


def plain_jvp(p: Problem) -> Call:
    """Forward mode by dual tensors."""
    func = p.of_primals(p.func)

    def call() -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(func(*tree_map(forward_ad.make_dual, p.primals, p.tangents)))
            return dual.primal, dual.tangent

    return call


def plain_grad(p: Problem) -> Call:
    """One backward pass."""
    scalar = p.of_primals(p.scalar)

    def call() -> Any:
        primals, leaves = leaves_of(p)
        return packed(p, torch.autograd.grad(scalar(*primals), leaves))

    return call


def plain_jvp_grad(p: Problem) -> Call:
    """A Hessian-vector product by two backward passes; the Hessian is symmetric, so it is the same product."""
    scalar = p.of_primals(p.scalar)
    tangents = tree_flatten(p.tangents)[0]

    def call() -> Any:
        primals, leaves = leaves_of(p)
        first = torch.autograd.grad(scalar(*primals), leaves, create_graph=True)
        second = torch.autograd.grad(first, leaves, tangents, materialize_grads=True, allow_unused=True)
        return packed(p, [g.detach() for g in first]), packed(p, second)

    return call


def plain_jacrev(p: Problem) -> Call:
    """One backward pass for each output."""
    point = p.point[0] if p.active == 1 else p.point
    return lambda: torch.autograd.functional.jacobian(p.func, point)


def plain_hessian(p: Problem) -> Call:
    """Two backward passes for each input."""
    point = p.point[0] if p.active == 1 else p.point
    return lambda: torch.autograd.functional.hessian(p.scalar, point)


PLAIN: dict[str, Callable[[Problem], Call]] = {
    "jvp": plain_jvp,
    "grad": plain_grad,
    "jvp(grad)": plain_jvp_grad,
    "jacrev": plain_jacrev,
    "hessian": plain_hessian,
}


def plain_forward(p: Problem) -> Call:
    """The function itself, without gradients: what a forward pass must cost at least."""

    def call() -> Any:
        with torch.no_grad():
            return p.func(*p.args)

    return call
