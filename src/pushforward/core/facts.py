"""What a traced value says of itself without being asked by way of `__torch_function__`: sizes, dtype, device.

Modules of torch look at these many times in one call; they are the payload's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .opaque import opaque

Tensor = torch.Tensor


def register_facts(cls: type, payload: str, sizes: Callable[[Any], Any]) -> None:
    """Give a class of traced values these attributes; `payload`: the attribute that has the facts, `sizes`: those of a value."""
    original = Tensor.size

    @opaque
    def size(self: Any, dim: Any = None) -> Any:
        if dim is None:
            return sizes(self)
        if type(dim) is int:
            own = sizes(self)
            if -len(own) <= dim < len(own):
                return own[dim]
        return original(self, dim)  # which says what is wrong, or knows names

    def fact(name: str) -> property:
        return property(opaque(lambda self: getattr(getattr(self, payload), name)))

    made: Any = cls
    made.size = size
    made.shape = property(opaque(lambda self: sizes(self)))
    made.ndim = property(opaque(lambda self: len(sizes(self))))
    made.dim = opaque(lambda self: len(sizes(self)))
    for name in ("dtype", "device", "layout", "is_nested"):
        setattr(made, name, fact(name))
