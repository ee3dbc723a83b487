"""A function of any arguments, seen as a function of one vector: n input entries to m output entries."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .errors import UserError
from .inputs import Inputs
from .target import Target


@dataclass(frozen=True)
class Leaf:
    """One tensor among the arguments (or results): its path, shape and place in the vector."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(torch.Size(self.shape).numel())

    @property
    def place(self) -> slice:
        """The entries of this leaf in the vector."""
        return slice(self.start, self.start + self.size)

    def entries(self) -> list[str]:
        """A name for each entry: `w[2,0]`; the path alone when there is one entry and no dimension.

        >>> Leaf("w", (2,), torch.float64, 0).entries()
        ['w[0]', 'w[1]']
        """
        if self.names:
            return list(self.names)
        if not self.shape:
            return [self.path]
        positions = torch.cartesian_prod(*[torch.arange(size) for size in self.shape]).reshape(-1, len(self.shape))
        return [f"{self.path}[{','.join(map(str, position))}]" for position in positions.tolist()]


class VectorFunction:
    """The target as a function of a vector.

    Args:
        target: the function.
        inputs: its arguments; floating-point tensors and Python floats are the variables.
        wanted: variables to differentiate with respect to (argument names or paths); empty for all.
        dtype: evaluate in this type; None keeps each tensor's own.

    Raises:
        UserError: an input is not floating-point, not finite, or not there; or there is none.

    `function(x)` with `x` of shape [n] gives shape [m]; `point` is the vector of the inputs given.
    """

    def __init__(
        self, target: Target, inputs: Inputs, wanted: Sequence[str] = (), dtype: torch.dtype | None = None
    ) -> None:
        self.target = target
        self.dtype = dtype
        keyed, self._structure = pytree.tree_flatten_with_path((inputs.args, inputs.kwargs))
        self._constants = [_converted(value, dtype) for _, value in keyed]
        self.leaves: list[Leaf] = []
        self._positions: list[int] = []
        parts: list[Tensor] = []
        paths = [_argument_path(key) for key, _ in keyed]
        _require_known(wanted, paths)
        start = 0
        for position, (path, (_, value)) in enumerate(zip(paths, keyed, strict=True)):
            if (wanted and not _selected(path, wanted)) or not isinstance(value, Tensor | float):
                continue
            tensor = torch.as_tensor(value, dtype=torch.float64) if isinstance(value, float) else value.detach()
            _require_floating(path, tensor)
            tensor = _converted(tensor, dtype)
            names = inputs.entry_names if len(inputs.entry_names) == tensor.numel() else ()
            leaf = Leaf(path, tuple(tensor.shape), tensor.dtype, start, names)
            self.leaves.append(leaf)
            self._positions.append(position)
            parts.append(tensor.reshape(-1))
            start += leaf.size
        if start == 0:
            raise UserError(f"{inputs.source or 'the inputs'}: no floating-point input to differentiate to")
        # torch.cat promotes: one float64 input makes the vector float64, and each leaf is given back its own type.
        self.point = torch.cat(parts)
        self.outputs: list[Leaf] = []
        self._function = _module_in(target.function, dtype)

    @property
    def input_names(self) -> list[str]:
        """A name for each of the n entries of the input vector."""
        return [name for leaf in self.leaves for name in leaf.entries()]

    @property
    def output_names(self) -> list[str]:
        """A name for each of the m entries of the output vector; known after the first call."""
        return [name for leaf in self.outputs for name in leaf.entries()]

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate at the vector `x` [n]; gives [m]."""
        # The target may write into its arguments; the point must outlive that.
        x = x.clone()
        values = list(self._constants)
        for position, leaf in zip(self._positions, self.leaves, strict=True):
            values[position] = x[leaf.place].reshape(leaf.shape).to(leaf.dtype)
        args, kwargs = pytree.tree_unflatten(values, self._structure)
        result = self._function(*args, **kwargs)
        keyed, _ = pytree.tree_flatten_with_path(result)
        parts: list[Tensor] = []
        outputs: list[Leaf] = []
        start = 0
        for key, value in keyed:
            path = "output" + pytree.keystr(key)
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise UserError(f"{self.target.name} returned {path} of type {type(value).__name__}, not a tensor")
            if not value.dtype.is_floating_point:
                raise UserError(
                    f"{self.target.name} returned {path} of {value.dtype}: only floating-point outputs have derivatives"
                )
            outputs.append(Leaf(path, tuple(value.shape), value.dtype, start))
            start += outputs[-1].size
            parts.append(value.reshape(-1))
        if start == 0:
            raise UserError(f"{self.target.name} returned no numbers")
        self.outputs = outputs
        return torch.cat(parts)

    def value(self) -> Tensor:
        """Evaluate at the given inputs and check the result: [m], finite, without a graph.

        Raises:
            UserError: the function failed, or an output is not finite.
        """
        result = self._guarded_call().detach()
        bad = (~torch.isfinite(result)).nonzero().reshape(-1)
        if bad.numel():
            first = int(bad[0])
            raise UserError(
                f"{self.target.name} is not finite at these inputs: {self.output_names[first]} is "
                f"{result[first].item()} ({bad.numel()} of {result.numel()} outputs)"
            )
        return result

    def _guarded_call(self) -> Tensor:
        failing = Target(self.target.spec, self.target.name, self.__call__, self.target.module, self.target.source)
        return failing.call(self.point)


def _argument_path(key: Sequence[Any]) -> str:
    """`beta` for a keyword argument, `args[0]` for a positional one, with the path inside it."""
    which, argument, *rest = key
    inner = pytree.keystr(tuple(rest))
    if getattr(which, "idx", None) == 0:
        return f"args[{argument.idx}]{inner}"
    return f"{argument.key}{inner}"


def _selected(path: str, wanted: Sequence[str]) -> bool:
    return any(path == name or path.startswith((f"{name}[", f"{name}.")) for name in wanted)


def _require_known(wanted: Sequence[str], paths: Sequence[str]) -> None:
    for name in wanted:
        if not any(_selected(path, [name]) for path in paths):
            raise UserError(f"there is no input '{name}': the inputs are {', '.join(paths) or 'none'}")


def _require_floating(path: str, tensor: Tensor) -> None:
    if not tensor.dtype.is_floating_point:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(
            f"input '{path}' holds {kind} numbers, which have no derivative: "
            "give it as floating-point, or name the inputs that vary with --wrt"
        )
    bad = (~torch.isfinite(tensor)).nonzero()
    if len(bad):
        where = f"{path}[{','.join(map(str, bad[0].tolist()))}]" if tensor.dim() else path
        raise UserError(f"input '{where}' is {tensor[tuple(bad[0])].item()}: inputs must be finite")


def _converted(value: Any, dtype: torch.dtype | None) -> Any:
    if dtype is not None and isinstance(value, Tensor) and value.dtype.is_floating_point:
        return value.to(dtype)
    return value


def _module_in(function: Any, dtype: torch.dtype | None) -> Any:
    """A module is copied into the type asked for; its captured weights would else refuse the inputs."""
    if dtype is not None and isinstance(function, torch.nn.Module):
        return copy.deepcopy(function).to(dtype)
    return function
