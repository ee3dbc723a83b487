"""A function and its point as one vector of inputs and one of outputs, and the way back to blocks.

The Jacobian of m × n numbers is cut into blocks by output and input leaf, nested as torch.func nests them: outputs
outside, inputs inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.words import kind, name_of, with_aux
from ..reverse import differentiable
from .dense import chosen_inputs, complex_path

Tensor = torch.Tensor


class Problem:
    """One function at one point.

    Attributes:
        leaves: the input tensors to differentiate by, in order.
        n: their elements together.
        outs: the output tensors of the first run, for their shapes and dtypes (never traced ones, which would keep
            their level alive).
        m: the elements of the outputs that have a derivative.
        generators: those that the function passes to operators.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        argnums: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_aux: bool,
        what: str,
    ) -> None:
        self.func, self.argnums, self.args, self.kwargs, self.has_aux, self.what = (
            func,
            argnums,
            args,
            kwargs,
            has_aux,
            what,
        )
        self.positions, _, self.leaves, self.spec = chosen_inputs(func, argnums, args, what)
        self.n = sum(x.numel() for x in self.leaves)
        self.outs: list[Tensor] = []
        self.is_tensor: list[bool] = []
        self.out_spec: Any = None
        self.aux: Any = None
        self.generators: list[torch.Generator] = []  # of its own, that it draws from

    def at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
        """The same function at another point."""
        made = Problem(self.func, self.argnums, args, kwargs, self.has_aux, self.what)
        made.generators = self.generators
        return made

    @property
    def m(self) -> int:
        """Elements of the outputs that have a derivative."""
        return sum(o.numel() for o in self.smooth)

    @property
    def smooth(self) -> list[Tensor]:
        """The outputs that have a derivative."""
        return [o for o in self.outs if differentiable(o)]

    @property
    def complex_path(self) -> str:
        """How the caller would write the first complex input."""
        return complex_path(self.leaves, self.args, self.positions)

    def of_inputs(self, *inputs: Tensor) -> tuple[list[Tensor], Any]:
        """The output tensors for other inputs, and the aux; keeps the output's structure."""
        full = list(self.args)
        for k, value in zip(self.positions, tree.unflatten(list(inputs), self.spec), strict=True):
            full[k] = value
        result = self.func(*full, **self.kwargs)
        aux = None
        if self.has_aux:
            result, aux = with_aux(self.what, self.func, result)
        flat, self.out_spec = tree.flat(result)
        self.is_tensor = [isinstance(o, Tensor) for o in flat]
        tensors = [o for o in flat if isinstance(o, Tensor)]
        if not tensors:
            msg = f"{self.what}({name_of(self.func)}): the function must return a tensor, but returned {kind(result)}"
            raise ArgumentError(msg)
        return tensors, aux

    def plain(self, *inputs: Tensor) -> Any:
        """As the user's function of the chosen leaves alone, without aux: for the pattern."""
        return self.of_inputs(*inputs)[0]

    def forget_values(self) -> None:
        """Keep shapes and dtypes of the outputs only."""
        self.outs = [torch.empty(o.shape, dtype=o.dtype, device="meta") for o in self.outs]

    def assembled(self, blocks: list[list[Any]]) -> Any:
        """Blocks by output tensor and input leaf in the nested structure."""
        per_output: list[Any] = []
        rows = iter(blocks)
        for is_tensor in self.is_tensor:
            if not is_tensor:
                per_output.append(None)
                continue
            inputs = tree.unflatten(next(rows), self.spec)
            per_output.append(tuple(inputs) if isinstance(self.argnums, (tuple, list)) else inputs[0])
        return tree.unflatten(per_output, self.out_spec)

    def value(self, outs: list[Any]) -> Any:
        """The output in its own structure."""
        rows = iter(outs)
        return tree.unflatten([next(rows) if is_tensor else None for is_tensor in self.is_tensor], self.out_spec)
