"""Reverse mode past branches that were not taken: what a cotangent does not reach has no slope to be multiplied by.

`where(c, a, b)` passes the cotangent u on as ā = c u to a and b̄ = (1 - c) u to b. Where c is false, ā is 0 whatever follows,
so the chain rule's product ā · da/dx is 0 too, also where da/dx is ∞ or NaN; numbers multiply to NaN there. Forward mode
selects between tangents, and never has that product. Both give the same here, by following the zeros that c makes
*by its place in the graph*, and no zero that happens to be one (0 · ∞ of a branch that was taken stays NaN):

    an element of an intermediate value is dead  ⇔  every use of it is dead
    a use by `where` is dead                     ⇔  the element was not selected, or what `where` made of it is dead
    a use by an element-wise function            ⇔  all that was made of the element is dead
    a use by a movement, a sum                   ⇔  its transpose carries nothing from live places there
    a use by a matrix product                    ⇔  its row (of the left factor) or column (of the right) is dead
    any other use                                ⇔  all results are dead

Gradients are set to 0 at dead elements as they leave a node, by hooks on the graph for the time of one backward pass.
Where the gradient of an operand is a sum in which dead elements took part (it was broadcast, or a factor of a matrix
product), the sum is taken again without them.

Most graphs have no node that selects, which one walk over the nodes' types tells. Where one has, and numbers can be looked
at, the pass runs as it is, and only if it made a NaN again with hooks; for that the graph is kept until then. A pass
that makes a graph leaves notes in it, for a NaN that a derivative of higher order may make (`core.dead`). Where numbers
cannot be looked at (a program is recorded, another device), the hooks are there from the start. Of a graph of many
nodes and few inputs it is asked first whether there is a NaN, which takes less time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from . import carry
from .dead import Mask, dead_edges, hook_for, noting, selects
from .level import THREAD
from .looking import finite, payloads, small, visible
from .torch_private import NoFunction, current_node, nodes_made

Tensor = torch.Tensor
FEW = 20  # nodes, the types of which are read in less time than it takes to look for a NaN


class _State(threading.local):
    def __init__(self) -> None:
        self.dead: dict[Any, dict[int, Mask]] = {}  # of nodes that have hooks now


STATE = _State()
carry.CARRIED.append(STATE)


def run_backward(
    outputs: tuple[Tensor, ...],
    seeds: tuple[Tensor, ...],
    retain: bool,
    create: bool,
    inputs: tuple[Tensor, ...],
    known: list[bool] | None = None,
    left: Callable[[], None] | None = None,
    began: int | None = None,
) -> Any:
    """The engine, past branches that were not taken: the gradients of the inputs, None where there is none.

    `known` keeps what was found of the graph for a further call. `left()` is called where a NaN is left. `began`: how many
    nodes there were (`nodes_made()`) before the graph was made.
    """
    if known and not known[0]:
        return carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    walking = create or retain or THREAD.recorders or began is None or nodes_made() - began < FEW or not small(inputs)
    if walking and not selects(outputs, known):
        return carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    THREAD.unrepeatable += 1  # what is done from here on depends on the numbers
    looking = visible(inputs)
    if not (looking or walking or selects(outputs, known)):
        return carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    if looking and create and all(type(y) is Tensor for y in outputs):
        with noting(outputs, inputs):
            grads = carry.run_backward(outputs, seeds, retain, True, inputs, True, accumulate_grad=False)
        if finite(grads):
            return grads
    elif looking and not create:
        grads = carry.run_backward(outputs, seeds, True, False, inputs, True, accumulate_grad=False)
        if finite(grads) or not (walking or selects(outputs, known)):
            return grads
    with zeroing(outputs, inputs, looking):
        grads = carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    if left is not None and looking and not finite(grads):
        left()
    return grads


class zeroing:
    """Hooks on the graph that set gradients to 0 at dead elements, for a backward pass."""

    __slots__ = ("before", "found", "handles")

    def __init__(self, outputs: Any, inputs: Any, looking: bool) -> None:
        with NoFunction(), torch.no_grad():
            self.found = dead_edges(outputs, inputs, looking)

    def __enter__(self) -> None:
        self.before = STATE.dead
        if self.found:
            STATE.dead = {**STATE.dead, **{node: dead for node, dead, _, _ in self.found}}
        self.handles = [
            node.register_hook(hook_for(node, dead, masks, reading.again)) for node, dead, masks, reading in self.found
        ]

    def __exit__(self, *_: Any) -> None:
        STATE.dead = self.before
        for handle in self.handles:
            handle.remove()


def elements_again(node: Any, dead: dict[int, Mask], masks: list[Mask], coming: Any, leaving: list[Any]) -> list[Any]:
    """What an element-wise node passes on, summed over the dimensions that were broadcast without dead elements."""
    del masks
    mask, raw = dead.get(0), None
    if mask is None or len(coming) != 1:
        return leaving
    for k, g in enumerate(leaving):
        if g is not None and g.shape != coming[0].shape and is_sum(mask, g.shape):
            if raw is None:
                raw = node(*coming)
                raw = raw if isinstance(raw, tuple) else (raw,)
            if raw[k] is not None and raw[k].shape == coming[0].shape:
                leaving[k] = summed(raw[k].masked_fill(mask, 0), g)
    return leaving


def is_sum(dead: Tensor, shape: Any) -> bool:
    """Whether a gradient of this shape sums dead elements with live ones."""
    if dead.dim() > len(shape):
        return True
    return any(dead.shape[k] != 1 and shape[len(shape) - dead.dim() + k] == 1 for k in range(dead.dim()))


def summed(raw: Tensor, like: Tensor) -> Tensor:
    """As the engine does it: a sum to the shape of the operand, in its dtype."""
    raw = raw.sum_to_size(like.shape)
    if raw.is_complex() and not like.is_complex():
        raw = raw.real
    return raw.to(like.dtype)


def excused(bad: Tensor) -> bool:
    """Whether NaNs that the node whose backward runs has made are all at dead elements."""
    node = current_node()
    dead = STATE.dead.get(node) if node is not None else None
    if not dead or any(m is None for m in dead.values()):
        return False
    for mask in dead.values():
        for m in payloads(mask):
            try:
                inside = m.expand(bad.shape)
            except RuntimeError:
                inside = m.all()
            if bool((bad & ~inside).any()):
                return False
    return True
