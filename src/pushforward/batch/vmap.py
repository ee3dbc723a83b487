"""`vmap`: a function of one example, run for a batch of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.fresh import stopped
from ..core.level import user_stopped_gradient
from ..core.opaque import opaque
from ..ops import families as _families  # noqa: F401  (fills the table)
from . import fast as _fast  # noqa: F401  (registers the short ways)
from .level import Batched, BatchLevel, wrap_input

Tensor = torch.Tensor
_RANDOMNESS = ("error", "different", "same")


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Vectorising map: `vmap(func)(xs)` is the stack of `func(x)` for each x of `xs`, computed at once.

    Args:
        func: a function of tensors (in any pytrees) that returns tensors (in any pytree; other leaves pass as they are).
        in_dims: which dimension of each argument is mapped: an int for all, None for "not mapped", or a pytree that matches the
            arguments. Leaves that are no tensors are never mapped.
        out_dims: where the mapped dimension goes in each output; an int or a pytree that matches the output.
        randomness: "error" refuses random operators, "same" draws once for all lanes, "different" once per lane.
        chunk_size: at most so many lanes at a time; None for all at once.

    Returns:
        A function with the mapped dimension in its inputs and outputs. Keyword arguments are mapped over dim 0.

    Raises:
        ArgumentError: `in_dims`, `out_dims` or the sizes of the mapped dimensions do not fit; the message names the argument.

    Example:
        >>> import torch, pushforward as pf
        >>> a, b = torch.ones(4, 3), torch.arange(12.0).reshape(4, 3)
        >>> pf.vmap(torch.dot)(a, b)
        tensor([ 3., 12., 21., 30.])
    """
    if randomness not in _RANDOMNESS:
        msg = f"vmap: randomness is {randomness!r}; it must be one of {', '.join(map(repr, _RANDOMNESS))}"
        raise ArgumentError(msg)
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size <= 0):
        msg = f"vmap: chunk_size is {chunk_size!r}; it must be None or a positive int"
        raise ArgumentError(msg)

    @opaque
    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, spec, dims = flat_inputs(func, in_dims, args, kwargs)
        size = batch_size(func, in_dims, args, kwargs, leaves, dims)
        call = Call(func, leaves, spec, dims, out_dims, randomness)
        stop = user_stopped_gradient()
        if chunk_size is None or chunk_size >= size:
            out = call.run(size, None)
        else:
            out = call.run_chunks(size, chunk_size)
        return tree.map_leaves(lambda o: stopped(o) if isinstance(o, Tensor) else o, out) if stop else out

    return mapped


def name_of(func: Any) -> str:
    """The user's name for a function, for messages."""
    return getattr(func, "__name__", None) or type(func).__name__


def flat_inputs(func: Any, in_dims: Any, args: Any, kwargs: Any) -> tuple[list[Any], Any, list[int | None]]:
    """The leaves of the arguments, their structure, and the mapped dimension of each leaf."""
    if type(in_dims) is int and not kwargs and all(type(a) is Tensor for a in args):
        leaves: list[Any] = list(args)
        spec = None
        dims: list[Any] = [in_dims] * len(leaves)
    else:
        leaves, spec = tree.flat((args, kwargs))
        n = len(tree.leaves(kwargs))
        if not isinstance(in_dims, (int, tuple, list, dict)) and in_dims is not None:
            msg = (
                f"vmap({name_of(func)}, in_dims={in_dims!r}): in_dims must be an int, None, or a pytree that matches the "
                f"arguments, but is a {type(in_dims).__name__}"
            )
            raise ArgumentError(msg)
        whole = args[0] if isinstance(in_dims, dict) and len(args) == 1 else args
        spread = tree.broadcast_prefix(in_dims, whole, is_leaf=lambda d: d is None or isinstance(d, int))
        if spread is None:
            msg = (
                f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): in_dims does not match the structure of the inputs; it has "
                f"{describe(in_dims)}, the inputs have {describe(whole)}"
            )
            raise ArgumentError(msg)
        dims = spread + [0] * n
    if not leaves:
        msg = f"vmap({name_of(func)})(<inputs>): there is nothing to map over; no inputs were given"
        raise ArgumentError(msg)
    for k, (leaf, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is None:
            continue
        if not isinstance(leaf, Tensor):
            dims[k] = None
            continue
        rank = leaf.dim()
        if not -rank <= d < rank:
            path = input_path(args, kwargs, k)
            msg = (
                f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): in_dim {d} of {path} is out of range: it has {rank} "
                f"dimensions (shape {list(leaf.shape)})" + ("; say in_dims=None for it if it is not mapped" if not rank else "")
            )
            raise ArgumentError(msg)
        if d < 0:
            dims[k] = d + rank
    return leaves, spec, dims


def describe(value: Any) -> str:
    """A short word for the structure of a pytree."""
    return str(tree.flat(value)[1]) if not isinstance(value, (int, type(None))) else repr(value)


def input_path(args: Any, kwargs: Any, k: int) -> str:
    """How the user would write the k-th leaf."""
    return (tree.paths(args, "args") + tree.paths(kwargs, "kwargs"))[k]


def batch_size(func: Any, in_dims: Any, args: Any, kwargs: Any, leaves: list[Any], dims: list[int | None]) -> int:
    """The common size of the mapped dimensions."""
    size = None
    for leaf, d in zip(leaves, dims, strict=True):
        if d is not None:
            n = leaf.shape[d]
            if size is None:
                size = n
            elif n != size:
                raise sizes_differ(func, in_dims, args, kwargs, leaves, dims)
    if size is None:
        msg = (
            f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): no input is mapped; at least one tensor needs an in_dim that is not None"
        )
        raise ArgumentError(msg)
    return size


def sizes_differ(func: Any, in_dims: Any, args: Any, kwargs: Any, leaves: list[Any], dims: list[int | None]) -> ArgumentError:
    """The error that lists the mapped sizes of all arguments."""
    rows = []
    for k, (leaf, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is not None:
            rows.append(f"  {input_path(args, kwargs, k)}: shape {list(leaf.shape)}, mapped over dim {d}, size {leaf.shape[d]}")
    listing = "\n".join(rows)
    return ArgumentError(
        f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): the mapped dimensions have different sizes\n{listing}\n"
        "Map over dimensions of one size, or say None for inputs that all lanes share."
    )


class Call:
    """One call of a mapped function: a work list of lanes, each entry one run."""

    def __init__(self, func: Any, leaves: list[Any], spec: Any, dims: list[Any], out_dims: Any, randomness: str) -> None:
        self.func, self.leaves, self.spec, self.dims = func, leaves, spec, dims
        self.out_dims, self.randomness = out_dims, randomness

    def payloads(self) -> list[Any]:
        """The inputs, the mapped dimension in front."""
        return [
            leaf if d is None or d == 0 else leaf.movedim(d, 0) for leaf, d in zip(self.leaves, self.dims, strict=True)
        ]

    def run(self, size: int, part: slice | None) -> Any:
        """Run all lanes (or a part of them) and put the results together."""
        payloads = self.payloads()
        if part is not None:
            payloads = [p if d is None else p[part] for p, d in zip(payloads, self.dims, strict=True)]
        level = BatchLevel(size, self.randomness)
        flat, spec = self.run_level(level, payloads)
        if not level.queue and level.active is None:
            moved = [self.place(level, o, m) for o, m in flat]
            return self.finish(moved, spec, size)
        from .work import run_groups

        return run_groups(self, size, payloads, level, flat, spec)

    def run_level(self, level: BatchLevel, payloads: list[Any]) -> tuple[list[Any], Any]:
        """One run: every output leaf comes back as (payload, mapped)."""
        dims = self.dims
        level.start()
        try:
            inputs = [p if d is None else wrap_input(level, p) for p, d in zip(payloads, dims, strict=True)]
            if self.spec is None:
                out = self.func(*inputs)
            else:
                args, kwargs = tree.unflatten(inputs, self.spec)
                out = self.func(*args, **kwargs)
            if type(out) is Batched or type(out) is Tensor:
                outs, spec = [out], None
            else:
                outs, spec = tree.flat(out)
            return [taken_out(level, o) for o in outs], spec
        finally:
            level.stop()

    def place(self, level: BatchLevel, o: Any, m: bool | None) -> Any:
        """An output with the mapped dimension in front, for every tensor."""
        if m is None or m:
            return o
        return o.unsqueeze(0).expand(level.size, *o.shape)

    def finish(self, outs: list[Any], spec: Any, size: int) -> Any:
        """Move the mapped dimension to `out_dims` and put the outputs together."""
        del size
        out_dims = self.out_dims
        if spec is None:
            o = outs[0]
            if type(out_dims) is not int:
                out_dims = self.spread_out_dims(o, [o])[0]
            return self.moved(o, out_dims)
        value = tree.unflatten(outs, spec)
        dims = [out_dims] * len(outs) if type(out_dims) is int else self.spread_out_dims(value, outs)
        if all(d == 0 for d in dims):
            return value
        return tree.unflatten([self.moved(o, d) for o, d in zip(outs, dims, strict=True)], spec)

    def moved(self, o: Any, d: Any) -> Any:
        if not isinstance(o, Tensor):
            return o
        if d is None:
            return o[0] if o.shape[0] else o
        if d == 0:
            return o
        if not -o.dim() <= d < o.dim():
            msg = f"vmap({name_of(self.func)}, out_dims={self.out_dims!r}): out_dim {d} is out of range for an output of shape {list(o.shape[1:])} per lane"
            raise ArgumentError(msg)
        return o.movedim(0, d)

    def spread_out_dims(self, value: Any, outs: list[Any]) -> list[Any]:
        """One out_dim for each output leaf."""
        dims = self.out_dims
        if isinstance(dims, (tuple, list)) and len(outs) == 1 and len(dims) == 1 and isinstance(value, Tensor):
            return [dims[0]]
        spread = tree.broadcast_prefix(dims, value, is_leaf=lambda d: d is None or isinstance(d, int))
        if spread is None:
            msg = (
                f"vmap({name_of(self.func)}, out_dims={dims!r}): out_dims does not match the structure of the output; it has "
                f"{describe(dims)}, the output has {describe(value)}"
            )
            raise ArgumentError(msg)
        return spread

    def run_chunks(self, size: int, chunk: int) -> Any:
        """Run the lanes chunk by chunk and join the outputs."""
        self_dims, self.out_dims = self.out_dims, 0
        parts = []
        spec = None
        try:
            for start in range(0, size, chunk):
                stop = min(start + chunk, size)
                leaves, spec = tree.flat(self.run(stop - start, slice(start, stop)))
                parts.append(leaves)
        finally:
            self.out_dims = self_dims
        outs = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*parts, strict=True)]
        return self.finish(outs, spec, size)


def taken_out(level: BatchLevel, o: Any) -> tuple[Any, bool | None]:
    """An output leaf as (payload, mapped); mapped is None for what is no tensor."""
    if type(o) is Batched and o._level is level:
        return o._payload, o._mapped
    return (o, False) if isinstance(o, Tensor) else (o, None)
