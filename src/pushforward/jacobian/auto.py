"""`jacobian`, `value_and_jacobian` and the options of `hessian`: plan, then run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from ..batch.repeat import undrawn
from ..core import tree
from ..core.errors import ArgumentError
from ..core.traced import Traced
from ..core.words import check_argnums, check_function
from ..reverse import argument_positions, grad
from ..sparsity.detect import Detected, detect
from . import dense
from .jacobian_plan import JacobianPlan, signature
from .memory import Meter
from .planner import check_options, planned
from .problem import Problem

Tensor = torch.Tensor


class Planner:
    """Plans once for each shape of the arguments, and runs the plans.

    A plan with a pattern is used again only while nothing that the pattern rests on can have changed: no Python
    branches, and the arguments not differentiated by are the same objects; every run checks one random product.
    """

    def __init__(self, func: Any, argnums: Any, options: dict[str, Any], what: str) -> None:
        self.func, self.argnums, self.options, self.what = func, argnums, options, what
        self.plans: dict[Any, JacobianPlan] = {}

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Jacobian, value, aux."""
        key = self.key(args, kwargs)
        plan = self.plans.get(key) if key is not None else None
        if plan is None:
            plan = self.make(args, kwargs)
            if key is not None and self.can_stay(plan):
                self.plans[key] = plan
        return plan.run(args, kwargs, verify=True)

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JacobianPlan:
        """A plan for these arguments."""
        problem = Problem(self.func, self.argnums, args, kwargs, self.options["has_aux"], self.what)
        o = self.options
        return planned(problem, o["mode"], o["sparsity"], o["memory"], o["chunk_size"])

    def can_stay(self, plan: JacobianPlan) -> bool:
        """Whether the plan holds at other points."""
        return plan.detected is None or (not self.is_local and not plan.detected.branches)

    @property
    def is_local(self) -> bool:
        """Whether the pattern holds at one point only."""
        return isinstance(self.options["sparsity"], str) and self.options["sparsity"] == "local"

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a plan is kept under; None where it must not be kept."""
        positions = argument_positions(self.func, self.argnums, args, self.what)
        others = [a for k, a in enumerate(args) if k not in positions]
        fixed = tuple((id(x), x._version) for x in tree.leaves((others, kwargs)) if isinstance(x, Tensor))
        made = (signature(args, kwargs), fixed)
        try:
            hash(made)
        except TypeError:
            return None
        return made


def jacobian(
    func: Callable[..., Any],
    argnums: Any = 0,
    *,
    mode: str = "auto",
    sparsity: Any = None,
    memory: Any = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of a pure function, in the mode that is fastest within the memory allowed.

    Args:
        func: returns a tensor or a pytree of tensors (with `has_aux`: a pair of that and anything). It is evaluated a
        few more
            times than its derivative needs.
        argnums: which arguments to differentiate by: an int, a parameter's name, or a tuple of them.
        mode: "auto", "forward", "reverse", or "both" (some columns forward, some rows in reverse).
        sparsity: None (dense blocks as `jacfwd` returns them), "global", "local", "auto", or a pattern, as in `plan`.
            With a pattern each block is a `torch.sparse_csr` matrix of output elements × input elements.
        memory: bytes allowed, as in `plan`.
        chunk_size: at most so many passes at a time.
        has_aux: whether `func` returns `(output, aux)`; the result is then `(jacobian, aux)`.

    Returns:
        A function of the same arguments. It plans once for each shape of the arguments: keep it (or a `plan`) where it is called
        again, for planning costs several evaluations of `func`.

    Raises:
        ArgumentError: unknown options, a pattern of another shape, nothing to differentiate by.
        PatternError: the pattern misses nonzeros.
        OutOfBudgetError: nothing fits the memory allowed.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.jacobian(torch.sin)(torch.zeros(2))
        tensor([[1., 0.],
                [0., 1.]])
        >>> pf.jacobian(torch.sin, sparsity="global")(torch.zeros(20000)).shape
        torch.Size([20000, 20000])
    """
    run = runner(func, argnums, mode, sparsity, memory, chunk_size, has_aux, "jacobian")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        made, _, aux = run(args, kwargs)
        return (made, aux) if has_aux else made

    return wrapped


def value_and_jacobian(
    func: Callable[..., Any],
    argnums: Any = 0,
    *,
    mode: str = "auto",
    sparsity: Any = None,
    memory: Any = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """As `jacobian`, returning `(value, jacobian)`, or `(value, jacobian, aux)` with `has_aux`.

    Example:
        >>> import torch, pushforward as pf
        >>> value, j = pf.value_and_jacobian(lambda x: x ** 2)(torch.tensor([1.0, 3.0]))
        >>> value, j.diagonal()
        (tensor([1., 9.]), tensor([2., 6.]))
    """
    run = runner(func, argnums, mode, sparsity, memory, chunk_size, has_aux, "value_and_jacobian")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        made, value, aux = run(args, kwargs)
        return (value, made, aux) if has_aux else (value, made)

    return wrapped


def runner(
    func: Any, argnums: Any, mode: str, sparsity: Any, memory: Any, chunk_size: Any, has_aux: bool, what: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any, Any]]:
    """Jacobian, value and aux of a call: by a plan, or inside of another transform by the plain rule."""
    check_function(what, func, f"{what}(f)(x)")
    check_argnums(what, func, argnums)
    check_options(what, mode, sparsity)
    dense.check_chunk(what, chunk_size)
    options = {"mode": mode, "sparsity": sparsity, "memory": memory, "chunk_size": chunk_size, "has_aux": has_aux}
    planner = Planner(func, argnums, options, what)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        if any(isinstance(x, Traced) for x in tree.leaves((args, kwargs))):
            return inside(func, argnums, args, kwargs, options, what)
        return planner.run(args, kwargs)

    return run


def inside(
    func: Any, argnums: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any], what: str
) -> tuple[Any, Any, Any]:
    """Inside of another transform nothing can be metered: the fewer passes win."""
    if options["sparsity"] is not None or options["mode"] == "both":
        msg = f"{what} with sparsity inside of another transform: sparse blocks are not mapped; find the matrix outside"
        raise ArgumentError(msg)

    def with_value(*a: Any, **k: Any) -> Any:
        out = func(*a, **k)
        return (out[0], out) if options["has_aux"] else (out, (out, None))

    mode = options["mode"]
    if mode == "auto":
        problem = Problem(func, argnums, args, kwargs, options["has_aux"], what)
        with undrawn(problem.leaves[0].device):
            problem.outs = problem.of_inputs(*problem.leaves)[0]
        mode = "forward" if problem.n <= problem.m else "reverse"
    transform = dense.jacfwd if mode == "forward" else dense.jacrev
    made, (value, aux) = transform(with_value, argnums, has_aux=True, chunk_size=options["chunk_size"])(*args, **kwargs)
    return made, value, aux


def hessian(
    func: Callable[..., Any],
    argnums: Any = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    mode: str = "auto",
    sparsity: Any = None,
    memory: Any = None,
) -> Callable[..., Any]:
    """The Hessian: `jacfwd(jacrev(func))`, or by the colours of its pattern.

    Args:
        func: returns a tensor, usually a scalar (with `has_aux`: a pair of that and anything).
        argnums: as in `jacobian`.
        has_aux: whether `func` returns `(output, aux)`; the result is then `(hessian, aux)`.
        chunk_size: at most so many directions at a time.
        mode: "auto", "forward" (over the gradient) or "reverse" (over the gradient).
        sparsity: as in `jacobian`, for scalar functions: each block is a `torch.sparse_csr` matrix. A symmetric
        matrix takes one
            product for each colour of a star colouring.
        memory: bytes allowed, as in `plan`.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.hessian(lambda x: (x ** 3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
        >>> h = pf.hessian(lambda x: (x[1:] * x[:-1]).sum(), sparsity="global")(torch.ones(1000))
        >>> h.values().numel()
        1998
    """
    check_function("hessian", func, "hessian(f)(x)")
    check_argnums("hessian", func, argnums)
    check_options("hessian", mode, sparsity)
    if sparsity is None and memory is None and mode == "auto":
        return dense.hessian(func, argnums, has_aux=has_aux, chunk_size=chunk_size)
    if mode == "both":
        msg = "hessian(mode='both'): a Hessian is symmetric, one direction gives all of it"
        raise ArgumentError(msg)
    options = {"mode": mode, "sparsity": sparsity, "memory": memory, "chunk_size": chunk_size, "has_aux": has_aux}
    planner = HessianPlanner(func, argnums, options, "hessian")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        made, _, aux = planner.run(args, kwargs)
        return (made, aux) if has_aux else made

    return wrapped


class HessianPlanner(Planner):
    """Plans for the Jacobian of the gradient, whose pattern is symmetric."""

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JacobianPlan:
        """A plan for the Hessian at these arguments."""
        o = self.options
        device = next((x.device for x in tree.leaves((args, kwargs)) if isinstance(x, Tensor)), None)
        with undrawn(device), Meter():
            gradient = self.gradient(args, kwargs)
        problem = Problem(gradient, self.argnums, args, kwargs, o["has_aux"], self.what)
        mode = "forward" if o["mode"] == "auto" else o["mode"]

        def detector(kind: str) -> Detected:
            found = detect(problem.plain, tuple(problem.leaves), tuple(range(len(problem.leaves))), {}, kind)
            return dataclasses.replace(found, pattern=found.pattern.symmetrised())

        symmetric = o["sparsity"] is not None and mode == "forward"
        return planned(
            problem, mode, o["sparsity"], o["memory"], o["chunk_size"], detector=detector, symmetric=symmetric
        )

    def gradient(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The gradient of a scalar function, or the reverse-mode Jacobian of any other."""
        out = self.func(*args, **kwargs)
        out = out[0] if self.options["has_aux"] else out
        if isinstance(out, Tensor) and out.numel() == 1 and out.dim() == 0:
            return grad(self.func, self.argnums, has_aux=self.options["has_aux"])
        if self.options["sparsity"] is not None:
            msg = "hessian with sparsity: the function must return a scalar"
            raise ArgumentError(msg)
        return dense.jacrev(self.func, self.argnums, has_aux=self.options["has_aux"])
