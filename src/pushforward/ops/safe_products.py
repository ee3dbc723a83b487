"""Products and scans above autograd, where their derivative is differentiated again.

Torch's reverse formulas of `cumprod` and `prod` find the zeros first and treat where they are as constant, which is
right once only; that of `logcumsumexp` takes logarithms of the cotangents. Written out, pairs of neighbours at a
time, every order is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.level import THREAD
from ..core.traced import SPECIAL, Traced
from .safe import SAFE
from .scan import log_sum

Tensor = torch.Tensor


def scanned(x: Tensor, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The running `join` along the last dimension: each round doubles how far back it reaches."""
    step, n = 1, x.shape[-1]
    while step < n:
        x = torch.cat([x[..., :step], join(x[..., :-step], x[..., step:])], -1)
        step *= 2
    return x


def cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """torch.cumprod."""
    x = with_dtype(input, dtype)
    return x if x.dim() == 0 else scanned(x.movedim(dim, -1), torch.mul).movedim(-1, dim)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """torch.logcumsumexp."""
    return input if input.dim() == 0 else scanned(input.movedim(dim, -1), log_sum).movedim(-1, dim)


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """torch.prod: halve the number of factors until one is left."""
    x = with_dtype(input, dtype)
    if x.dim() == 0:
        return x
    rank = x.dim()
    x = x.reshape(-1) if dim is None else x.movedim(dim, -1)
    if x.shape[-1] == 0:
        x = x.sum(-1, keepdim=True) + 1
    while x.shape[-1] > 1:
        n = x.shape[-1]
        pairs = x[..., : n // 2] * x[..., n // 2 : n // 2 * 2]
        x = torch.cat([pairs, x[..., -1:]], -1) if n % 2 else pairs
    x = x[..., 0]
    if not keepdim:
        return x
    return x.reshape([1] * rank) if dim is None else x.unsqueeze(dim)


def with_dtype(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The dtype in which torch would multiply."""
    if dtype is not None:
        return x.to(dtype)
    return x if x.is_floating_point() or x.is_complex() else x.long()


def recorded(x: Any) -> bool:
    """Whether autograd records what is done with a value, or with the value of any level below it."""
    while isinstance(x, Traced):
        if x.requires_grad:
            return True
        x = x._below()
    return x.requires_grad


def nested(replacement: Callable[..., Tensor]) -> Callable[..., Any]:
    """The replacement for traced values, where two differentiations are nested and reverse mode records this one."""

    def special(func: Any, args: Any, kwargs: Any) -> Any:
        del func
        x = args[0] if args else (kwargs or {}).get("input")
        if (
            THREAD.order < 2
            or x is None
            or not recorded(x)
            or not torch.is_grad_enabled()
            or "out" in (kwargs or {})
        ):
            return NotImplemented
        return replacement(*args, **(kwargs or {}))

    return special


for _replacement in (cumprod, logcumsumexp, prod):
    for _function in (getattr(torch, _replacement.__name__), getattr(Tensor, _replacement.__name__)):
        SPECIAL[_function] = nested(_replacement)
        SAFE[_function] = _replacement
