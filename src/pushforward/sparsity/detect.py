"""The pattern of a Jacobian or a Hessian, by one run of the function under the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.traced import Traced
from ..core.words import check_function, name_of, without_derivative
from ..core.words import kind as describe
from ..reverse import argument_positions, chosen_paths, differentiable, grad
from . import families
from .csr import Pattern
from .custom import functions_followed
from .interpreter import NoPatternError, PatternLevel, has_labels

Tensor = torch.Tensor
del families


@dataclass(frozen=True)
class Detected:
    """A pattern and what it rests on.

    Attributes:
        pattern: outputs × inputs.
        branches: source lines at which Python read a value that depends on the inputs; the pattern holds for the branch
            taken.
        dense: operators without a rule, and how often each was met: taken as dense.
        saturated: the sets grew so large that some were taken as full.
        kind: "global", "local" or "given".
    """

    pattern: Pattern
    branches: tuple[str, ...] = ()
    dense: dict[str, int] = field(default_factory=dict)
    saturated: bool = False
    kind: str = "given"

    @property
    def holds_elsewhere(self) -> bool:
        """Whether the pattern was found for every point, and no branch of the function can make it another one."""
        return self.kind == "global" and not self.branches


def detect(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    argnums: Any,
    kwargs: dict[str, Any],
    kind: str = "global",
    what: str = "sparsity",
) -> Detected:
    """The pattern of the Jacobian by the chosen arguments, all outputs below each other, all inputs beside each other.

    Args:
        func: returns a tensor or a pytree of tensors.
        args: its positional arguments.
        argnums: which of them to differentiate by, as in `jacfwd`.
        kwargs: its keyword arguments.
        kind: "global" (holds at every point) or "local" (at this point).
        what: who asks, for messages.

    Raises:
        NoPatternError: the function does something that cannot be followed.
        ArgumentError: another `kind`, or nothing to differentiate by.
    """
    if kind not in ("global", "local"):
        msg = f"sparsity={kind!r}: a pattern is 'global' (valid at every point) or 'local' (at this point)"
        raise ArgumentError(msg)
    positions = argument_positions(func, argnums, args, what)
    leaves, spec = tree.flat([args[k] for k in positions])
    if any(isinstance(x, Traced) for x in leaves):
        msg = "the inputs are values of a running transform: find the pattern outside, and pass it as sparsity=pattern"
        raise NoPatternError(msg)
    chosen = [k for k, x in enumerate(leaves) if differentiable(x)]
    if not chosen:
        told = without_derivative(leaves, chosen_paths(args, positions))
        msg = f"{what}({name_of(func)}, argnums={argnums!r}): there is no floating-point tensor to differentiate by: {told}"
        raise ArgumentError(msg)
    copies = list(leaves)
    for k in chosen:
        copies[k] = leaves[k].detach().clone(memory_format=torch.contiguous_format)
    total = sum(copies[k].numel() for k in chosen)
    level = PatternLevel(total, local=kind == "local")
    start = 1
    for k in chosen:
        n = copies[k].numel()
        level.write(copies[k], np.arange(start, start + n).reshape(tuple(copies[k].shape)), True)
        start += n
    full = list(args)
    for k, value in zip(positions, tree.unflatten(copies, spec), strict=True):
        full[k] = value
    with level, functions_followed(level):
        result = func(*full, **kwargs)
    returned = tree.leaves(result)
    if returned and not any(isinstance(o, Tensor) for o in returned):
        msg = f"{what}({name_of(func)}): the function must return a tensor, but returned {describe(result)}"
        raise ArgumentError(msg)
    rows = []
    for o in returned:
        if has_labels(o):
            labels = level.read(o)
            rows.append(np.zeros(o.numel(), dtype=np.int64) if labels is None else labels.reshape(-1))
    labels = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    branches = tuple(dict.fromkeys(level.branches))
    return Detected(level.sets.pattern(labels), branches, dict(level.dense), level.sets.saturated, kind)


def jacobian_sparsity(
    func: Callable[..., Any], *args: Any, argnums: Any = 0, kind: str = "global", **kwargs: Any
) -> Pattern:
    """The places of the Jacobian that can be nonzero: m outputs × n inputs, both flattened in order.

    Args:
        func: returns a tensor or a pytree of tensors.
        args: its arguments; "global" patterns use their shapes and constants, "local" ones their values.
        argnums: which arguments to differentiate by.
        kind: "global": holds at every point with the same shapes, captured constants and Python branches;
            "local": at this point.
        kwargs: keyword arguments of `func`.

    Raises:
        NoPatternError: the function does something that cannot be followed.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.jacobian_sparsity(lambda x: x[1:] - x[:-1], torch.zeros(4)).to_mask().astype(int)
        array([[1, 1, 0, 0],
               [0, 1, 1, 0],
               [0, 0, 1, 1]])
    """
    check_function("jacobian_sparsity", func, "jacobian_sparsity(f, x)")
    return detect(func, args, argnums, kwargs, kind, "jacobian_sparsity").pattern


def hessian_sparsity(
    func: Callable[..., Any], *args: Any, argnums: Any = 0, kind: str = "global", **kwargs: Any
) -> Pattern:
    """The places of the Hessian of a scalar function that can be nonzero: the pattern of its gradient, made symmetric.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.hessian_sparsity(lambda x: (x[1:] * x[:-1]).sum(), torch.ones(3)).to_mask().astype(int)
        array([[0, 1, 0],
               [1, 0, 1],
               [0, 1, 0]])
    """
    check_function("hessian_sparsity", func, "hessian_sparsity(f, x)")
    return detect_hessian(func, args, argnums, kwargs, kind, "hessian_sparsity").pattern


def detect_hessian(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    argnums: Any,
    kwargs: dict[str, Any],
    kind: str = "global",
    what: str = "sparsity",
) -> Detected:
    """As `detect`, for the Hessian."""
    found = detect(grad(func, argnums), args, argnums, kwargs, kind, what)
    return replace(found, pattern=found.pattern.symmetrised())


__all__ = ["Detected", "NoPatternError", "detect", "detect_hessian", "hessian_sparsity", "jacobian_sparsity"]
