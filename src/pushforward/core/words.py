"""Words for messages: what a value is, what a function is called, and what to write instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .errors import ArgumentError

Tensor = torch.Tensor
MOST = 4  # so many leaves are named


def name_of(func: Any) -> str:
    """The user's name for a function."""
    return getattr(func, "__name__", None) or type(func).__name__


def kind(value: Any) -> str:
    """What a value is."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"a numpy array of shape {list(value.shape)} and dtype {value.dtype}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def is_number(value: Any) -> bool:
    """Whether a value is a number, or an array of them, that is no tensor; truth values are none."""
    if isinstance(value, (int, float, complex)):
        return not isinstance(value, bool)
    return isinstance(value, (np.ndarray, np.number)) and value.dtype.kind in "iufc"


def instead(value: Any) -> str:
    """What to write in place of a leaf that has no derivative, for one that has."""
    if isinstance(value, Tensor):
        return "cast it with .float() or .double()"
    if isinstance(value, np.ndarray):
        return "write torch.tensor(x)" if value.dtype.kind in "fc" else "write torch.tensor(x, dtype=torch.float64)"
    if is_number(value):
        return f"write torch.tensor({value if isinstance(value, complex) else float(value)})"
    if isinstance(value, torch.nn.Module):
        return "pass dict(module.named_parameters()) to a function that calls pf.functional_call"
    return "say by argnums which arguments are differentiated by"


def without_derivative(leaves: list[Any], paths: list[str]) -> str:
    """What the leaves of some arguments are, where none of them can be differentiated by, and what to write instead."""
    if not leaves:
        return "there is no tensor in it"
    told = ", ".join(f"{path} is {kind(x)}" for x, path in zip(leaves[:MOST], paths, strict=False))
    return f"{told}{', …' if len(leaves) > MOST else ''}; {instead(leaves[0])}"


def check_function(what: str, func: Any, written: str, name: str = "func") -> None:
    """A function, the argument of this name, can be called; `written`: how the call of the transform is written.

    Raises:
        ArgumentError: it cannot.
    """
    if not callable(func):
        msg = f"{what}: {name} must be a function (or a module), but is {kind(func)}; write {written}"
        raise ArgumentError(msg)


def check_argnums(what: str, func: Any, argnums: Any) -> None:
    """`argnums` are ints and names of parameters.

    Raises:
        ArgumentError: there is something else among them.
    """
    if type(argnums) is int:
        return
    for a in argnums if isinstance(argnums, (tuple, list)) else (argnums,):
        if isinstance(a, (int, str)) and not isinstance(a, bool):
            continue
        msg = (
            f"{what}({name_of(func)}, argnums={short(argnums)}): argnums must be an int, a parameter's name, or a tuple of them, but "
            f"{'is' if a is argnums else 'holds'} {kind(a)}; write {what}(f)(x)"
        )
        raise ArgumentError(msg)


def check_module(what: str, name: str, module: Any) -> None:
    """An argument is a module.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(module, torch.nn.Module):
        msg = f"{what}: {name} must be a torch.nn.Module, but is {kind(module)}"
        raise ArgumentError(msg)


def short(value: Any) -> str:
    """A value as it is written, but for tensors."""
    return kind(value) if isinstance(value, Tensor) else repr(value)


def with_aux(what: str, func: Any, result: Any) -> tuple[Any, Any]:
    """Output and aux of a function under `has_aux=True`.

    Raises:
        ArgumentError: it returned no pair.
    """
    if isinstance(result, tuple) and len(result) == 2:
        return result
    of = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
    msg = f"{what}({name_of(func)}, has_aux=True): the function must return a tuple (output, aux), but returned {kind(result)}{of}"
    raise ArgumentError(msg)
