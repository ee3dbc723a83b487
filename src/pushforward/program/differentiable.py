"""Programs that autograd can differentiate: a forward program, and a program of its vector-Jacobian product.

The product is recorded from the user's function itself, with autograd alive, and not from the forward graph, where
the user's own `.detach()` can no longer be told from the engine's. It is again a differentiable program, so that
there are derivatives of any order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.errors import TransformError
from ..core.fresh import fresh
from .backends import runner, say_once
from .homes import same_memory
from .program import Program, build
from .simplify import drop_unused
from .torch_private import mode_count

Tensor = torch.Tensor
Live = Callable[..., list[Tensor]]


def smooth(x: Tensor) -> bool:
    """Whether a result has derivatives."""
    return x.is_floating_point() or x.is_complex()


class Flat:
    """A program as a function of one list of inputs, compiled when first called, differentiable by autograd.

    `live` is the same as ordinary code: a function of the argument tensors alone, which reads what is captured from
    where it is.
    """

    def __init__(self, program: Program, live: Live, backend: str) -> None:
        self.program = program
        self.live = live
        self.backend = backend
        self.arguments = len(program.places)
        self._run: Any = None
        self._pulls: dict[Any, Any] = {}

    @property
    def run(self) -> Callable[[list[Any]], Any]:
        """The compiled program, without autograd."""
        if self._run is None:
            p = self.program
            graph = without_questions(p) if p.questions else p.graph
            self._run = runner(self.backend, graph, p.constants, p.mode, symbolic=p.symbolic)
        return self._run

    def __call__(self, inputs: list[Any]) -> Any:
        """Run, recorded by autograd where grad mode is on and an input requires grad."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            return Recorded.apply(self, *inputs)
        return self.run(inputs)

    def pull(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Callable[[list[Tensor]], Any]:
        """Cotangents times the Jacobian by the inputs that require grad; made at the first backward pass."""
        if mode_count() or any(type(c) is not Tensor for c in cotangents):
            return by_hand(self, inputs)  # the backward pass of a transform under way: it sees ordinary code
        key = tuple((x.shape, x.requires_grad) for x in inputs)
        found = self._pulls.get(key)
        if found is None:
            found = self._pulls[key] = make_pull(self, inputs, cotangents)
        return found


class Recorded(torch.autograd.Function):
    """One call of a program in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, flat: Flat, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the compiled program."""
        outs = tuple(flat.run(list(inputs)))
        ctx.flat = flat
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*[o for o in outs if not smooth(o)])
        ctx.smooth = [smooth(o) for o in outs]
        return outs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        """Run the compiled program of the product; it is recorded in turn under `create_graph`."""
        inputs = ctx.saved_tensors
        given = [c.contiguous() for c, s in zip(cotangents, ctx.smooth, strict=True) if s]
        grads = iter(ctx.flat.pull(inputs, given)([*inputs, *given]))
        return (None, *[next(grads) if x.requires_grad else None for x in inputs])


def without_questions(program: Program) -> torch.fx.Graph:
    """The graph without the outputs that only guards read."""
    graph = copy.deepcopy(program.graph)
    for old, new in zip(program.graph.nodes, graph.nodes, strict=True):
        new.meta = dict(old.meta)
    output = next(n for n in graph.nodes if n.op == "output")
    output.args = (output.args[0][: len(program.out_places)],)
    drop_unused(graph)
    return graph


def product_of(flat: Flat, inputs: Sequence[Tensor]) -> Live:
    """The product as ordinary code: a function of arguments and cotangents, by those `inputs` that require grad."""
    n = flat.arguments
    wanted = [x.requires_grad for x in inputs]
    captured = list(inputs[n:])
    check_unchanged(flat.program, captured)

    def product(*xs: Tensor) -> list[Tensor]:
        with torch.enable_grad():  # the engine's backward pass has it off
            variables = [fresh(x) if w else x for x, w in zip(xs[:n], wanted, strict=False)]
            outs = [o for o in flat.live(*variables) if smooth(o)]
        by = [v for v, w in zip([*variables, *captured], wanted, strict=True) if w]
        live = [(o, c) for o, c in zip(outs, xs[n:], strict=True) if o.requires_grad]
        if not live:
            return [torch.zeros_like(v, requires_grad=False) for v in by]
        results, seeds = zip(*live, strict=True)
        grads = torch.autograd.grad(results, by, seeds, create_graph=torch.is_grad_enabled(), allow_unused=True)
        return [torch.zeros_like(v, requires_grad=False) if g is None else g for v, g in zip(by, grads, strict=True)]

    return product


def by_hand(flat: Flat, inputs: Sequence[Tensor]) -> Callable[[list[Tensor]], Any]:
    """The product run as ordinary code: a function of inputs and cotangents, in one flat list."""
    n, total, product = flat.arguments, len(inputs), product_of(flat, inputs)
    return lambda given: product(*given[:n], *given[total:])


def make_pull(flat: Flat, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Callable[[list[Tensor]], Any]:
    """As `by_hand`, from a program of its own."""
    n, total, product = flat.arguments, len(inputs), product_of(flat, inputs)
    captured = list(inputs[n:])
    with torch.enable_grad():
        try:
            program = build(product, (*inputs[:n], *cotangents), {}, answers=64)
        except Exception as error:
            say_once(f"the backward pass could not be recorded ({type(error).__name__}: {error})")
            return by_hand(flat, inputs)
    if len(program.questions) > len(flat.program.questions) or program.writes:
        return by_hand(flat, inputs)
    made = Flat(program, product, flat.backend)
    order = [place_of(c.example, captured) for c in program.captured]
    held = [c.example for c in program.captured]

    def pulled(given: list[Tensor]) -> Any:
        rest = [held[k] if place is None else given[n + place] for k, place in enumerate(order)]
        return made([*given[:n], *given[total:], *rest])

    return pulled


def place_of(x: Any, captured: list[Tensor]) -> int | None:
    """Which of the captured tensors `x` is."""
    return next((k for k, c in enumerate(captured) if c is x or same_memory(c, x)), None)


def check_unchanged(program: Program, captured: list[Tensor]) -> None:
    """The product is recorded at the first backward pass: what the function captured must be what it was."""
    scope = dict(program.homes.names)
    for condition in program.homes.conditions:
        if not eval(condition, scope):
            break
    else:
        if all(
            eval(c.homes[0].expression, scope) is x for c, x in zip(program.captured, captured, strict=True) if c.homes
        ):
            return
    msg = (
        f"compile({program.name}): what the function captures was rebound between its call and its first backward pass"
    )
    raise TransformError(msg)
