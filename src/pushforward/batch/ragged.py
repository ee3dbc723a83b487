"""Ragged batches: lanes of one rank whose sizes differ.

`vmap` runs the lanes of one shape together (exact), or all at once, filled up to the largest size, with a mask. A
result whose shape differs between lanes comes back as a `Ragged`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.words import instead, kind
from .report import Padding, reports

Tensor = torch.Tensor


class Ragged:
    """A batch of tensors whose sizes differ: a sequence of its lanes.

    Made by `pf.ragged`, or by `vmap` where the shapes of an output differ between lanes. It is a pytree, so that
    `grad`, `jvp` and the others take it apart by themselves.

    Example:
        >>> import torch, pushforward as pf
        >>> batch = pf.ragged([torch.ones(2), torch.ones(3)])
        >>> batch
        Ragged(2 lanes of float32, shapes [2], [3])
        >>> pf.vmap(lambda x: x.cumsum(0))(batch)[1]
        tensor([1., 2., 3.])
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = list(rows)

    # -- a sequence --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, index: Any) -> Any:
        """One lane for an int; a ragged batch for a slice, a list of ints, or a tensor of ints or bools."""
        if isinstance(index, slice):
            return Ragged(self.rows[index])
        if isinstance(index, Tensor) and index.dim():
            index = index.nonzero().flatten().tolist() if index.dtype is torch.bool else index.tolist()
        if isinstance(index, (list, tuple)):
            return Ragged([self.rows[k] for k in index])
        return self.rows[int(index)]

    def __repr__(self) -> str:
        if not all(isinstance(r, Tensor) for r in self.rows):
            return f"Ragged({self.rows!r})"
        shown = ", ".join(str(list(r.shape)) for r in self.rows[:6]) + (", …" if len(self) > 6 else "")
        kind = str(self.dtype).removeprefix("torch.") if self.rows else "no dtype"
        return f"Ragged({len(self)} lanes of {kind}, shapes {shown or 'none'})"

    # -- what it is --------------------------------------------------------------------------------

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each lane."""
        return [tuple(r.shape) for r in self.rows]

    @property
    def lengths(self) -> Tensor:
        """The first size of each lane, int64."""
        return torch.tensor([r.shape[0] if r.dim() else 1 for r in self.rows], dtype=torch.long, device=self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the lanes."""
        return self.rows[0].dtype if self.rows else torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """The device of the lanes."""
        return self.rows[0].device if self.rows else torch.device("cpu")

    def numel(self) -> int:
        """How many numbers there are in all lanes."""
        return sum(r.numel() for r in self.rows)

    def __getattr__(self, name: str) -> Any:
        """`AttributeError` with the way out, for what a tensor has and a batch of lanes of different sizes has not."""
        msg = f"a ragged batch has no attribute {name!r}"
        if name in ("shape", "size", "ndim", "dim"):
            msg += ": its lanes have shapes of their own, see `.shapes` and `.lengths`"
        elif name[:2] != "__" and hasattr(Tensor, name):
            msg += f": use it on each lane, pf.vmap(lambda x: x.{name}(...))(batch), or on the tensor of `.to_padded()`"
        raise AttributeError(msg)

    # -- as other things ---------------------------------------------------------------------------

    def to_list(self) -> list[Tensor]:
        """The lanes."""
        return list(self.rows)

    def to_padded(self, value: Any = 0) -> tuple[Tensor, Tensor]:
        """`(tensor, mask)`: the lanes filled up with `value` to the largest sizes, and where they hold data."""
        if not self.rows:
            return torch.empty(0), torch.empty(0, dtype=torch.bool)
        if any(r.dim() != self.rows[0].dim() for r in self.rows):
            msg = f"Ragged.to_padded: the lanes have different ranks: shapes {self.shapes}"
            raise ArgumentError(msg)
        largest = [max(sizes) for sizes in zip(*self.shapes, strict=True)]
        padded, masks = [], []
        for r in self.rows:
            fill = [
                n for size, have in zip(reversed(largest), reversed(r.shape), strict=True) for n in (0, size - have)
            ]
            padded.append(torch.nn.functional.pad(r, fill, value=value) if any(fill) else r)
            mask = torch.ones(r.shape, dtype=torch.bool, device=r.device)
            masks.append(torch.nn.functional.pad(mask, fill) if any(fill) else mask)
        return torch.stack(padded), torch.stack(masks)

    def to_nested(self) -> Tensor:
        """A nested tensor: of jagged layout where only the first size differs."""
        if len({len(s) for s in self.shapes}) > 1 or not all(self.shapes):
            msg = f"Ragged.to_nested: a nested tensor has lanes of one rank, of at least 1; these have the shapes {self.shapes}"
            raise ArgumentError(msg)
        if len({s[1:] for s in self.shapes}) == 1:
            return torch.nested.as_nested_tensor(self.rows, layout=torch.jagged)
        return torch.nested.as_nested_tensor(self.rows)

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Every lane moved or cast, as by `Tensor.to`."""
        return Ragged([r.to(*args, **kwargs) for r in self.rows])

    def float(self) -> Ragged:
        """Every lane as float32."""
        return self.to(torch.float32)

    def double(self) -> Ragged:
        """Every lane as float64."""
        return self.to(torch.float64)

    def half(self) -> Ragged:
        """Every lane as float16."""
        return self.to(torch.float16)

    def bfloat16(self) -> Ragged:
        """Every lane as bfloat16."""
        return self.to(torch.bfloat16)

    def cpu(self) -> Ragged:
        """Every lane on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = "cuda") -> Ragged:
        """Every lane on a CUDA device."""
        return self.to(device)

    def detach(self) -> Ragged:
        """Every lane without its graph."""
        return Ragged([r.detach() for r in self.rows])

    def clone(self) -> Ragged:
        """A copy of every lane."""
        return Ragged([r.clone() for r in self.rows])

    def requires_grad_(self, requires_grad: bool = True) -> Ragged:
        """Every lane a variable of autograd; gradients are in `.grad` of the lanes."""
        for r in self.rows:
            r.requires_grad_(requires_grad)
        return self


tree.torch_tree.register_pytree_node(Ragged, lambda r: (r.rows, None), lambda rows, _: Ragged(list(rows)))


def ragged(tensors: Any) -> Ragged:
    """A ragged batch: tensors of one rank, dtype and device whose sizes may differ.

    Args:
        tensors: a sequence of tensors, a nested tensor of any layout, a ragged batch, or a tensor whose first dimension
            counts the lanes.

    Raises:
        ArgumentError: something is no tensor, or ranks, dtypes or devices differ; the message names the first that
            does not fit.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.vmap(torch.sum)(pf.ragged([torch.ones(2), torch.ones(5)]))
        tensor([2., 5.])
    """
    if not isinstance(tensors, Iterable) or isinstance(tensors, (str, dict)):
        msg = f"ragged: tensors must be a list of tensors, but is {kind(tensors)}; write ragged([x, y, ...])"
        raise ArgumentError(msg)
    rows = list(tensors.unbind()) if isinstance(tensors, Tensor) else list(tensors)
    for k, r in enumerate(rows):
        if not isinstance(r, Tensor):
            msg = f"ragged: element {k} is {kind(r)}, not a tensor; {instead(r)}"
            raise ArgumentError(msg)
        for what in ("dtype", "device"):
            if getattr(r, what) != getattr(rows[0], what):
                msg = f"ragged: element {k} has {what} {getattr(r, what)}, element 0 has {getattr(rows[0], what)}"
                raise ArgumentError(msg)
        if r.dim() != rows[0].dim():
            msg = (
                f"ragged: element {k} has shape {list(r.shape)}, element 0 has "
                f"{list(rows[0].shape)}; the ranks must agree"
            )
            raise ArgumentError(msg)
    return Ragged(rows)


# -- as inputs of vmap -----------------------------------------------------------------------------


class Rows:
    """A ragged input of `vmap`: a leaf, where a `Ragged` itself would be taken apart."""

    def __init__(self, rows: list[Tensor], whole: Any) -> None:
        self.rows, self.ragged = rows, whole

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, lane: int) -> Tensor:
        return self.rows[lane]


def is_ragged(value: Any) -> bool:
    """Whether a value is a batch of lanes of different sizes."""
    return isinstance(value, Ragged) or (isinstance(value, Tensor) and value.is_nested)


def with_ragged(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with ragged batches as leaves."""
    if not contains_ragged((args, kwargs)):
        return args, kwargs

    def leaf(value: Any) -> Any:
        if isinstance(value, Ragged):
            return Rows(value.rows, value)
        return Rows(list(value.unbind()), value) if is_ragged(value) else value

    return tree.torch_tree.tree_map(leaf, (args, kwargs), is_leaf=is_ragged)


def contains_ragged(value: Any) -> bool:
    """Whether a ragged batch is somewhere in nested containers."""
    if isinstance(value, (list, tuple)):
        return any(contains_ragged(v) for v in value)
    if isinstance(value, dict):
        return any(contains_ragged(v) for v in value.values())
    return is_ragged(value)


def lists_as_ragged(args: Any, in_dims: Any) -> tuple[Any, list[str]]:
    """The arguments with each list of tensors of different sizes as a ragged batch, and which these are.

    Only asked where the sizes of the mapped dimensions do not fit: such a list has no other meaning.
    """
    dims = in_dims if isinstance(in_dims, (tuple, list)) and len(in_dims) == len(args) else [in_dims] * len(args)
    made, found = [], []
    for k, (a, d) in enumerate(zip(args, dims, strict=True)):
        lanes = type(a) is list and d == 0 and len(a) > 1 and all(isinstance(x, Tensor) and x.dim() for x in a)
        lanes = lanes and len({x.shape[0] for x in a}) > 1
        made.append(Rows(a, a) if lanes else a)
        if lanes:
            found.append(f"args[{k}]")
    return tuple(made), found


def padded(func: Any, leaves: list[Any], spec: Any, dims: list[Any]) -> tuple[list[Any], Any, list[Any]]:
    """Ragged leaves filled up to the largest sizes; the function is given `mask` if it has such a parameter.

    One ragged leaf: its mask; several: a tuple of masks in the order of the leaves.
    """
    masks = []
    for k, leaf in enumerate(leaves):
        if type(leaf) is Rows:
            leaves[k], mask = Ragged(leaf.rows).to_padded()
            masks.append(mask)
            if reports():
                name = getattr(func, "__name__", type(func).__name__)
                used = sum(math.prod(r.shape) for r in leaf.rows)
                reports()[-1].paddings.append(Padding(name, used, mask.numel()))
    if wants_mask(func):
        args, kwargs = tree.unflatten(leaves, spec)
        dim_args, dim_kwargs = tree.unflatten(dims, spec)
        mask = masks[0] if len(masks) == 1 else tuple(masks)
        kwargs = {**kwargs, "mask": mask}
        dim_kwargs = {**dim_kwargs, "mask": 0 if len(masks) == 1 else tuple([0] * len(masks))}
        leaves, spec = tree.flat((args, kwargs))
        dims = tree.torch_tree.tree_flatten((dim_args, dim_kwargs), is_leaf=lambda d: d is None)[0]
    return leaves, spec, dims


def wants_mask(func: Any) -> bool:
    """Whether a function has a parameter called `mask`."""
    try:
        return "mask" in inspect.signature(func).parameters
    except (TypeError, ValueError):
        return False
