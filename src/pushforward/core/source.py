"""The user's source: its lines, for errors and warnings, and what a function is known by."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
import warnings
from typing import Any

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PYTHON = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))  # which may lie in Python's own folder


@functools.lru_cache(1 << 12)
def is_library_file(name: str) -> bool:
    """Whether a file name is ours, torch's or Python's own."""
    if name.startswith((_PACKAGE, _TORCH, "<frozen")):
        return True
    return name.startswith(_PYTHON) and not any(folder in name for folder in _INSTALLED)


def warn(text: str, category: type[Warning]) -> None:
    """Warn of a line of the user's: the innermost that is no library's."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and is_library_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def place_of(func: Any) -> str:
    """A function in words: its name, and where it is written."""
    while not hasattr(func, "__code__") and hasattr(func, "func"):
        func = func.func
    code = getattr(func, "__code__", None) or getattr(getattr(type(func), "forward", None), "__code__", None)
    name = getattr(func, "__name__", None) or type(func).__name__
    return name if code is None else f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def line_of(error: BaseException) -> str:
    """`file.py:line` of the innermost frame of an error that is neither ours nor torch's."""
    found, trace = "<unknown>", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_library_file(name):
            found = f"{os.path.basename(name)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def source_place() -> tuple[str, int]:
    """File and line of the innermost frame that is neither ours nor torch's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library_file(name):
            return name, frame.f_lineno
        frame = frame.f_back
    return "<unknown>", 0


def source_line() -> str:
    """The same as `file.py:line`."""
    name, line = source_place()
    return f"{os.path.basename(name)}:{line}" if line else name


def torch_call() -> str:
    """The function of torch's that the user's innermost line is in; empty where it is none that runs in Python."""
    found, frame = "", sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        code = frame.f_code
        if code.co_filename.startswith(_TORCH) and not code.co_filename.endswith(_ON_THE_WAY) and "<locals>" not in code.co_qualname:
            found = code.co_qualname
        frame = frame.f_back
    return found


# Between a call and the function that it is of: methods of tensors, overrides, the call of a module.
_ON_THE_WAY = tuple(os.sep + name.replace("/", os.sep) for name in ("_tensor.py", "overrides.py", "modules/module.py", "_ops.py"))


def code_of(func: Any) -> Any:
    """What tells a function from others, without keeping what it holds: its code, or that of its class."""
    codes: list[Any] = []
    while len(codes) < 8:  # what `functools.wraps` made shares its code with all that the same decorator made
        while isinstance(func, functools.partial):
            func = func.func
        codes.append(getattr(func, "__code__", None) or of_class(func))
        func = getattr(func, "__wrapped__", None)
        if func is None:
            break
    return codes[0] if len(codes) == 1 else tuple(codes)


def of_class(func: Any) -> Any:
    """What tells an object that can be called from others."""
    if isinstance(func, types.BuiltinFunctionType):
        return func
    return getattr(getattr(type(func), "forward", None), "__code__", type(func))
