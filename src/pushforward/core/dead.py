"""Which elements no cotangent reaches: dead masks, followed through autograd's graph from the outputs to the inputs.

A node that selects (`where`) is told from others by its type; what any node does to dead elements is its `Reading`, which
`ops.untaken` gives by the kinds of operators.

A derivative that will be differentiated again is a graph of its own, in which that some cotangents were zero by their place
is forgotten. So while it is made, a note is left on the nodes that computed what leaves each node of the first graph;
should a later pass make a NaN, the masks of the first are worked out, and what was dead in it is constant in the second.
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from . import carry
from .looking import kept
from .torch_private import NoFunction

Tensor = torch.Tensor
Mask = Any  # a boolean tensor that broadcasts to a value, true where it is dead; None: nowhere
NOTE = "pushforward dead"


@dataclass(frozen=True)
class Reading:
    """What a kind of node does to the zeros that come to it.

    `passes(node, dead, shapes)` gives the masks of what leaves the node, by those of what comes (by output; an output that is
    not used is missing) and the shapes of its inputs. `selects`: makes dead elements of its own; such a node in a graph is the
    reason to look for them. `drops`: so does this, but is no reason. `exact`: zeros stay zeros.
    `again(node, dead, masks, coming, leaving)` gives the gradients that leave the node, where those are sums in which dead
    elements already took part; `factors`: in products with other factors, so that notes do not say it all.
    """

    passes: Callable[[Any, dict[int, Mask], list[Any]], list[Mask]]
    selects: bool = False
    drops: bool = False
    exact: bool = False
    again: Callable[[Any, dict[int, Mask], list[Mask], Any, list[Any]], list[Any]] | None = None
    factors: bool = False


READINGS: dict[type, Reading] = {}  # by the type of a node; filled by `ops.untaken`
SELECTING: set[type] = set()


class _State(threading.local):
    looking = True  # numbers can be looked at, so that masks without a dead element go no further


STATE = _State()
carry.CARRIED.append(STATE)


def selects(outputs: Any, known: list[bool] | None = None) -> bool:
    """Whether a node that selects elements is among those of some outputs; `known` is a place to remember it.

    Notes of an earlier pass, which stand on nodes of any type, are looked for only while there is a graph that has any.
    """
    if known:
        return known[0]
    if len(outputs) == 1 and type(outputs[0]) is Tensor:
        stack = [outputs[0].grad_fn]
    else:
        with NoFunction():
            stack = [y.grad_fn for y in outputs]
    seen: set[Any] = {None, *stack}
    noted, found = len(NOTING) > 0, False
    stack = [node for node in stack if node is not None]
    while stack:
        node = stack.pop()
        if type(node) in SELECTING or (noted and NOTE in getattr(node, "metadata", ())):
            found = True
            break
        for source, _ in node.next_functions:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    if known is not None:
        known.append(found)
    return found


def reach_outside(outputs: list[Tensor], inner: list[Tensor], known: list[bool] | None = None) -> bool:
    """Whether the graph of some outputs ends in a variable other than the inner ones; `known` is told what `selects` would say."""
    own = {id(x) for x in inner}
    seen: set[Any] = {None}
    stack = []
    with NoFunction():
        for y in outputs:
            node = y.grad_fn
            if node is not None:
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
            elif y.requires_grad and id(y) not in own:
                return True
    noted, found = len(NOTING) > 0, False
    while stack:
        node = stack.pop()
        if type(node) in SELECTING or (noted and NOTE in getattr(node, "metadata", ())):
            found = True
        following = node.next_functions
        for source, _ in following:
            if source not in seen:
                seen.add(source)
                stack.append(source)
        if not following:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in own:
                return True
    if known is not None:
        known.append(found)
    return False


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
        if NOTING:
            add_noted(node, dead)
        following = edges[node]
        masks: list[Mask] = [None] * len(following)
        moving = any(m is not None for m in dead.values())
        if following and reading is not None and (moving or reading.selects or reading.drops):
            shapes = [None if n not in known else tuple(n._input_metadata[nr].shape) for n, nr in following]
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


# -- derivatives that will be differentiated again -----------------------------------------------------------------


class Run:
    """A backward pass that made a graph, the dead elements of which are worked out when they are asked for."""

    def __init__(self, outputs: Any, inputs: Any) -> None:
        self.around = outputs, inputs
        self.found: dict[Any, Any] | None = None

    def masks(self, node: Any) -> tuple[dict[int, Mask], list[Mask]]:
        """What comes dead to a node of the first graph, and the masks of what leaves."""
        if self.found is None:
            with NoFunction(), torch.no_grad():
                self.found = {n: (dead, masks) for n, dead, masks, _ in dead_edges(*self.around, looking=True)}
        return self.found.get(node, ({}, []))


NOTING: weakref.WeakSet[Run] = weakref.WeakSet()
SUMS = re.compile(r"(Sum|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|ToCopy|Real)Backward\d+")


class noting:
    """Notes left on the nodes that compute what leaves a graph's nodes, during a backward pass that makes a graph."""

    __slots__ = ("handles", "run")

    def __init__(self, outputs: Any, inputs: Any) -> None:
        self.run = Run(outputs, inputs)

    def __enter__(self) -> None:
        earlier = len(NOTING) > 0
        NOTING.add(self.run)
        order, edges = ordered(*self.run.around)
        below: set[Any] = set()  # nodes to which something dead may come
        self.handles = []
        for node in order:
            reading = READINGS.get(type(node))
            if earlier and NOTE in getattr(node, "metadata", ()):
                below.add(node)
            if reading is None or not (node in below or reading.selects or reading.drops):
                continue
            below.update(source for source, _ in edges[node])
            if node in below and edges[node] and not reading.exact:
                if reading.factors:
                    dead, masks = self.run.masks(node)
                    if any(m is not None for m in masks):
                        self.handles.append(node.register_hook(hook_for(node, dead, masks, reading.again)))
                self.handles.append(node.register_hook(self.note_for(node)))

    def note_for(self, node: Any) -> Callable[[Any, Any], None]:
        """What leaves the notes of one node."""
        run = self.run

        def hook(leaving: Any, coming: Any) -> None:
            for k, g in enumerate(leaving):
                if g is not None and g.grad_fn is not None:
                    g.grad_fn.metadata.setdefault(NOTE, []).append((g.output_nr, run, node, k))
                    if len(coming) == 1 and coming[0] is not None and g.shape != coming[0].shape:
                        summand = before_sum(g.grad_fn, coming[0].shape)
                        if summand is not None:
                            summand.metadata.setdefault(NOTE, []).append((0, run, node, None))

        return hook

    def __exit__(self, *_: Any) -> None:
        for handle in self.handles:
            handle.remove()


def before_sum(node: Any, shape: Any) -> Any:
    """The node that computed what was summed over broadcast dimensions; None where it is not plain to see."""
    while node is not None and SUMS.fullmatch(type(node).__name__):
        node = node.next_functions[0][0]
        if node is not None and len(node._input_metadata) == 1 and tuple(node._input_metadata[0].shape) == shape:
            return node
    return None


def add_noted(node: Any, dead: dict[int, Mask]) -> None:
    """Add what the notes on a node say to the masks of what comes to it."""
    for nr, run, origin, k in getattr(node, "metadata", {}).get(NOTE, ()):
        coming, leaving = run.masks(origin)
        mask = coming.get(0) if k is None else leaving[k] if leaving else None
        if mask is not None and nr in dead:
            dead[nr] = mask if dead[nr] is None else dead[nr] | mask
