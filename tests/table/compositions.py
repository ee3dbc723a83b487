"""Every composition of the transforms on one sample, against references of one order less.

Values against the stacked loop; first derivatives against central differences and torch.autograd; second ones against
central differences of the first. All in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import pushforward as pf

Tensor = torch.Tensor
Tensors = list[Tensor]
SCALES = (1.0, 0.95, 0.9)
STEP = 1e-5
COMPOSITIONS = ("vmap", "jvp", "vjp", "vmap(jvp)", "vmap(vjp)", "vmap(grad)", "jvp(vjp)", "jvp(jvp)", "vjp(vjp)")


def smooth(x: Any) -> bool:
    """Whether a result can have a derivative."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def tensors_of(out: Any) -> Tensors:
    """The tensors among results."""
    if isinstance(out, (list, tuple)):
        return [t for o in out for t in tensors_of(o)]
    return [out] if isinstance(out, Tensor) else []


def lane(x: Tensor, k: int) -> Tensor:
    """The k-th of several values like `x`."""
    return x * SCALES[k] if smooth(x) else x.flip(0) if k % 2 and x.dim() else x.clone()


def like(x: Tensor, seed: int) -> Tensor:
    """A direction."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def close(got: Any, expected: Tensors, tolerance: float) -> str | None:
    """None, or where results differ."""
    ours = tensors_of(got)
    if len(ours) != len(expected):
        return f"{len(ours)} results, expected {len(expected)}"
    for k, (a, e) in enumerate(zip(ours, expected, strict=True)):
        if a.shape != e.shape or a.dtype != e.dtype:
            return f"result {k} is {a.dtype}{list(a.shape)}, expected {e.dtype}{list(e.shape)}"
        a, e = a.detach().resolve_conj().resolve_neg(), e.detach().resolve_conj().resolve_neg()
        tolerance = max(tolerance, 1e-5) if e.dtype is torch.float32 else tolerance
        if not torch.allclose(a, e, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"result {k}: {a.flatten()[:4].tolist()}, expected {e.flatten()[:4].tolist()}"
    return None


def inner_product(xs: Tensors, ys: Tensors) -> Tensor:
    """Σ Re⟨x, y⟩."""
    zero = torch.zeros((), dtype=torch.float64)
    return sum((torch.real(x.conj() * y).sum() for x, y in zip(xs, ys, strict=True)), zero)


class Compositions:
    """A function at one point, seen by every composition."""

    def __init__(self, function: Callable[..., Any], given: Tensors, variables: list[int], shared: set[int]) -> None:
        self.function, self.given, self.variables, self.shared = function, given, variables, shared
        self.x = [given[k] for k in variables]
        self.v = [like(x, 1) for x in self.x]
        self.w = [like(x, 2) for x in self.x]
        self.points = [[lane(x, k) for x in self.x] for k in range(2)]

    def f(self, *variables: Tensor) -> tuple[Tensor, ...]:
        """The results that can have a derivative, of the variables alone."""
        full = [x.clone() for x in self.given]
        for k, x in zip(self.variables, variables, strict=True):
            full[k] = x
        return tuple(o for o in tensors_of(self.function(*full)) if smooth(o))

    # -- values -------------------------------------------------------------------------------------------------------

    def batched(self, smallest: int = 0) -> Iterator[tuple[str, str | None]]:
        """`vmap` with every choice of mapped arguments that matters, at the first and last dimension, of 3, 1 and 0 lanes."""
        places = [k for k in range(len(self.given)) if k not in self.shared]
        floats = [k for k in places if smooth(self.given[k])]
        choices = {tuple(places), tuple(floats), tuple(floats[:1]), tuple(floats[1:])} - {()}
        for chosen in sorted(choices):
            for dim, size in ((0, 3), (-1, 3), (0, 1), (0, 0)) if chosen == max(choices, key=len) else ((0, 3),):
                if size < smallest:
                    continue
                yield f"in_dims {dim} for {chosen}, {size} lanes", self.batched_at(chosen, dim, size)

    def batched_at(self, chosen: tuple[int, ...], dim: int, size: int) -> str | None:
        """One choice."""
        columns = {k: [lane(self.given[k], j) for j in range(max(size, 1))] for k in chosen}
        rows = []
        for j in range(max(size, 1)):
            row = [columns[k][j].clone() if k in columns else x.clone() for k, x in enumerate(self.given)]
            rows.append(tensors_of(self.function(*row)))
        if any(a.shape != e.shape for row in rows for a, e in zip(row, rows[0], strict=True)):
            return None  # sizes that depend on the data have tests of their own
        expected = [torch.stack(column)[:size] for column in zip(*rows, strict=True)]
        given = [torch.stack(columns[k], dim) if k in columns else x.clone() for k, x in enumerate(self.given)]
        given = [x.narrow(dim, 0, size) if k in columns else x for k, x in enumerate(given)]
        in_dims = tuple(dim if k in columns else None for k in range(len(given)))
        mapped = pf.vmap(lambda *a: tuple(tensors_of(self.function(*a))), in_dims=in_dims, randomness="same")
        return close(mapped(*given), expected, 1e-9)

    # -- references ---------------------------------------------------------------------------------------------------

    def differences(self, function: Callable[..., Any], at: Tensors, along: Tensors) -> Tensors:
        """(F(x + h v) - F(x - h v)) / 2h."""
        ahead, back = (
            tensors_of(function(*[x + s * STEP * d for x, d in zip(at, along, strict=True)])) for s in (1, -1)
        )
        return [(a.detach() - b.detach()) / (2 * STEP) for a, b in zip(ahead, back, strict=True)]

    def pull(self, at: Tensors, u: Tensors) -> Tensors | None:
        """Σ Jᵀu by torch.autograd; None where torch has no derivative."""
        inputs = [x.detach().clone().requires_grad_() for x in at]
        try:
            outs = self.f(*inputs)
            pairs = [(o, c) for o, c in zip(outs, u, strict=True) if o.requires_grad]
            if not pairs:
                return None
            grads = torch.autograd.grad(
                [o for o, _ in pairs], inputs, [c for _, c in pairs], allow_unused=True, materialize_grads=True
            )
        except (RuntimeError, NotImplementedError):
            return None
        return list(grads)

    def has_double_backward(self, u: Tensors) -> bool:
        """Whether torch differentiates its own reverse formula."""
        inputs = [x.detach().clone().requires_grad_() for x in self.x]
        try:
            outs = [(o, c) for o, c in zip(self.f(*inputs), u, strict=True) if o.requires_grad]
            grads = torch.autograd.grad(
                [o for o, _ in outs], inputs, [c for _, c in outs], create_graph=True, allow_unused=True
            )
            live = [g for g in grads if g is not None and g.requires_grad]
            if live:
                torch.autograd.grad(live, inputs, [torch.ones_like(g) for g in live], allow_unused=True)
        except (RuntimeError, NotImplementedError):
            return False
        return True

    # -- what the library gives ---------------------------------------------------------------------------------------

    def push(self, *given: Tensor) -> tuple[Tensor, ...]:
        """J v as a function of x and v."""
        count = len(self.x)
        return pf.jvp(self.f, tuple(given[:count]), tuple(given[count:]))[1]

    def pullback(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Jᵀ u as a function of x and u."""
        count = len(self.x)
        return pf.vjp(self.f, *given[:count])[1](tuple(given[count:]))

    def differentiated(self, orders: int = 2, reverse: bool = True) -> Iterator[tuple[str, str | None]]:
        """Every composition with a derivative in it, up to an order."""
        count = len(self.x)
        outs = [o.detach() for o in self.f(*self.x)]
        u, du = [like(o, 3) for o in outs], [like(o, 4) for o in outs]
        tangent = self.differences(self.f, self.x, self.v)
        yield "jvp", close(pf.jvp(self.f, tuple(self.x), tuple(self.v)), [*outs, *tangent], 1e-5)
        rows = [tangent, self.differences(self.f, self.points[1], self.w)]
        stacked = [torch.stack(z) for z in zip(*self.points, strict=True)]
        along = [torch.stack(z) for z in zip(self.v, self.w, strict=True)]
        vmap = lambda f: pf.vmap(f, randomness="same")
        expected = [torch.stack(z) for z in zip(*rows, strict=True)]
        yield "vmap(jvp)", close(vmap(self.push)(*stacked, *along), expected, 1e-5)
        if orders > 1:
            inner = lambda *x: self.push(*x, *self.v)
            second = self.differences(inner, self.x, self.w)
            yield "jvp(jvp)", close(pf.jvp(inner, tuple(self.x), tuple(self.w))[1], second, 1e-5)
        first = self.pull(self.x, u)
        if first is None or not reverse:
            return
        yield "vjp against differences", close(inner_product(first, self.v), [inner_product(u, tangent)], 1e-5)
        yield "vjp", close(self.pullback(*self.x, *u), first, 1e-9)
        rows = [first, self.pull(self.points[1], du)]
        expected = [torch.stack(z) for z in zip(*rows, strict=True)]
        cotangents = [torch.stack(z) for z in zip(u, du, strict=True)]
        yield "vmap(vjp)", close(vmap(self.pullback)(*stacked, *cotangents), expected, 1e-9)
        scalar = lambda *x: sum(torch.real(c.conj() * o).sum() for c, o in zip(u, self.f(*x), strict=True))
        rows = [first, self.pull(self.points[1], u)]
        expected = [torch.stack(z) for z in zip(*rows, strict=True)]
        yield "vmap(grad)", close(vmap(pf.grad(scalar, tuple(range(count))))(*stacked), expected, 1e-9)
        if orders < 2:
            return
        curve = self.differences(lambda *x: self.pull(list(x), u), self.x, self.v)
        expected = [a + b for a, b in zip(curve, self.pull(self.x, du), strict=True)]
        got = pf.jvp(self.pullback, (*self.x, *u), (*self.v, *du))[1]
        yield "jvp(vjp)", close(got, expected, 1e-5)
        if self.has_double_backward(u):
            got = pf.vjp(self.pullback, *self.x, *u)[1](tuple(self.v))
            yield "vjp(vjp)", close(got, [*curve, *tangent], 1e-5)
