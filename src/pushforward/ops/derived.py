"""Reverse formulas derived from forward ones: the cotangents of a written-out function, by autograd.

For operators whose own reverse formula cannot be differentiated again: ⟨g, f(x)⟩ is differentiated in x, and the
result is an ordinary function of g and x for whatever level or graph is outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.fresh import fresh
from ..core.level import THREAD, autograd_on

Tensor = torch.Tensor


def pulled_back(
    function: Callable[..., Any], inputs: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> list[Tensor]:
    """The cotangents of `inputs`, zeros where an output does not depend on one. A cotangent of None is zero."""
    given = [*inputs, *(c for c in cotangents if c is not None)]
    connected = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    keep = connected or (torch.is_grad_enabled() and any(level.saw_grad for level in THREAD.levels))
    with autograd_on(), torch.enable_grad():  # a handler runs below autograd
        variables = [fresh(x) for x in inputs]
        made = function(*variables)
        outs = [made] if isinstance(made, Tensor) else list(made)
        pairs = [(o, c) for o, c in zip(outs, cotangents, strict=True) if c is not None and o.requires_grad]
        if not pairs:
            return [torch.zeros_like(x) for x in inputs]
        grads = torch.autograd.grad(
            [o for o, _ in pairs], variables, [c for _, c in pairs], create_graph=keep, allow_unused=True
        )
    return [
        torch.zeros_like(x) if g is None else g if connected else g.detach() for x, g in zip(inputs, grads, strict=True)
    ]
