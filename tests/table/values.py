"""Small tensors by description, so that a table of samples is data: each is drawn by its place in its sample alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

D, C = torch.float64, torch.complex128


@dataclass(frozen=True)
class Value:
    """How one tensor is made. `fixed`: nothing is differentiated in it; `shared`: it is the same for every lane."""

    make: Callable[[torch.Generator], torch.Tensor]
    fixed: bool = False
    shared: bool = False


def n(*shape: int, fixed: bool = False, shared: bool = False) -> Value:
    """Normal numbers."""
    return Value(lambda g: torch.randn(shape, generator=g, dtype=D), fixed, shared)


def p(*shape: int, low: float = 0.3, high: float = 0.9, fixed: bool = False, shared: bool = False) -> Value:
    """Numbers between `low` and `high`."""
    return Value(lambda g: low + (high - low) * torch.rand(shape, generator=g, dtype=D), fixed, shared)


def c(*shape: int) -> Value:
    """Complex normal numbers."""
    return Value(lambda g: torch.randn(shape, generator=g, dtype=C))


def i(*numbers: Any, shared: bool = False) -> Value:
    """These integers."""
    return Value(lambda g: torch.tensor(numbers), True, shared)


def b(*numbers: Any) -> Value:
    """These truth values."""
    return Value(lambda g: torch.tensor(numbers).bool(), True)


def given(*numbers: Any, fixed: bool = False) -> Value:
    """These numbers."""
    return Value(lambda g: torch.tensor(numbers, dtype=D), fixed)


def apart(*shape: int) -> Value:
    """Numbers no two of which are close, in no order: no step of a difference changes their order."""

    def make(g: torch.Generator) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return (torch.randperm(count, generator=g).to(D) + 0.5).reshape(shape) * 0.3 - 0.1 * count

    return Value(make)


def positive_definite(size: int) -> Value:
    """A symmetric matrix with eigenvalues well above zero."""

    def make(g: torch.Generator) -> torch.Tensor:
        a = torch.randn((size, size), generator=g, dtype=D)
        return a @ a.mT + size * torch.eye(size, dtype=D)

    return Value(make)


def well_conditioned(*shape: int) -> Value:
    """A matrix of full rank, its singular values and eigenvalues apart."""

    def make(g: torch.Generator) -> torch.Tensor:
        a, k = 0.4 * torch.randn(shape, generator=g, dtype=D), range(min(shape[-2:]))
        a[..., k, k] += 2.0 * torch.arange(1, len(k) + 1, dtype=D)
        return a

    return Value(make)
