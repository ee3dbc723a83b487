"""`torch.tensor([x[0], 0.0])` with values of a transform in the list: the stack of them, derivatives and lanes kept.

`torch.tensor(x)` of one tensor is a copy of its numbers, a constant to every differentiation, as torch has it.

These constructors pass neither `__torch_function__` nor dispatch, and read the numbers. They are caught while a
transform runs; outside of one, and under `torch.compile`, they are torch's own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .fresh import stopped
from .level import THREAD
from .torch_private import NoFunction, register_builtin
from .traced import SPECIAL, Traced

Tensor = torch.Tensor
_SEQUENCES = (list, tuple)
TENSOR = torch.tensor
CAUGHT = ("tensor", "as_tensor", "asarray")
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


def holds_tensors(data: Any) -> bool:
    """Whether a nested list holds a tensor."""
    return any(isinstance(v, Tensor) or (type(v) in _SEQUENCES and holds_tensors(v)) for v in data)


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


def copied(
    x: Traced,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    how: str = "torch.tensor(x) of one tensor",
) -> Tensor:
    """`torch.tensor(x)`: a constant; that a tangent ends here is said."""
    del pin_memory
    below: Any = x
    while isinstance(below, Traced):
        if getattr(below, "_tangent", None) is not None:
            below._level.newest().lose(how, "copies the numbers of a differentiated value")
        below = below._below()
    with NoFunction():
        out = stopped(x).clone().to(device=device, dtype=dtype)
    return out.requires_grad_() if requires_grad else out


def constructor(original: Any) -> Any:
    """A constructor that stacks where its list holds values of a transform."""

    @functools.wraps(original)
    def made(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, Traced) and original is TENSOR and not is_compiling():
            return copied(data, *args, **kwargs)
        if (
            is_compiling()
            or type(data) not in _SEQUENCES
            or not (THREAD.levels or THREAD.order)
            or not holds_values(data)
        ):
            if THREAD.recorders and holds_tensors([data]):
                THREAD.unrepeatable += 1  # their numbers are read, and no mode sees it
            return original(data, *args, **kwargs)
        dtype = kwargs.get("dtype", args[0] if args else None) or scalar_type(data)
        out = built(data, dtype, kwargs.get("device") or torch.get_default_device())
        return out.detach().requires_grad_() if kwargs.get("requires_grad") else out

    return made


def new_tensor(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """`x.new_tensor([y[0], 0.0])`: dtype and device are those of x."""
    kwargs = kwargs or {}
    x, data = args[0], args[1] if len(args) > 1 else kwargs.get("data")
    if isinstance(data, Traced):
        return copied(data, **{"dtype": x.dtype, "device": x.device, **{k: v for k, v in kwargs.items() if k != "data"}})
    if type(data) not in _SEQUENCES or not holds_values(data):
        return func(*args, **kwargs)
    out = built(data, kwargs.get("dtype") or x.dtype, kwargs.get("device") or x.device)
    return out.detach().requires_grad_() if kwargs.get("requires_grad") else out


def install() -> None:
    """Catch the constructors from now on."""
    for name in CAUGHT:
        made = constructor(getattr(torch, name))
        setattr(torch, name, made)
        register_builtin(made, f"aten::{name}")
    SPECIAL[Tensor.new_tensor] = new_tensor


install()
