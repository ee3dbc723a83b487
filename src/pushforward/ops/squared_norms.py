"""The square of a norm: ‖x‖² = Σ x², differentiated as that.

The chain rule through the norm, d‖x‖² = 2 ‖x‖ d‖x‖, is right everywhere, with any slope of the norm at 0. Its own derivative is
not: 2 d‖x‖ d‖x‖ + 2 ‖x‖ d²‖x‖ is 0 · ∞ at 0, and the convention that a norm is flat there gives 0 where the second derivative of
Σ x² is 2. No rule for the norm alone can say otherwise: a slope linear in the direction is 0. So once two differentiations
are nested, what a norm is the norm of is kept with its result, and a square of that result is the sum of squares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..core.level import THREAD, no_plan
from ..core.torch_private import NoFunction
from ..core.traced import SPECIAL, UNPLANNED, Traced
from .safe import SEEN

Tensor = torch.Tensor
NORM_OF = "_pushforward_norm_of"
Square = Callable[[], Tensor]


def state_of(values: tuple[Tensor, ...]) -> list[tuple[Any, int]]:
    """The tensors that values are made of, each with a number that a write into it changes."""
    found = []
    for x in values:
        while True:
            found.append((x, x._version))
            if not isinstance(x, Traced):
                break
            x = x._below()
    return found


def kept(norm: Any, square: Square, *inputs: Tensor) -> Any:
    """The norm, which knows its square for as long as nothing is written into it or into what it is the norm of."""
    if isinstance(norm, Tensor):
        no_plan()
        with NoFunction():
            if isinstance(norm, Traced):
                made: Any = norm
                made._form = UNPLANNED
            setattr(norm, NORM_OF, (square, state_of((norm, *inputs)), inputs))
    return norm


def square_of(norm: Any) -> Any:
    """The sum of squares of what a value is the norm of, or None."""
    found = norm.__dict__.get(NORM_OF) if isinstance(norm, Tensor) else None
    if found is None:
        return None
    square, before, inputs = found
    with NoFunction():
        now = state_of((norm, *inputs))
    if len(now) != len(before) or any(p is not q or m != n for (p, m), (q, n) in zip(now, before, strict=True)):
        return None
    return square()


def sum_of_squares(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Σ |x|² over some dimensions; None: all."""
    squares = (x * x.conj()).real if x.is_complex() else x * x
    dims = tuple(range(x.dim())) if dim is None else dim
    return squares.sum(dims, keepdim) if dims != () else squares


def euclidean(order: Any, x: Tensor, dim: Any) -> bool:
    """Whether this is the root of a sum of squares, also as `linalg.norm` reads it: 2 of a matrix is its largest singular value."""
    if order is None or order == "fro":
        return True
    matrix = x.dim() == 2 if dim is None else isinstance(dim, (tuple, list)) and len(dim) == 2
    return not isinstance(order, (str, Tensor)) and order == 2 and not matrix


def norms(order: Any, x: Any, dim: Any, keepdim: bool, plain: bool, call: Callable[[], Any]) -> Any:
    """The norm by `call`, known as one if it is Euclidean; `plain`: 2 means that of a matrix too."""
    out = call()
    alike = isinstance(x, Tensor) and isinstance(out, Tensor) and (out.dtype is x.dtype or x.is_complex())
    if alike and ((order == 2 and plain) or euclidean(order, x, dim)):
        return kept(out, functools.partial(sum_of_squares, x, dim, keepdim), x)
    return out


def linalg_norm(
    call: Any, A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: Any = None, dtype: Any = None
) -> Any:
    """`torch.linalg.norm`."""
    if out is not None or dtype is not None:
        return call()
    return norms(ord, A, dim, keepdim, False, call)


def vector_norm(
    call: Any, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, out: Any = None, dtype: Any = None
) -> Any:
    """`torch.linalg.vector_norm`."""
    if out is not None or dtype is not None:
        return call()
    return norms(ord, x, dim, keepdim, True, call)


def norm(
    call: Any, input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None
) -> Any:
    """`torch.norm`, of which 2 is that of a vector."""
    if out is not None or dtype is not None:
        return call()
    return norms(p, input, dim, keepdim, True, call)


def dist(call: Any, input: Any, other: Any, p: Any = 2) -> Any:
    """`torch.dist`."""
    out = call()
    return kept(out, lambda: sum_of_squares(input - other, None, False), input, other) if p == 2 else out


def cdist(call: Any, x1: Any, x2: Any, p: Any = 2.0, compute_mode: Any = None) -> Any:
    """`torch.cdist`."""
    del compute_mode
    out = call()
    if p != 2:
        return out
    return kept(out, lambda: sum_of_squares(x1.unsqueeze(-2) - x2.unsqueeze(-3), -1, False), x1, x2)


def power(call: Any, input: Any, exponent: Any, **kwargs: Any) -> Any:
    """`x ** 2`."""
    found = square_of(input) if not kwargs and type(exponent) in (int, float) and exponent == 2 else None
    return call() if found is None else found


def square(call: Any, input: Any, **kwargs: Any) -> Any:
    """`x.square()`."""
    found = None if kwargs else square_of(input)
    return call() if found is None else found


def product(call: Any, input: Any, other: Any, **kwargs: Any) -> Any:
    """`x * x`."""
    found = square_of(input) if input is other and not kwargs else None
    return call() if found is None else found


def register() -> None:
    """See calls of these functions while two differentiations are nested."""
    known: dict[Any, Any] = {
        torch.linalg.norm: linalg_norm,
        torch.linalg.vector_norm: vector_norm,
        torch.norm: norm,
        Tensor.norm: norm,
        torch.dist: dist,
        Tensor.dist: dist,
        torch.cdist: cdist,
    }
    for place in (torch, Tensor):
        known[place.pow], known[place.square] = power, square
        known[place.mul] = known[place.multiply] = product
    known[Tensor.__pow__], known[Tensor.__mul__] = power, product
    for func, seen in known.items():
        SEEN[func] = seen
        SPECIAL[func] = functools.partial(of_traced, seen, SPECIAL.get(func))


def of_traced(seen: Any, below: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The function on traced values while differentiations are nested."""
    if THREAD.order < 2 or not torch.is_grad_enabled():
        return NotImplemented if below is None else below(func, args, kwargs)
    kwargs = kwargs or {}

    def call() -> Any:
        out = NotImplemented if below is None else below(func, args, kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out

    return seen(call, *args, **kwargs)


register()
