"""A workload: one function with everything that a transform of it needs.

The same problem is handed to every library that is compared, so all of them see the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map

Size = Literal["tiny", "time", "memory"]
"""``tiny``: float64, for comparing values. ``time``: what is timed. ``memory``: tensors outweigh everything else."""

Group = Literal["short", "chain", "model"]


@dataclass(frozen=True)
class Problem:
    """A function at a point.

    ``func(*args)`` gives tensors and ``scalar(*args)`` one number. The first ``active`` arguments are
    differentiated, along ``tangents``; ``directions`` are several such tangents stacked at the front.
    ``example`` are the arguments for Jacobians, where one example says more than a minibatch; ``batch``
    are the arguments for ``vmap``, mapped over ``in_dims``.
    """

    func: Callable[..., Any]
    scalar: Callable[..., torch.Tensor]
    args: tuple[Any, ...]
    tangents: tuple[Any, ...]
    directions: tuple[Any, ...]
    batch: tuple[Any, ...]
    in_dims: int | tuple[int | None, ...] = 0
    example: tuple[Any, ...] = ()
    active: int = 1

    @property
    def argnums(self) -> int | tuple[int, ...]:
        """Which arguments are differentiated, as ``grad`` and ``jacrev`` want it."""
        return 0 if self.active == 1 else tuple(range(self.active))

    @property
    def primals(self) -> tuple[Any, ...]:
        """The differentiated arguments of ``args``."""
        return self.args[: self.active]

    @property
    def point(self) -> tuple[Any, ...]:
        """The arguments at which Jacobians and Hessians are taken."""
        return self.example or self.args

    def of_primals(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """``func`` as a function of the differentiated arguments alone."""
        rest = self.args[self.active :]
        return (lambda *primals: func(*primals, *rest)) if rest else func


@dataclass(frozen=True)
class Subject:
    """A named family of problems, one for each size.

    ``ops`` counts the ATen operators of one call of ``func`` at the problem's ``point``, views included.
    ``transforms`` names the entries of ``transforms.BUILDERS`` that make sense for it. ``workaround`` is what
    the library compared with needs around a forward-mode transform, where it refuses without.
    """

    name: str
    group: Group
    ops: int
    make: Callable[[Size], Problem]
    transforms: tuple[str, ...] = field(default=())
    workaround: Callable[[], AbstractContextManager[None]] | None = None


class Inputs:
    """Reproducible random tensors: float64 for comparing values, float32, as people use it, for the rest."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        """Start from a fixed seed."""
        self.dtype = torch.float64 if size == "tiny" else torch.float32
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normally distributed numbers."""
        return torch.randn(shape, generator=self.generator, dtype=self.dtype) * scale

    def classes(self, count: int, *shape: int) -> torch.Tensor:
        """Labels from 0 to ``count`` - 1."""
        return torch.randint(count, shape, generator=self.generator)

    def like(self, tree: Any, *lead: int) -> Any:
        """A pytree as ``tree``, its tensors random, with the dimensions ``lead`` in front."""
        return tree_map(lambda leaf: self.normal(*lead, *leaf.shape), tree)
