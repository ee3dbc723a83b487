"""Methods of traced values that take a short way straight from Python, past torch's argument parser."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from .opaque import opaque
from .torch_private import function_mode_on, functions_on

Tensor = torch.Tensor
Short = Callable[[Any, tuple[Any, ...]], Any]  # the function of the API and its arguments: a result, or None
OPERATORS = {"__add__", "__sub__", "__mul__", "__truediv__", "__matmul__", "__getitem__"}
SWAPPED = {
    "__radd__": "__add__",
    "__rsub__": "__sub__",
    "__rmul__": "__mul__",
    "__rtruediv__": "__truediv__",
    "__rmatmul__": "__matmul__",
}


def own_code(function: Any) -> Any:
    """A function with a copy of its code: the interpreter adapts code to what it calls, and each operator calls another."""
    made = types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return opaque(made)


def method(short: Short, original: Any) -> Any:
    """A method: the short way at once, where nobody else listens to calls of the Python API."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and functions_on() and not function_mode_on():
            out = short(original, (self, *args))
            if out is not None:
                return out
        return original(self, *args, **kwargs)

    return own_code(call)


def operator_method(short: Short, original: Any, swapped: Any = None) -> Any:
    """The same for an operator of two; `swapped` is for `plain + traced`, which comes to the traced value first."""

    def call(self: Any, other: Any) -> Any:
        if swapped is not None and isinstance(other, Tensor):
            return swapped(other, self)  # the result lies in memory as the first operand does
        if functions_on() and not function_mode_on():
            out = short(original, (self, other))
            if out is not None:
                return out
        return original(self, other)

    return own_code(call)


def register_method(cls: type, name: str, short: Short) -> None:
    """Let a method or an operator of traced values take a short way."""
    original = getattr(Tensor, name)
    if name in SWAPPED:
        made = operator_method(short, original, getattr(Tensor, SWAPPED[name]))
    else:
        made = (operator_method if name in OPERATORS else method)(short, original)
    made.__name__ = name
    setattr(cls, name, made)
