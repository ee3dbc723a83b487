"""What the user calls a tensor: the variable, attribute or module buffer that holds it, for errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from .source import is_library_file
from .torch_private import NoFunction
from .traced import Traced

Tensor = torch.Tensor
_FRAMES = 40


def described(target: Tensor) -> str:
    """A tensor in words, by its name if one is found."""
    with NoFunction():
        name = variable_name(target)
        base = target._base
        shape = list((target if base is None else base).shape)
    return f"`{name}` (a tensor of shape {shape})" if name else f"a tensor of shape {shape}"


def variable_name(target: Tensor) -> str | None:
    """How the user's code would write a tensor, or the tensor it is a view of."""
    for frame in frames():
        if is_library_file(frame.f_code.co_filename):
            continue
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in list(scope.items()):
                found = name_in(value, name, target)
                if found is not None:
                    return found
    return None


def frames() -> Iterator[Any]:
    """The frames that are running, the innermost first."""
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def name_in(value: Any, name: str, target: Tensor) -> str | None:
    """The name of `target` within a variable: itself, an attribute, an element, or a module's parameter or buffer."""
    if isinstance(value, Tensor):
        return name if same_memory(value, target) else None
    if isinstance(value, torch.nn.Module):
        for path, own in [*value.named_buffers(), *value.named_parameters()]:
            if same_memory(own, target):
                return f"{name}.{path}"
        return None
    if isinstance(value, dict):
        parts = [(f"{name}[{k!r}]", v) for k, v in list(value.items())[:200]]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{name}[{k}]", v) for k, v in enumerate(value[:200])]
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(getattr(value, "__path__", None)):
        if type(value).__name__ == "module":
            return None
        parts = [(f"{name}.{k}", v) for k, v in vars(value).items()]
    else:
        return None
    return next((n for n, v in parts if isinstance(v, Tensor) and same_memory(v, target)), None)


def same_memory(value: Tensor, target: Tensor) -> bool:
    """Whether two tensors are one, or views of one memory."""
    if value is target:
        return True
    if isinstance(value, Traced) or isinstance(target, Traced) or value.layout is not torch.strided:
        return value is target._base if target._base is not None else False
    try:
        place = value.untyped_storage().data_ptr()
        return place != 0 and place == target.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass without memory of its own
        return False


def module_path(kind: type | tuple[type, ...]) -> str | None:
    """The path of the running module of a kind in the outermost module that holds it: `blocks.0.norm` of `Net`."""
    inner = root = None
    for frame in frames():
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module):
            if inner is None and isinstance(module, kind):
                inner = module
            root = module
    if inner is None or root is None:
        return None
    for path, module in root.named_modules():
        if module is inner:
            return f"`{path}` ({type(inner).__name__}) of {type(root).__name__}" if path else type(inner).__name__
    return type(inner).__name__
