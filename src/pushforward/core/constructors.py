"""`torch.tensor([x[0], 0.0])` with values of a transform in the list: the stack of them, derivatives and lanes kept.

These constructors pass neither `__torch_function__` nor dispatch, and read the numbers. They are caught while a
transform runs; outside of one, and under `torch.compile`, they are torch's own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .level import THREAD
from .torch_private import register_builtin
from .traced import SPECIAL, Traced

Tensor = torch.Tensor
_SEQUENCES = (list, tuple)
is_compiling = torch.compiler.is_compiling


def holds_values(data: Any) -> bool:
    """Whether a nested list holds a tensor that a transform follows."""
    for v in data:
        if isinstance(v, Tensor):
            if isinstance(v, Traced) or (v.requires_grad and THREAD.order):
                return True
        elif type(v) in _SEQUENCES and holds_values(v):
            return True
    return False


def scalar_type(data: Any) -> torch.dtype:
    """The dtype that torch infers for a nested list."""
    if isinstance(data, Tensor):
        return data.dtype
    if type(data) in _SEQUENCES:
        kinds = [scalar_type(v) for v in data]
        return functools.reduce(torch.promote_types, kinds) if kinds else torch.get_default_dtype()
    return torch.as_tensor(data).dtype


def built(data: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """The stack of a nested list."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)
    if type(data) in _SEQUENCES:
        return (
            torch.stack([built(v, dtype, device) for v in data]) if data else torch.empty(0, dtype=dtype, device=device)
        )
    return torch.full((), data, dtype=dtype, device=device)


def constructor(original: Any) -> Any:
    """A constructor that stacks where its list holds values of a transform."""

    @functools.wraps(original)
    def made(data: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            is_compiling()
            or type(data) not in _SEQUENCES
            or not (THREAD.levels or THREAD.order)
            or not holds_values(data)
        ):
            return original(data, *args, **kwargs)
        dtype = kwargs.get("dtype", args[0] if args else None) or scalar_type(data)
        out = built(data, dtype, kwargs.get("device") or torch.get_default_device())
        return out.detach().requires_grad_() if kwargs.get("requires_grad") else out

    return made


def new_tensor(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """`x.new_tensor([y[0], 0.0])`: dtype and device are those of x."""
    kwargs = kwargs or {}
    x, data = args[0], args[1] if len(args) > 1 else kwargs.get("data")
    if type(data) not in _SEQUENCES or not holds_values(data):
        return func(*args, **kwargs)
    return built(data, kwargs.get("dtype") or x.dtype, kwargs.get("device") or x.device)


def install() -> None:
    """Catch the constructors from now on."""
    for name in ("tensor", "as_tensor", "asarray"):
        made = constructor(getattr(torch, name))
        setattr(torch, name, made)
        register_builtin(made, f"aten::{name}")
    SPECIAL[Tensor.new_tensor] = new_tensor


install()
