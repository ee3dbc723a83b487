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
at, the pass runs as it is, and only if it made a NaN again with hooks; for that the graph is kept until then. Where
they cannot (a program is recorded, another device), or where the derivative will be differentiated, the hooks are there
from the start. Of a graph of many nodes and few inputs it is asked first whether there is a NaN, which takes less time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from . import carry
from .level import Level
from .torch_private import (
    BelowAutograd,
    NoDispatch,
    NoFunction,
    current_node,
    jit_tracing,
    mode_at,
    mode_count,
    modes_above_autograd,
    nodes_made,
)
from .traced import Traced

Tensor = torch.Tensor
Mask = Any  # a boolean tensor that broadcasts to a value, true where it is dead; None: nowhere
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
SMALL = 1 << 16  # elements
FEW = 20  # nodes, the types of which are read in less time than it takes to look for a NaN


@dataclass(frozen=True)
class Reading:
    """What a kind of node does to the zeros that come to it.

    `passes(node, dead, shapes)` gives the masks of what leaves the node, by those of what comes (by output; an output that is
    not used is missing) and the shapes of its inputs. `selects`: makes dead elements of its own; such a node in a graph is the
    reason to look for them. `drops`: so does this, but is no reason. `exact`: zeros stay zeros.
    `again(node, dead, masks, coming, leaving)` gives the gradients that leave the node, where those are sums in which dead
    elements already took part.
    """

    passes: Callable[[Any, dict[int, Mask], list[Any]], list[Mask]]
    selects: bool = False
    drops: bool = False
    exact: bool = False
    again: Callable[[Any, dict[int, Mask], list[Mask], Any, list[Any]], list[Any]] | None = None


READINGS: dict[type, Reading] = {}  # by the type of a node; filled by `ops.untaken`
SELECTING: set[type] = set()


class _State(threading.local):
    def __init__(self) -> None:
        self.looking = True  # numbers can be looked at, so that masks without a dead element go no further
        self.dead: dict[Any, dict[int, Mask]] = {}  # of nodes that have hooks now


STATE = _State()
carry.CARRIED.append(STATE)


def selects(outputs: Any, known: list[bool] | None = None) -> bool:
    """Whether a node that selects elements is among those of some outputs; `known` is a place to remember it."""
    if known:
        return known[0]
    found = _selects(outputs)
    if known is not None:
        known.append(found)
    return found


def _selects(outputs: Any) -> bool:
    with NoFunction():
        stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen: set[Any] = {None}
    while stack:
        node = stack.pop()
        if type(node) in SELECTING:
            return True
        for source, _ in node.next_functions:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return False


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
    walking = create or retain or began is None or nodes_made() - began < FEW or not small(inputs)
    if walking and not selects(outputs, known):
        return carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    looking = visible(inputs)
    if not (looking or walking or selects(outputs, known)):
        return carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    if looking and not create:
        grads = carry.run_backward(outputs, seeds, True, False, inputs, True, accumulate_grad=False)
        if finite(grads) or not (walking or selects(outputs, known)):
            return grads
    with zeroing(outputs, inputs, looking):
        grads = carry.run_backward(outputs, seeds, retain, create, inputs, True, accumulate_grad=False)
    if left is not None and looking and not finite(grads):
        left()
    return grads


# -- numbers ---------------------------------------------------------------------------------------------------------


def visible(values: Any) -> bool:
    """Whether the numbers of some values can be looked at, without waiting and without anybody recording it."""
    for k in range(mode_count()):
        if not isinstance(mode_at(k), Level):
            return False
    if modes_above_autograd() or jit_tracing():
        return False
    for x in values:
        while isinstance(x, Traced):
            x = x._below()  # pyright: ignore[reportAttributeAccessIssue]
        if type(x) not in _PLAIN or not x.is_cpu:
            return False
    return True


def small(values: Any) -> bool:
    """Whether gradients take so little memory that the graph may be kept until all are there."""
    total = 0
    for x in values:
        total += x.numel()
    return total <= SMALL


def payloads(x: Any) -> list[Any]:
    """The plain tensors of a value: of a dual number its primal's and its tangent's."""
    if not isinstance(x, Traced):
        return [x]
    tangent = getattr(x, "_tangent", None)
    below = payloads(x._below())  # pyright: ignore[reportAttributeAccessIssue]
    return below if tangent is None else below + payloads(tangent)


def finite(grads: Any) -> bool:
    """Whether there is no NaN in gradients, nor in what a level knows of their derivatives."""
    for g in grads:
        if g is None:
            continue
        if type(g) is Tensor and g.layout is torch.strided and not mode_count() and not g.requires_grad:
            total = g.sum().item()
            if total - total != 0 and g.isnan().any().item():
                return False
            continue
        with NoDispatch(), BelowAutograd():
            for p in payloads(g):
                if p.layout is torch.strided and not p._is_zerotensor() and p.isnan().any().item():
                    return False
    return True


def kept(mask: Mask, looking: bool) -> Mask:
    """A mask, or None where it can be seen that it has no dead element."""
    if mask is None or not looking:
        return mask
    if type(mask) is Tensor and mask.device.type == "cpu":
        with NoDispatch():
            return mask if mask.any().item() else None
    if not visible((mask,)):
        return mask
    with NoDispatch():
        return mask if any(bool(p.any()) for p in payloads(mask)) else None


# -- dead elements ---------------------------------------------------------------------------------------------------


def onto(mask: Mask, shape: Any) -> Mask:
    """The mask of an operand by that of the result to which it was broadcast: dead where all that was made of it is."""
    if mask is None or mask.shape == shape:
        return mask
    while mask.dim() > len(shape):
        mask = mask.all(0)
    for k in range(mask.dim()):
        if mask.shape[k] != 1 and shape[len(shape) - mask.dim() + k] == 1:
            mask = mask.all(k, keepdim=True)
    return mask


def ordered(outputs: Any, inputs: Any) -> tuple[list[Any], dict[Any, Any]]:
    """The nodes between outputs and inputs, each after all that use it; and the edges of each."""
    ends = {x.grad_fn for x in inputs if x.grad_fn is not None}
    leaves = {id(x) for x in inputs if x.grad_fn is None}
    edges: dict[Any, Any] = {}
    uses: dict[Any, int] = {}
    stack = list({y.grad_fn for y in outputs if y.grad_fn is not None})
    edges.update(dict.fromkeys(stack))
    while stack:
        node = stack.pop()
        edges[node] = following = () if node in ends else node.next_functions
        for source, _ in following:
            if source is not None:
                uses[source] = uses.get(source, 0) + 1
                if source not in edges:
                    edges[source] = None
                    stack.append(source)
    order = [node for node in edges if not uses.get(node)]
    for node in order:  # grows as it is read
        for source, _ in edges[node]:
            if source is not None:
                uses[source] -= 1
                if not uses[source]:
                    order.append(source)
    needed: set[Any] = set()
    for node in reversed(order):
        own = node in ends or (not edges[node] and id(getattr(node, "variable", None)) in leaves)
        if own or any(source in needed for source, _ in edges[node]):
            needed.add(node)
    return [node for node in order if node in needed], edges


def dead_edges(outputs: Any, inputs: Any, looking: bool) -> list[tuple[Any, dict[int, Mask], list[Mask], Reading]]:
    """For each node that zeros may not pass: what comes dead, the masks of what leaves, and its reading."""
    order, edges = ordered(outputs, inputs)
    known = set(order)
    STATE.looking = looking
    state: dict[Any, dict[int, Mask]] = {}
    for y in outputs:
        if y.grad_fn is not None:
            state.setdefault(y.grad_fn, {})[y.output_nr] = None
    found = []
    for node in order:
        dead, reading = state.pop(node, {}), READINGS.get(type(node))
        following = edges[node]
        masks: list[Mask] = [None] * len(following)
        moving = any(m is not None for m in dead.values())
        if following and reading is not None and (moving or reading.selects or reading.drops):
            shapes = [None if n not in known else n._input_metadata[nr].shape for n, nr in following]
            own = [id(m) for m in dead.values()]
            masks = [m if id(m) in own else kept(m, looking) for m in reading.passes(node, dead, shapes)]
            if moving and not reading.exact:
                found.append((node, dead, masks, reading))
        for (source, nr), mask in zip(following, masks, strict=True):
            if source in known and edges[source]:
                slot = state.setdefault(source, {})
                if nr not in slot:
                    slot[nr] = mask
                elif slot[nr] is not None and slot[nr] is not mask:
                    slot[nr] = None if mask is None else kept(slot[nr] & mask, looking)
    return found


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


def hook_for(node: Any, dead: dict[int, Mask], masks: list[Mask], again: Any) -> Callable[[Any, Any], Any]:
    """What sets the gradients that leave a node to 0 at dead elements."""

    def hook(leaving: Any, coming: Any) -> Any:
        with carry.adopted(), NoFunction():
            made = list(leaving)
            if again is not None:
                with contextlib.suppress(CheckpointError):  # what a checkpoint computes again has one reader
                    made = again(node, dead, masks, coming, made)
            for k, mask in enumerate(masks):
                g = made[k]
                if mask is not None and g is not None and g.layout is torch.strided:
                    made[k] = g.masked_fill(mask, 0)
            return tuple(made)

    return hook


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
