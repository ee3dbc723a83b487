"""What a sample's value and derivatives should be: torch's autograd, and finite differences where it has none.

With f: x ↦ f(x), tangents v and w, cotangents u:

    J v                by autograd: the pullback u ↦ Jᵀu is linear, and its own pullback is v ↦ J v
    Jᵀ u               torch.autograd.grad
    d/dt Jᵀ(x + t v)u  by autograd: the Hessian of ⟨u, f⟩ is symmetric, so it is the gradient of ⟨Jᵀu, v⟩
    d/dt J(x + t w)v   by autograd: ⟨d/dt Jᵀ(x + t v)u, w⟩ is linear in u

Central differences in double precision, of one order less where there is one, are the second opinion on each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .compare import Tolerance, difference
from .database import Call, NothingToCompareError, TorchFailsError, first_line, widened

Tensor = torch.Tensor
Tensors = list[Tensor]
SCALES = (1.0, 0.97, 0.95, 0.93, 0.99, 0.98)
STEP = 1e-5
LONG_STEP = 1e-3  # of second differences, whose rounding error grows with the inverse square


def random_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """A normal draw like `x`, from the same numbers in every precision."""
    wide = torch.promote_types(x.dtype, torch.float64)
    return torch.randn(x.shape, generator=generator, dtype=wide).to(x.dtype)


def lane(x: Tensor, k: int, flipped: bool = True) -> Tensor:
    """The k-th of several values like `x`: the first is `x` itself."""
    moved = x * SCALES[k] if x.is_floating_point() or x.is_complex() else x.clone()
    return moved.flip(tuple(range(x.dim()))) if flipped and k % 2 else moved


def pulled(outs: Sequence[Tensor], inputs: Tensors, cotangents: Sequence[Tensor], graph: bool = False) -> Tensors:
    """Σ Jᵀu, zeros where nothing depends on an input."""
    pairs = [(o, u) for o, u in zip(outs, cotangents, strict=True) if o.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    grads = torch.autograd.grad(
        [o for o, _ in pairs], inputs, [u for _, u in pairs], allow_unused=True, create_graph=graph, retain_graph=True
    )
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]


def central(function: Callable[..., Any], points: Tensors, along: Tensors, like: Sequence[Tensor]) -> Tensors:
    """(F(x + h v) - F(x - h v)) / 2h of a function of a list, in double precision."""
    ahead, back = (
        function([widened(p) + sign * STEP * widened(d) for p, d in zip(points, along, strict=True)])
        for sign in (1, -1)
    )
    return [((a.detach() - b.detach()) / (2 * STEP)).to(x.dtype) for a, b, x in zip(ahead, back, like, strict=True)]


class Reference:
    """The right values at one sample, each worked out once and kept."""

    def __init__(self, call: Call, seed: int) -> None:
        if not call.op.supports_autograd:
            raise NothingToCompareError("the operator is not differentiable")
        if not call.places["variables"]:
            raise NothingToCompareError("no differentiable argument")
        self.call = call
        self.primals = call.at("variables")
        self.outs = stable_value(call, "variables")
        if not self.outs:
            raise NothingToCompareError("no result that can have a derivative")
        try:
            self.connected = [o.requires_grad for o in self.graph(self.primals)[1]]
        except RuntimeError as error:
            raise TorchFailsError(f"autograd records no graph: {first_line(error)}") from None
        if not any(self.connected):
            raise NothingToCompareError("the result depends on no differentiable argument")
        draw = torch.Generator().manual_seed(seed)
        self.tangents = [[random_like(x, draw) for x in self.primals] for _ in range(3)]
        self.cotangents = [[random_like(o, draw) for o in self.outs] for _ in range(3)]
        self.kept: dict[Any, Any] = {}

    def function(self, wide: bool = False) -> Callable[..., tuple[Tensor, ...]]:
        """The sample's call, with constants of its own."""
        return self.call.function("variables", wide)

    def graph(self, at: Tensors, wide: bool = False) -> tuple[Tensors, Tensors]:
        """Variables and what comes out."""
        inputs = [x.detach().clone().requires_grad_() for x in at]
        with torch.enable_grad():
            return inputs, list(self.function(wide)(*inputs))

    def once(self, key: Any, work: Callable[[], Any]) -> Any:
        """`work()`, or what it was (or raised) before."""
        if key not in self.kept:
            try:
                self.kept[key] = work()
            except Exception as error:
                self.kept[key] = error
        found = self.kept[key]
        if isinstance(found, Exception):
            raise found
        return found

    # -- by autograd ----------------------------------------------------------------------------------------------

    def pull(self, at: Tensors, u: Tensors, wide: bool = False) -> Tensors:
        """Jᵀ u."""
        inputs, outs = self.graph(at, wide)
        return pulled(outs, inputs, u)

    def pull_widely(self, at: Tensors, u: Tensors) -> Tensors:
        """Jᵀ u in double precision: in single precision a difference of large numbers is as rough as the reference."""
        found = self.pull([widened(x) for x in at], [widened(c) for c in u], wide=True)
        return [g.to(x.dtype) for g, x in zip(found, at, strict=True)]

    def push(self, at: Tensors, v: Tensors, wide: bool = False) -> Tensors:
        """J v."""
        inputs, outs = self.graph(at, wide)
        seeds = [torch.ones_like(o).requires_grad_() for o in outs]
        back = pulled(outs, inputs, seeds, graph=True)
        return pulled(back, seeds, v)

    def curve(self, at: Tensors, u: Tensors, v: Tensors) -> Tensors:
        """The Hessian of ⟨u, f⟩ times v."""
        inputs, outs = self.graph(at)
        return pulled(pulled(outs, inputs, u, graph=True), inputs, v)

    def bend(self, at: Tensors, v: Tensors, w: Tensors) -> Tensors:
        """D²f[v, w]: the pairing of `curve` with w is linear in u."""
        inputs, outs = self.graph(at)
        seeds = [torch.ones_like(o).requires_grad_() for o in outs]
        second = pulled(pulled(outs, inputs, seeds, graph=True), inputs, v, graph=True)
        return pulled(second, seeds, w)

    # -- by differences -------------------------------------------------------------------------------------------

    def values(self, at: Tensors) -> Tensors:
        """f in double precision."""
        return list(self.function(wide=True)(*[x.detach().clone() for x in at]))

    def push_differences(self, at: Tensors, v: Tensors) -> Tensors:
        """J v."""
        return central(self.values, at, v, self.outs)

    def curve_differences(self, at: Tensors, u: Tensors, v: Tensors) -> Tensors:
        """The Hessian of ⟨u, f⟩ times v."""
        wide = [widened(c) for c in u]
        return central(lambda x: self.pull(x, wide, wide=True), at, v, self.primals)

    def bend_of_pushes(self, at: Tensors, v: Tensors, w: Tensors) -> Tensors:
        """D²f[v, w], by differences of J v."""
        wide = [widened(t) for t in v]
        return central(lambda x: self.push(x, wide, wide=True), at, w, self.outs)

    def bend_differences(self, at: Tensors, v: Tensors, w: Tensors) -> Tensors:
        """D²f[v, w], by second differences."""
        h, corners = LONG_STEP, []
        for i, j in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
            shifts = [h * (i * widened(a) + j * widened(b)) for a, b in zip(v, w, strict=True)]
            corners.append(self.values([widened(x) + s for x, s in zip(at, shifts, strict=True)]))
        bent = [(a + b - c - d).detach() / (4 * h * h) for a, b, c, d in zip(*corners, strict=True)]
        return [b.to(o.dtype) for b, o in zip(bent, self.outs, strict=True)]


def stable_value(call: Call, which: str) -> Tensors:
    """The outputs at the sample."""
    try:
        twice = [[o.detach() for o in call.function(which)(*call.at(which))] for _ in range(2)]
    except Exception as error:
        raise TorchFailsError(f"the plain call: {first_line(error)}") from None
    if any(o.layout is not torch.strided for o in twice[0]):
        raise NothingToCompareError("a sparse result")
    for a, b in zip(*twice, strict=True):
        if a.shape != b.shape or difference(a, b, Tolerance(0.0, 1e-12)):
            raise NothingToCompareError("it draws numbers")
    return twice[0]
