"""Reverse mode: `vjp`, `grad`, `grad_and_value` on PyTorch's own engine.

No level is pushed. The inputs become fresh variables and `torch.autograd.grad` does the rest; a graph of the result is kept only
where something outside of the call can ask for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .batch import gradient as lanewise
from .batch.level import Batched, BatchLevel
from .core import calls, tree
from .core.dead import reach_outside
from .core.errors import ArgumentError
from .core.fresh import recording_possible, released, stopped, variable
from .core.journal import attempt
from .core.level import THREAD, graph_task_id, user_stopped_gradient
from .core.opaque import opaque
from .core.torch_private import NoDispatch, NoFunction, mode_count, nodes_made
from .core.traced import NO_PLAN, NeedsGraph
from .core.untaken import run_backward
from .core.words import check_argnums, check_function, kind, name_of, with_aux, without_derivative
from .forward import gradient as tangentwise
from .forward.level import Dual
from .ops.safe import nested_reverse

Tensor = torch.Tensor
_PLAIN = frozenset({Tensor, torch.nn.Parameter, Batched, Dual})


def differentiable(x: Any) -> bool:
    """Whether a leaf can be differentiated by."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


class Reverse:
    """One differentiation: variables made from the inputs, and what must be kept for those outside."""

    def __init__(self, inputs: list[Tensor]) -> None:
        self.recording = torch.is_grad_enabled() or graph_task_id() != -1
        self.stop = user_stopped_gradient()
        self.connected = not self.stop and any(x.requires_grad for x in inputs)
        self.inner = [variable(x) for x in inputs]
        self.began = nodes_made()

    def keeps_graph(self, outputs: list[Tensor], known: list[bool]) -> bool:
        """Whether the derivative itself must be differentiable by what is outside; `known`: see `core.dead.selects`."""
        if self.stop or not self.recording:
            return False
        if self.connected or any(level.saw_grad for level in THREAD.levels):
            return True
        return reach_outside(outputs, self.inner, known)

    def gradient(self, y: Tensor) -> tuple[Any, bool]:
        """The gradient of a scalar by the inner variables, and whether its graph is kept."""
        known: list[bool] = []
        with NoFunction():
            if not y.requires_grad:
                return [None] * len(self.inner), False
            keep, seed = self.keeps_graph([y], known), seed_for(y)
        # not under NoFunction: a user's own backward may say `.detach()` and mean it
        return run_backward((y,), (seed,), keep, keep, tuple(self.inner), known, began=self.began), keep

    def released(self, value: Any, keep: bool) -> Any:
        """An output for the caller: with its graph where that leads outside."""
        if not isinstance(value, Tensor):
            return value
        if self.stop:
            return stopped(value)
        if value.requires_grad and not keep:
            return released(value)
        return value


class PayloadState:
    """As `Reverse`, for a differentiation on the payloads of a level."""

    stop = False

    def __init__(self, way: Any, level: Any) -> None:
        self.way, self.level = way, level

    def released(self, value: Any, keep: bool) -> Any:
        """An output for the caller, without a graph that leads nowhere."""
        return value if keep else self.way.released(self.level, value)


@calls.transform
@opaque
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Value of `func` and the function that pulls cotangents back: `(output, vjp_fn)`, or `(output, vjp_fn, aux)`.

    Args:
        func: a function of the primals; returns a tensor or a pytree of tensors (with `has_aux`: a pair of that and anything).
        primals: tensors or pytrees of tensors.
        has_aux: whether `func` returns `(output, aux)`.

    Returns:
        `vjp_fn(cotangents)` takes cotangents of the output's structure and shapes and returns a tuple, one entry for each primal, of
        its structure. It can be called again, and mapped over cotangents.

    Example:
        >>> import torch, pushforward as pf
        >>> out, pull = pf.vjp(torch.sin, torch.zeros(3))
        >>> pull(torch.ones(3))[0]
        tensor([1., 1., 1.])
    """
    check_function("vjp", func, "vjp(f, x)")
    values, pull, aux, _ = recorded_vjp(func, primals, has_aux)
    return (values, pull, aux) if has_aux else (values, pull)


def recorded_vjp(func: Any, primals: tuple[Any, ...], has_aux: bool) -> tuple[Any, Any, Any, bool]:
    """`vjp` and aux, and whether the derivative itself is recorded for those outside."""
    if torch.is_inference_mode_enabled():
        with recording_possible() as copied:
            return recorded_vjp(func, copied(primals), has_aux)
    leaves, spec = tree.flat(primals)
    places = [k for k, x in enumerate(leaves) if differentiable(x)]
    if not places:
        told = without_derivative(leaves, tree.paths(primals, "primals"))
        msg = f"vjp({name_of(func)}): no floating-point tensor is among the primals: {told}"
        raise ArgumentError(msg)
    state = Reverse([leaves[k] for k in places])
    inner = list(leaves)
    for k, x in zip(places, state.inner, strict=True):
        inner[k] = x
    with torch.enable_grad(), nested_reverse():
        result = func(*tree.unflatten(inner, spec))
    aux = None
    if has_aux:
        result, aux = with_aux("vjp", func, result)
    outs, out_spec = tree.flat(result)
    for k, o in enumerate(outs):
        if not isinstance(o, Tensor):
            path = tree.paths(result, "output")[k]
            msg = (
                f"vjp({name_of(func)}): {path} is {kind(o)}; every output must be a tensor (return other things as aux)"
            )
            raise ArgumentError(msg)
    live = [k for k, o in enumerate(outs) if o.requires_grad]
    known: list[bool] = []
    keep = state.keeps_graph([outs[k] for k in live], known)

    @opaque
    def vjp_fn(*cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        if len(cotangents) == 1 and isinstance(given, tuple) and len(given) == 1 and isinstance(result, Tensor):
            given = given[0]
        with NoFunction():
            flat = checked_cotangents(func, result, outs, out_spec, given)
            if create_graph is None:
                create_graph = torch.is_grad_enabled() and (
                    keep
                    or any([isinstance(c, Tensor) and c.requires_grad for c in flat])
                    or any([v.saw_grad for v in THREAD.levels])
                )
                retain_graph = retain_graph or create_graph  # what was recorded then leads through the graph that made it
        grads: Any = [None] * len(places)
        if live and places:
            grads = run_backward(
                tuple([outs[k] for k in live]),
                tuple([flat[k] for k in live]),
                retain_graph,
                create_graph,
                tuple(state.inner),
                known,
            )
        made: list[Any] = [None] * len(leaves)
        for k, x, g in zip(places, state.inner, grads, strict=True):
            made[k] = zeros(x) if g is None else g
        return tree.unflatten(made, spec)

    values = tree.unflatten([state.released(o, keep) for o in outs], out_spec)
    return values, vjp_fn, tree.map_leaves(lambda a: state.released(a, keep), aux) if has_aux else None, keep


def zeros(x: Tensor) -> Tensor:
    """The derivative by an input that the output does not depend on."""
    with NoFunction():
        return torch.zeros_like(x, requires_grad=False)


def checked_cotangents(func: Any, result: Any, outs: list[Any], out_spec: Any, given: Any) -> list[Any]:
    """One cotangent for each output tensor: they have the structure and the shapes of the output."""
    flat, given_spec = tree.flat(given)
    if given_spec is not out_spec and given_spec != out_spec:
        found = tree.flat_like(given, out_spec)
        if found is None:
            msg = (
                f"vjp_fn of {name_of(func)}: the cotangents have the structure {tree.words(given_spec)}, the output has "
                f"{tree.words(out_spec)}"
            )
            raise ArgumentError(msg)
        flat = found
    for k, (o, c) in enumerate(zip(outs, flat, strict=True)):
        if not isinstance(c, Tensor) or c.shape != o.shape or (c.is_complex() and not o.is_complex()):
            path = tree.paths(result, "output")[k]
            msg = (
                f"vjp_fn of {name_of(func)}: the cotangent of {path} is {kind(c)}, the output is {kind(o)}; a cotangent has the "
                "shape of its output"
            )
            raise ArgumentError(msg)
    return flat


def argument_positions(func: Any, argnums: Any, args: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """`argnums` (ints or parameter names) as positions among the arguments."""
    asked = argnums if isinstance(argnums, (tuple, list)) else (argnums,)

    def refused(why: str) -> ArgumentError:
        return ArgumentError(f"{what}({name_of(func)}, argnums={argnums!r}): {why}")

    check_argnums(what, func, argnums)
    if not asked:
        raise refused("argnums is empty; name at least one argument")
    out = []
    for a in asked:
        if isinstance(a, str):
            names = list(inspect.signature(func).parameters)
            if a not in names:
                raise refused(f"there is no parameter {a!r}; there are {', '.join(names)}")
            a = names.index(a)
        if not -len(args) <= a < len(args):
            raise refused(
                f"argument {a!r} is out of range; {len(args)} positional arguments were given (an argument to differentiate by "
                "is given by position)"
            )
        out.append(a % len(args))
    if len(set(out)) != len(out):
        raise refused("an argument is named twice")
    return tuple(out)


def chosen_paths(args: Any, positions: tuple[int, ...]) -> list[str]:
    """The paths of the leaves of some arguments, as the caller would write them."""
    return [path for p in positions for path in tree.paths(args[p], f"args[{p}]")]


@calls.transform
def grad_and_value(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As `grad`, returning `(gradient, value)`, or `(gradient, (value, aux))` with `has_aux`.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.grad_and_value(lambda x: (x * x).sum())(torch.ones(2))
        (tensor([2., 2.]), tensor(2.))
    """
    check_function("grad_and_value", func, "grad_and_value(f)(x)")
    check_argnums("grad_and_value", func, argnums)
    asked = calls.Asked(grad_and_value, argnums=argnums, has_aux=has_aux)

    @calls.returned
    @opaque
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if calls.REPLAY is not None and not kwargs and not THREAD.levels:
            out = calls.REPLAY(asked, func, args)
            if out is not NO_PLAN:
                return out
        gradient, result, aux, state, keep = gradient_of(func, argnums, has_aux, args, kwargs, "grad_and_value")
        value = state.released(result, keep)
        if has_aux:
            return gradient, (value, tree.map_leaves(lambda a: state.released(a, keep), aux))
        return gradient, value

    return wrapped


def gradient_of(
    func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any, what: str
) -> tuple[Any, Any, Any, Any, bool]:
    """Gradient, output, aux, the differentiation, and whether its graph is kept; `what` is the transform in messages."""
    if torch.is_inference_mode_enabled():
        with recording_possible() as copied:
            return gradient_of(func, argnums, has_aux, copied(args), copied(kwargs), what)
    single = type(argnums) is int and 0 <= argnums < len(args) and type(args[argnums]) in _PLAIN
    if single:
        positions: tuple[int, ...] = (argnums,)
        spec: Any = None
        leaves = [args[argnums]]
    else:
        positions = argument_positions(func, argnums, args, what)
        leaves, spec = tree.flat([args[k] for k in positions])
    places = [k for k, x in enumerate(leaves) if differentiable(x)]
    if not places:
        told = without_derivative(leaves, chosen_paths(args, positions))
        msg = f"{what}({name_of(func)}, argnums={argnums!r}): there is no floating-point tensor to differentiate by: {told}"
        raise ArgumentError(msg)
    chosen = [leaves[k] for k in places]

    def call(variables: list[Any]) -> tuple[Any, Any]:
        inner = list(leaves)
        for k, x in zip(places, variables, strict=True):
            inner[k] = x
        full = list(args)  # pyright: ignore[reportArgumentType]
        for k, value in zip(positions, inner if single else tree.unflatten(inner, spec), strict=True):
            full[k] = value
        with torch.enable_grad(), nested_reverse():
            result = func(*full, **kwargs)
        if not has_aux:
            return result, None
        return with_aux(what, func, result)

    way: Any = lanewise if THREAD.levels and type(THREAD.levels[0]) is BatchLevel else tangentwise
    level = way.payload_level(func, chosen) if THREAD.levels else None
    if level is not None:
        try:
            with attempt():
                grads, result, aux, keep = way.gradient(level, chosen, call, lambda y: scalar_output(what, func, y))
            state: Any = PayloadState(way, level)
        except NeedsGraph as reason:
            if type(reason) is NeedsGraph:
                way.give_up(func)
            level = None
    if level is None:
        state = Reverse(chosen)
        result, aux = call(state.inner)
        grads, keep = state.gradient(scalar_output(what, func, result))
    made: list[Any] = [None] * len(leaves)
    for k, x, g in zip(places, chosen, grads, strict=True):
        made[k] = zeros(x) if g is None else (stopped(g) if state.stop else g)
    if single:
        return made[0], result, aux, state, keep  # pyright: ignore[reportArgumentType]
    gradients = tree.unflatten(made, spec)
    gradient = tuple(gradients) if isinstance(argnums, (tuple, list)) else gradients[0]
    return gradient, result, aux, state, keep


def seed_for(y: Tensor) -> Tensor:
    """The cotangent 1: a plain constant while only our own levels run, so that they need not carry it."""
    if not THREAD.levels or mode_count() != len(THREAD.levels) or y.dim() or y.device.type != "cpu":
        return torch.ones_like(y, requires_grad=False)
    with NoDispatch():  # a new one each time: where the function is the identity it is the gradient
        return torch.ones((), dtype=y.dtype, device="cpu")


def scalar_output(what: str, func: Any, result: Any) -> Tensor:
    """The output of a function to take the gradient of."""
    with NoFunction():
        return _scalar_output(what, func, result)


def _scalar_output(what: str, func: Any, result: Any) -> Tensor:
    if not isinstance(result, Tensor):
        aux = "; for (output, aux) say has_aux=True" if isinstance(result, tuple) and len(result) == 2 else ""
        msg = f"{what}({name_of(func)}): the function must return a scalar tensor, but returned {kind(result)}{aux}"
        raise ArgumentError(msg)
    if result.numel() != 1:
        msg = (
            f"{what}({name_of(func)}): the function must return a scalar, but returned {kind(result)}. Sum it, or use vjp, jacrev or "
            "vmap(grad)."
        )
        raise ArgumentError(msg)
    if result.is_complex():
        msg = (
            f"{what}({name_of(func)}): the function must return a real number, but returned {kind(result)}. Take its .real, .imag or "
            ".abs(), or use vjp or jacrev."
        )
        raise ArgumentError(msg)
    return result


@calls.transform
def grad(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a function with a scalar output.

    Args:
        func: returns one tensor with one element (with `has_aux`: a pair of that and anything).
        argnums: which arguments to differentiate by: an int, a parameter's name, or a tuple of them.
        has_aux: whether `func` returns `(output, aux)`.

    Returns:
        A function of the same arguments; it returns the gradient in the structure of the argument (a tuple for a tuple of
        argnums), or `(gradient, aux)`.

    Raises:
        ArgumentError: the output is no scalar, argnums are out of range, or nothing can be differentiated by.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.grad(lambda x: (x ** 2).sum())(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """
    check_function("grad", func, "grad(f)(x)")
    check_argnums("grad", func, argnums)
    asked = calls.Asked(grad, argnums=argnums, has_aux=has_aux)

    @calls.returned
    @opaque
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if calls.REPLAY is not None and not kwargs and not THREAD.levels:
            out = calls.REPLAY(asked, func, args)
            if out is not NO_PLAN:
                return out
        gradient, _, aux, state, keep = gradient_of(func, argnums, has_aux, args, kwargs, "grad")
        if has_aux:
            return gradient, tree.map_leaves(lambda a: state.released(a, keep), aux)
        return gradient

    return wrapped


__all__ = ["grad", "grad_and_value", "vjp"]
