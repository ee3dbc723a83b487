"""`jvp` and `linearize`: products of the Jacobian with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..core import calls, tree
from ..core.dead import reach_outside, selects
from ..core.errors import ArgumentError
from ..core.fresh import give_back, recording_possible, released, stopped, variable
from ..core.journal import attempt
from ..core.level import THREAD, user_stopped_gradient
from ..core.opaque import opaque
from ..core.torch_private import NoFunction
from ..core.traced import NO_PLAN, NeedsGraph, Traced
from ..core.transposing import STATE, transposing
from ..core.untaken import run_backward
from ..core.words import check_function, instead, is_number, kind, name_of, with_aux, without_derivative
from ..ops import families as _families  # noqa: F401  (fills the table)
from ..ops.safe import nested_differentiation, nested_reverse
from . import fast_arithmetic as _arithmetic  # noqa: F401  (registers short ways)
from . import fast_moves as _moves  # noqa: F401  (registers short ways)
from . import fast_products as _products  # noqa: F401  (registers short ways)
from .level import Dual, DualLevel, laid_out_like, wrap_input

Tensor = torch.Tensor
PUSHES: Any = None  # `plans.linear.Pushes`


def checked(func: Any, primals: Any, tangents: Any, what: str = "jvp") -> tuple[Any, list[Any], list[Any], Any]:
    """Primals as a tuple, their leaves, one tangent (or None) for each leaf, and the structure."""
    check_function(what, func, f"{what}(f, (x,), (t,))")
    if isinstance(primals, Tensor):
        primals, tangents = (primals,), (tangents,) if not isinstance(tangents, tuple) else tangents
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            wanted = "a tuple of inputs" if name == "primals" else "a tuple like primals"
            msg = (
                f"{what}({name_of(func)}, primals, tangents): {name} must be {wanted}, but is {kind(given)}; "
                f"write {what}(f, (x,), (t,))"
            )
            raise ArgumentError(msg)
    primals, tangents = tuple(primals), tuple(tangents)
    head = f"{what}({name_of(func)})"
    if not primals:
        msg = f"{head}: primals is empty; give at least one input"
        raise ArgumentError(msg)
    leaves, spec = tree.flat(primals)
    return primals, leaves, spread(head, primals, leaves, spec, tangents), spec


def spread(head: str, primals: tuple[Any, ...], leaves: list[Any], spec: Any, tangents: tuple[Any, ...]) -> list[Any]:
    """One tangent for each leaf of the primals, None where it is zero; `head` is how messages begin.

    Raises:
        ArgumentError: the tangents are not like the primals, or one would be lost.
    """
    if len(primals) != len(tangents):
        msg = f"{head}: {len(primals)} primals but {len(tangents)} tangents were given; give one tangent for each primal"
        if any(len(tree.leaves(p)) > 1 for p in primals):
            msg += f", of its structure: the primals have {tree.words(spec)}"
        raise ArgumentError(msg)
    found, t_spec = tree.flat(tangents)
    if t_spec is not spec and t_spec != spec:
        arranged = tree.flat_like(tangents, spec, zeros=True)
        if arranged is None:
            msg = f"{head}: the structures differ; the tangents have {tree.words(t_spec)}, the primals have {tree.words(spec)}"
            raise ArgumentError(msg)
        found = arranged
    if alike(leaves, found):
        return found
    for k, (p, t) in enumerate(zip(leaves, found, strict=True)):
        if t is None:
            continue
        if not isinstance(p, Tensor):
            if not is_constant(p, t):
                path = tree.paths(primals, "primals")[k]
                raise ArgumentError(
                    f"{head}: {path} is {kind(p)}, so its tangent {path.replace('primals', 'tangents', 1)} would be lost; "
                    f"{instead(p)}, or give None as its tangent"
                )
            found[k] = None
            continue
        if not isinstance(t, Tensor) or p.shape != t.shape or p.dtype != t.dtype or p.device != t.device:
            path = tree.paths(primals, "primals")[k]
            raise ArgumentError(
                f"{head}: {path} is {kind(p)}, its tangent {path.replace('primals', 'tangents', 1)} is {kind(t)}; a "
                "tangent has the shape, dtype and device of its primal (None stands for zero)"
            )
        if not (p.is_floating_point() or p.is_complex()):
            if p.dtype is torch.bool or bool((t == 0).all()):
                found[k] = None
                continue
            path = tree.paths(primals, "primals")[k]
            msg = f"{head}: {path} is {kind(p)}; an integer has no derivative, so its tangent must be None or zeros"
            raise ArgumentError(msg)
    return found


def is_constant(primal: Any, tangent: Any) -> bool:
    """Whether nothing is lost with the tangent of what is no tensor: it is zero, or the very same thing carried along."""
    if isinstance(tangent, Tensor):
        return False
    if is_number(primal):
        return (is_number(tangent) and not np.any(tangent)) or (type(primal) is int and tangent is primal)
    return tangent is primal or type(primal) in _NO_NUMBERS


_NO_NUMBERS = (str, bytes, bool, type(None))


def alike(leaves: list[Any], spread: list[Any]) -> bool:
    """Whether each leaf is a real floating-point tensor, with a tangent of its shape, dtype and device."""
    for p, t in zip(leaves, spread, strict=True):
        if type(p) is not Tensor or type(t) is not Tensor:
            with NoFunction():
                return all([like(p, t) for p, t in zip(leaves, spread, strict=True)])
        if not like(p, t):
            return False
    return True


def like(p: Any, t: Any) -> bool:
    """The same for one leaf."""
    return (
        isinstance(p, Tensor)
        and isinstance(t, Tensor)
        and p.dtype is t.dtype
        and p.is_floating_point()
        and p.shape == t.shape
        and p.device == t.device
    )


@calls.transform
@opaque
def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
    track_tangent_grad: bool = True,
) -> Any:
    """Jacobian-vector product in forward mode: value and directional derivative in one pass.

    Args:
        func: a function of the primals; returns a tensor or a pytree of tensors.
        primals: a tuple of inputs (tensors or pytrees of them); no `requires_grad` is needed.
        tangents: a tuple of the same structure; each tangent has the shape, dtype and device of its primal. None is zero.
        strict: raise where a derivative is lost (`.item()` and the like) instead of warning.
        has_aux: `func` returns `(output, aux)`; aux comes back as a third result, without a tangent.
        track_tangent_grad: whether autograd may differentiate the tangent again; False detaches it.

    Returns:
        `(output, tangent)`, or `(output, tangent, aux)`; the tangent has the output's structure.

    Raises:
        ArgumentError: primals and tangents do not fit; the message names the argument and both shapes.

    Example:
        >>> import torch, pushforward as pf
        >>> x = torch.tensor([2.0, 3.0])
        >>> f = lambda x: torch.stack([x[0] * x[1], x[1] ** 2, x[0].sin()])
        >>> pf.jvp(f, (x,), (torch.tensor([1.0, 0.0]),))[1]
        tensor([ 3.0000,  0.0000, -0.4161])
    """
    asked = ASKED[bool(strict), bool(has_aux), bool(track_tangent_grad)]
    return directional("jvp", asked, func, primals, tangents, strict, has_aux, track_tangent_grad)


@opaque
def directional(
    what: str,
    asked: calls.Asked,
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    strict: bool = False,
    has_aux: bool = False,
    track_tangent_grad: bool = True,
) -> Any:
    """As `jvp`; `what` is the name of the transform in messages, `asked` what its calls are known by."""
    if calls.REPLAY is not None and not THREAD.levels:
        out = calls.REPLAY(asked, func, (primals, tangents))
        if out is not NO_PLAN:
            return out
    _, leaves, flat_tangents, spec = checked(func, primals, tangents, what)
    level = DualLevel(strict=strict)
    level.settings = call = object()
    arguments = (func, leaves, flat_tangents, spec, has_aux, track_tangent_grad)
    try:
        with attempt():
            return pushed(level, *arguments)
    except NeedsGraph as found:
        if not found.began_in(call):
            raise
    level = DualLevel(strict=strict)
    level.open_graph = True
    return pushed(level, *arguments)


_FLAGS = (False, True)
ASKED = {
    (strict, aux, track): calls.Asked(jvp, True, strict=strict, has_aux=aux, track_tangent_grad=track)
    for strict in _FLAGS for aux in _FLAGS for track in _FLAGS
}  # fmt: skip


def pushed(
    level: DualLevel, func: Any, leaves: Any, flat_tangents: Any, spec: Any, has_aux: bool, track_tangent_grad: bool
) -> Any:
    """One run of a function on dual numbers."""
    stop = user_stopped_gradient()
    flat_tangents = [
        laid_out_like(t, p) if isinstance(t, Tensor) and isinstance(p, Tensor) else t
        for p, t in zip(leaves, flat_tangents, strict=True)
    ]
    level.func, level.inputs = func, leaves
    level.start()
    try:
        duals = [
            wrap_input(level, p, t) if isinstance(p, Tensor) and t is not None else p
            for p, t in zip(leaves, flat_tangents, strict=True)
        ]
        primals = [d._primal if type(d) is Dual else None for d in duals]
        with torch.enable_grad(), nested_differentiation():
            result = func(*tree.unflatten(duals, spec))
        aux = None
        if has_aux:
            result, aux = with_aux("jvp", func, result)
            aux = tree.map_leaves(lambda a: taken_apart(level, a)[0], aux)
        outs, out_spec = tree.flat(result)
        pairs: list[Any] = [taken_apart(level, o) for o in outs]
    finally:
        level.stop()
        level.inputs = []
    for given, dual, primal in zip(leaves, duals, primals, strict=True):
        if type(dual) is Dual:
            root = dual._primal if dual._cell is None else dual._cell.root[0]
            if root is not primal:
                give_back(given, root, not stop)
    for k, o in enumerate(outs):
        if is_loose(o):
            pairs[k] = tuple(None if v is None else known_below(v) for v in pairs[k])
    values = [v for v, _ in pairs]
    moved = [zeros_for(v) if t is None else t for v, t in pairs]
    if stop or not track_tangent_grad:
        moved = [stopped(t) if isinstance(t, Tensor) else t for t in moved]
    if stop:
        values = [stopped(v) if isinstance(v, Tensor) else v for v in values]
    made = tree.unflatten(values, out_spec), tree.unflatten(moved, out_spec)
    return (*made, aux) if has_aux else made


def is_loose(o: Any) -> bool:
    """Whether an output was made by a fast path that the levels below did not see."""
    return type(o) is Dual and (o._loose if o._cell is None else o._cell.loose)


def known_below(x: Tensor) -> Tensor:
    """A result of a fast path as a value of the level below, so that values of that level can be written into it."""
    return x if isinstance(x, Traced) or not THREAD.levels else THREAD.levels[-1].lift(x)  # type: ignore[attr-defined]


def taken_apart(level: DualLevel, o: Any) -> tuple[Any, Any]:
    """Primal and tangent of an output leaf."""
    if type(o) is Dual and o._level is level:
        return o._primal, o._tangent
    return o, None


def zeros_for(value: Any) -> Any:
    """The tangent of an output that does not depend on the inputs; None for what is no tensor."""
    if not isinstance(value, Tensor):
        return None
    with NoFunction():
        return torch.zeros_like(value, requires_grad=False)


@opaque
def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Value of `func` and its derivative as a linear function: `(output, jvp_fn)`.

    The work at the primal point is done once: `jvp_fn` walks the recorded derivative only. It follows whatever branches `func` took,
    and can itself be mapped and transposed.

    Args:
        func: a function of the primals; returns a tensor or a pytree of tensors.
        primals: tensors or pytrees of tensors.

    Returns:
        `(output, jvp_fn)`; `jvp_fn(*tangents)` takes one tangent for each primal and returns the output's tangent.

    Example:
        >>> import torch, pushforward as pf
        >>> out, push = pf.linearize(torch.sin, torch.zeros(2))
        >>> push(torch.ones(2))
        tensor([1., 1.])
    """
    return linearized(func, primals, watch=True)


def linearized(func: Callable[..., Any], primals: tuple[Any, ...], *, watch: bool) -> tuple[Any, Callable[..., Any]]:
    """As `linearize`; `watch`: whether user code in the reverse pass is looked at."""
    if torch.is_inference_mode_enabled():
        with recording_possible() as copied:
            return linearized(func, copied(primals), watch=watch)
    check_function("linearize", func, "linearize(f, x)")
    leaves, spec = tree.flat(primals)
    places = [k for k, x in enumerate(leaves) if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
    if not places:
        told = without_derivative(leaves, tree.paths(primals, "primals"))
        msg = f"linearize({name_of(func)}): no floating-point tensor is among the primals: {told}"
        raise ArgumentError(msg)
    stop = not torch.is_grad_enabled()
    cut = STATE.cut
    forward: Any = None
    outside = not stop and (any(leaves[k].requires_grad for k in places) or any(v.saw_grad for v in THREAD.levels))
    inner = list(leaves)
    variables = []
    for k in places:
        inner[k] = variable(leaves[k])
        variables.append(inner[k])
    with torch.enable_grad(), nested_reverse(), nested_reverse():
        result = func(*tree.unflatten(inner, spec))
        outs, out_spec = tree.flat(result)
        live = [k for k, o in enumerate(outs) if isinstance(o, Tensor) and o.requires_grad]
        seeds, pulled = [], []
        if live:
            with NoFunction(), transposing():
                seeds = [torch.zeros_like(outs[k], requires_grad=False).requires_grad_() for k in live]
                grads = torch.autograd.grad(
                    [outs[k] for k in live], variables, seeds, create_graph=True, allow_unused=True
                )
            seen = any(v.saw_grad for v in THREAD.levels)  # asked again: what requires grad may lie below a level's values
            outside = not stop and (outside or seen or reach_outside([outs[k] for k in live], variables))
            pulled = [(j, g) for j, g in enumerate(grads) if g is not None and g.requires_grad]
    if watch and STATE.cut != cut:
        forward = through_forward(func, leaves, places, spec)

    known: list[bool] = []
    head = f"jvp_fn of {name_of(func)}"
    outputs, starts = tuple([g for _, g in pulled]), tuple(seeds)
    pushes = PUSHES(outputs, starts) if pulled and PUSHES is not None else None

    @opaque
    def jvp_fn(*tangents: Any) -> Any:
        flat, t_spec = tree.flat(tangents)
        if (t_spec is not spec and t_spec != spec) or not alike(leaves, flat):
            flat = list(spread(head, primals, leaves, spec, tangents))
            for k in places:
                if flat[k] is None:
                    flat[k] = zeros_for(leaves[k])
        if forward is not None:
            return forward[1](*[flat[k] for k in places])
        moved: Any = [None] * len(live)
        if pulled:
            directions = [flat[places[j]] for j, _ in pulled]
            keep = torch.is_grad_enabled() and (outside or any(d.requires_grad for d in directions))
            with NoFunction():
                moved = None if keep or pushes is None or selects(outputs, known) else pushes(directions)
                if moved is None:
                    moved = run_backward(outputs, tuple(directions), True, keep, starts, known)
        at = dict(zip(live, moved, strict=True))
        made = [zeros_for(o) if at.get(k) is None else at[k] for k, o in enumerate(outs)]
        return tree.unflatten(made, out_spec)

    if forward is not None:
        return forward[0], jvp_fn
    values = [released(o) if isinstance(o, Tensor) and o.requires_grad and not outside else o for o in outs]
    return tree.unflatten(values, out_spec), jvp_fn


def through_forward(
    func: Callable[..., Any], leaves: list[Any], places: list[int], spec: Any
) -> tuple[Any, Callable[..., Any]]:
    """`(output, push)` where user code in the reverse pass is no transpose of the derivative: t ↦ J t is, and is linearised.

    The function runs once more, under forward mode; `push` takes the tangents of the leaves at `places`.
    """
    outputs: list[Any] = []

    def of_places(*values: Any) -> Any:
        inner = list(leaves)
        for k, value in zip(places, values, strict=True):
            inner[k] = value
        return func(*tree.unflatten(inner, spec))

    def along(*tangents: Any) -> Any:
        out, moved = jvp(of_places, tuple(leaves[k] for k in places), tangents)
        outputs[:] = [out]
        return moved

    with NoFunction():
        zero = [torch.zeros_like(leaves[k], requires_grad=False) for k in places]
    push = linearized(along, tuple(zero), watch=False)[1]
    return outputs[0], push
