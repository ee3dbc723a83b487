"""The inputs of a Jacobian, and the standard basis of their elements."""

from __future__ import annotations

from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.torch_private import NoFunction, no_modes
from ..core.words import instead, kind, name_of
from ..reverse import argument_positions, chosen_paths, differentiable

Tensor = torch.Tensor


def basis(leaves: list[Tensor], start: int, stop: int) -> list[Tensor]:
    """Rows `start` to `stop` of the standard basis of all elements, cut into tensors of the leaves' sizes."""
    with NoFunction():
        if len(leaves) == 1 and start == 0 and stop == leaves[0].numel():
            x = leaves[0]
            eye = torch.eye(stop, dtype=x.dtype, device=x.device)
            return [eye if x.dim() == 1 else eye.view(stop, *x.shape)]
        out, offset = [], 0
        for x in leaves:
            n = x.numel()
            rows = torch.zeros(stop - start, n, dtype=x.dtype, device=x.device)
            low, high = max(start, offset), min(stop, offset + n)
            if high > low:
                rows[low - start : high - start, low - offset : high - offset].diagonal().fill_(1)
            out.append(rows.view(stop - start, *x.shape))
            offset += n
        return out


_PROBES: dict[torch.device, torch.Generator] = {}


def random_direction(leaves: list[Any], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Random tensors like the inputs, or of one type; the user's generators stay as they are."""
    made = []
    for x in leaves:
        generator = _PROBES.get(x.device)
        if generator is None:
            generator = _PROBES[x.device] = torch.Generator(x.device)
            generator.seed()
        with no_modes():  # to a program that is being recorded, and to levels, they are constants
            made.append(torch.randn(x.shape, dtype=dtype or x.dtype, device=x.device, generator=generator))
    return made


def chosen_inputs(
    func: Any, argnums: Any, args: Any, what: str
) -> tuple[tuple[int, ...], list[Any], list[Tensor], Any]:
    """Positions, chosen arguments, their leaves and structure."""
    positions = argument_positions(func, argnums, args, what)
    leaves, spec = tree.flat([args[k] for k in positions])
    if not leaves:
        msg = f"{what}({name_of(func)}, argnums={argnums!r}): args[{positions[0]}] is {args[positions[0]]!r}; there is no tensor in it"
        raise ArgumentError(msg)
    for k, x in enumerate(leaves):
        if not differentiable(x):
            path = chosen_paths(args, positions)[k]
            msg = f"{what}({name_of(func)}, argnums={argnums!r}): {path} is {kind(x)}, which has no derivative; {instead(x)}"
            raise ArgumentError(msg)
    return positions, leaves, leaves, spec
