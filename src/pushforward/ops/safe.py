"""Decompositions above autograd, where an operator's reverse formula cannot be differentiated again, or not rightly.

Torch's formulas treat saved statistics as constants (the norms from the third order on), or have no double backward
at all (attention, distances, CTC, bags of embeddings, segments, margin losses, fused recurrent layers). Forward mode
does not need them: its rules are written out. So once two reverse differentiations are nested, these functions are
replaced by others that do the same in elementary operators: for traced values by `SPECIAL`, for plain tensors, which
nothing else sees, by a function mode. With one reverse differentiation nothing is pushed and nothing is paid.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core.carry import CARRIED
from ..core.errors import ArgumentWriteError
from ..core.level import THREAD
from ..core.opaque import opaque
from ..core.source import line_of
from ..core.torch_private import EnableFunction, function_modes
from ..core.traced import SPECIAL
from ..core.transposing import register_hook

functional = torch.nn.functional
SAFE: dict[Any, Callable[..., Any]] = {}  # the Python API's function: its replacement, of the same signature
SEEN: dict[Any, Callable[..., Any]] = {}  # what is done around a call (or its replacement's), which it is given first


class _Nesting(threading.local):
    reverse = 0  # how many reverse differentiations are running


_NESTING = _Nesting()
CARRIED.append(_NESTING)


class nested_differentiation(contextlib.AbstractContextManager):
    """One more differentiation is running, in forward mode."""

    __slots__ = ()

    def __enter__(self) -> None:
        THREAD.order += 1

    def __exit__(self, *_: Any) -> None:
        THREAD.order -= 1


class nested_reverse(contextlib.AbstractContextManager):
    """One more differentiation is running, in reverse mode."""

    __slots__ = ("mode",)

    def __enter__(self) -> None:
        THREAD.order += 1
        _NESTING.reverse += 1
        self.mode = None
        if _NESTING.reverse == 2:
            self.mode = SafeMode()
            self.mode.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        THREAD.order -= 1
        _NESTING.reverse -= 1
        if self.mode is not None:
            self.mode.__exit__(kind, error, trace)
        if kind is RuntimeError and "leaf Variable that requires grad" in str(error):
            msg = (
                f"reverse mode: the function writes at {line_of(error)} into a tensor that a derivative is taken by (one of its "
                "arguments, or a variable from outside). Write into a copy (`x = x.clone()`); jvp, jacfwd and vmap write into "
                "arguments as a plain call does."
            )
            raise ArgumentWriteError(msg) from error


def nesting() -> tuple[int, int]:
    """How many differentiations are running, and how many of them in reverse mode."""
    return THREAD.order, _NESTING.reverse


@contextlib.contextmanager
def nesting_of(then: tuple[int, int]) -> Iterator[None]:
    """As many differentiations as there were then, for a function that is run again."""
    now = nesting()
    THREAD.order, _NESTING.reverse = then
    on = any(isinstance(mode, SafeMode) for mode in function_modes())
    try:
        with SafeMode() if then[1] >= 2 and not on else contextlib.nullcontext():
            yield
    finally:
        THREAD.order, _NESTING.reverse = now


class SafeMode(TorchFunctionMode):
    """Replaces functions while reverse differentiations are nested."""

    @opaque
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if _NESTING.reverse < 2:
            return func(*args, **kwargs)
        replacement, seen = SAFE.get(func), SEEN.get(func)
        if seen is not None and torch.is_grad_enabled():
            called = replacement or func
            return seen(lambda: called(*args, **kwargs), *args, **kwargs)
        if replacement is not None:
            if torch.is_grad_enabled():
                return replacement(*args, **kwargs)
        elif func in REOPENED:
            with self:
                return reopened(func)(*args, **kwargs)
        return func(*args, **kwargs)


# -- functions of the Python API that call replaced ones -------------------------------------------------------------

_REOPENED: dict[Any, Any] = {}
REOPENED = {
    function
    for function in vars(functional).values()
    if isinstance(function, types.FunctionType)
    and function.__globals__ is vars(functional)
    and "handle_torch_function" in function.__code__.co_names
}


def reopened(function: Any) -> Any:
    """`function` with its body open: the operators that it calls are seen one by one.

    A function of torch.nn.functional hands itself over as a whole where anybody listens; this one does not, so that
    what it calls is handed over instead.
    """
    found = _REOPENED.get(function)
    if found is None:
        names = {n: _nobody for n in function.__globals__ if n.startswith("has_torch_function")}
        scope = _Scope(function.__globals__, names)
        found = types.FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
        )
        found.__kwdefaults__ = function.__kwdefaults__
        _REOPENED[function] = found
    return found


def _nobody(*_: Any) -> bool:
    return False


def _Scope(names: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """A copy of a module's names with some of them changed."""
    return {**names, **changed}


def open_body(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Run a function's body on traced values, its calls handed over one by one."""
    with EnableFunction():
        return reopened(func)(*args, **(kwargs or {}))


def open_when_nested(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """As `open_body`, where the functions it calls are to be replaced."""
    return open_body(func, args, kwargs) if _NESTING.reverse >= 2 else NotImplemented


def replaced_when_nested(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """The replacement, on traced values."""
    if _NESTING.reverse < 2 or not torch.is_grad_enabled():
        return NotImplemented
    return SAFE[func](*args, **(kwargs or {}))


def replaced_always(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """The replacement, on traced values at any order."""
    return ALWAYS[func](*args, **(kwargs or {}))


ALWAYS: dict[Any, Callable[..., Any]] = {}


def safe(*functions: Any) -> Callable[[Any], Any]:
    """Decorator: the replacement of some functions of the Python API where reverse differentiations are nested."""

    def keep(replacement: Any) -> Any:
        for function in functions:
            SAFE[function] = replacement
            SPECIAL.setdefault(function, replaced_when_nested)
        return replacement

    return keep


def always(*functions: Any) -> Callable[[Any], Any]:
    """Decorator: the replacement of some functions for traced values, whatever is nested."""

    def keep(replacement: Any) -> Any:
        for function in functions:
            ALWAYS[function] = replacement
            SPECIAL[function] = replaced_always
        return replacement

    return keep


SAFE[torch.Tensor.register_hook] = register_hook
SPECIAL[functional.gumbel_softmax] = open_body  # its own `.detach()` is part of what it means
SPECIAL[functional.multi_head_attention_forward] = open_body  # its parts have short ways
for _function in (functional.embedding_bag,):
    SPECIAL[_function] = open_when_nested
