"""Offsets of `as_strided`: torch counts them in the storage, which a traced value does not share with its payload.

A level makes the offset relative to the value's own start; whoever runs the operator on a payload counts from the
payload's.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def move_offset(func: Any, values: list[Any], by: int) -> None:
    """Add `by` to the storage offset among the arguments of `func`, if one was given."""
    for k, arg in enumerate(func._schema.arguments):
        if arg.name == "storage_offset" and k < len(values) and values[k] is not None:
            values[k] += by


def run_strided(func: Any, values: Any, kwargs: dict[str, Any]) -> Any:
    """`func` with an offset that counts from the start of the first argument."""
    values = list(values)
    move_offset(func, values, values[0].storage_offset())
    return func(*values, **kwargs)
