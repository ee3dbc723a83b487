"""`vmap`: a function of one example, run for a batch of them. Arguments are read here; `batch.work` runs the lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..core import calls, tree
from ..core.errors import ArgumentError
from ..core.fresh import stopped
from ..core.journal import attempt
from ..core.level import THREAD, user_stopped_gradient
from ..core.opaque import opaque
from ..core.source import warn
from ..core.traced import NO_PLAN, NeedsGraph
from ..core.words import MOST, check_function, instead, is_number, kind, name_of, short
from ..ops import families as _families  # noqa: F401  (fills the table)
from . import fast as _fast  # noqa: F401  (registers the short ways)
from . import fast_answers as _fast_answers  # noqa: F401  (registers those of questions)
from . import fast_attention as _fast_attention  # noqa: F401  (registers one more)
from . import fast_index as _fast_index  # noqa: F401  (registers views)
from . import fast_layers as _fast_layers  # noqa: F401  (registers more of them)
from . import fast_products as _fast_products  # noqa: F401  (registers products)
from . import fast_recurrent as _fast_recurrent  # noqa: F401  (registers recurrent networks)
from .ragged import Rows, lists_as_ragged, padded, with_ragged
from .seeds import check_seed
from .work import Settings, describe, run

Tensor = torch.Tensor
_RANDOMNESS = ("error", "different", "same")


@calls.transform
def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    divergence: str = "split",
    ragged: str = "group",
    seed: int | None = None,
) -> Callable[..., Any]:
    """Vectorising map: `vmap(func)(xs)` is the stack of `func(x)` for each x of `xs`, computed at once.

    Args:
        func: a function of tensors (in any pytrees) that returns tensors (in any pytree; other leaves pass as they
            are).
        in_dims: which dimension of each argument is mapped: an int for all, None for "not mapped", or a pytree that
            matches the arguments. Leaves that are no tensors are never mapped.
        out_dims: where the mapped dimension goes in each output; an int or a pytree that matches the output.
        randomness: "error" refuses random operators, "same" draws once for all lanes, "different" once per lane.
        chunk_size: at most so many lanes at a time; None for all at once.
        divergence: where Python needs one answer and the lanes differ (`if`, `.item()`, shapes that depend on data):
            "split" runs each group of lanes that agree on its own, "error" refuses.
        ragged: how lanes of different sizes (`pf.ragged`, jagged nested tensors) are run: "group"
            runs those of one size together and is exact; "pad" runs all at once, filled up to the largest size, and
            gives the function a bool tensor as its keyword argument `mask` if it has one.
        seed: an int gives lane i draws of its own, those of `pf.lane_generator(seed, i)`, whatever the batch and
            chunk sizes; `randomness` is then "different".

    Returns:
        A function with the mapped dimension in its inputs and outputs. Keyword arguments are mapped over dim 0. An
        output whose shape differs between lanes comes back as a `pf.Ragged`.

    Raises:
        ArgumentError: `in_dims`, `out_dims` or the sizes of the mapped dimensions do not fit; the message names the
            argument.
        DivergenceError: under `divergence="error"`, where lanes disagree.

    An error raised by the function for some lanes only names these lanes in a note.

    Example:
        >>> import torch, pushforward as pf
        >>> a, b = torch.ones(4, 3), torch.arange(12.0).reshape(4, 3)
        >>> pf.vmap(torch.dot)(a, b)
        tensor([ 3., 12., 21., 30.])
    """
    check_function("vmap", func, "vmap(f)(xs)")
    check_dims(func, "in_dims", in_dims)
    check_dims(func, "out_dims", out_dims)
    if randomness not in _RANDOMNESS:
        msg = f"vmap: randomness is {randomness!r}; it must be one of {', '.join(map(repr, _RANDOMNESS))}"
        raise ArgumentError(msg)
    if chunk_size is not None and (not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size <= 0):
        msg = f"vmap: chunk_size is {chunk_size!r}; it must be None or a positive int"
        raise ArgumentError(msg)

    if divergence not in ("split", "error"):
        msg = f"vmap: divergence is {divergence!r}; it must be 'split' or 'error'"
        raise ArgumentError(msg)
    if ragged not in ("group", "pad"):
        msg = f"vmap: ragged is {ragged!r}; it must be 'group' or 'pad'"
        raise ArgumentError(msg)
    if seed is not None:
        check_seed("vmap", seed)
        if randomness == "same":
            msg = (
                "vmap: a seed gives each lane draws of its own; with randomness='same', seed the "
                "one generator by torch.manual_seed"
            )
            raise ArgumentError(msg)
        randomness = "different"
    settings = Settings(func, out_dims, randomness, chunk_size, divergence, seed)
    asked = calls.Asked(
        vmap, in_dims=in_dims, out_dims=out_dims, randomness=randomness, chunk_size=chunk_size, divergence=divergence,
        ragged=ragged, seed=seed,
    )  # fmt: skip

    by_first = type(in_dims) is int and in_dims == 0

    @calls.returned
    @opaque
    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if calls.REPLAY is not None and not kwargs and not THREAD.levels:
            out = calls.REPLAY(asked, func, args)
            if out is not NO_PLAN:
                return out
        size = plain_size(args) if by_first and not kwargs else -1
        if size < 0:
            leaves, spec, dims, size = read_inputs(func, in_dims, args, kwargs, ragged)
        else:
            leaves, spec, dims = list(args), None, [0] * len(args)
        return ran(settings, leaves, spec, dims, size)

    return mapped


def check_dims(func: Any, name: str, dims: Any) -> None:
    """`in_dims` or `out_dims` is an int, None, or a pytree of them.

    Raises:
        ArgumentError: there is something else in it.
    """
    if dims is None or type(dims) is int:
        return
    if type(dims) in (tuple, list) and all([d is None or type(d) is int for d in dims]):
        return
    for d in tree.leaves(dims):
        if d is not None and (not isinstance(d, int) or isinstance(d, bool)):
            given = f"is {kind(d)}" if d is dims else f"holds {short(d)}, {kind(d)}"
            msg = (
                f"vmap({name_of(func)}, {name}={short(dims)}): {name} must be an int, None, or a pytree of them like the "
                f"{'inputs' if name == 'in_dims' else 'output'}, but {given}; write vmap(f)(xs)"
            )
            raise ArgumentError(msg)


def ran(settings: Settings, leaves: list[Any], spec: Any, dims: list[Any], size: int) -> Any:
    """The result of a call, once its arguments are read."""
    try:
        with attempt():
            out = run(settings, leaves, spec, dims, size)
    except NeedsGraph as found:
        if not found.began_in(settings):
            raise
        out = run(settings._replace(open_graph=True), leaves, spec, dims, size)
    if user_stopped_gradient():
        return tree.map_leaves(lambda o: stopped(o) if isinstance(o, Tensor) else o, out)
    return out


def over_rows(func: Callable[..., Any], rows: list[Tensor], randomness: str = "error") -> Any:
    """`vmap(func, randomness=randomness)(*rows)`, for callers of our own that have nothing to check."""
    size = plain_size(tuple(rows))
    if size < 0:
        return vmap(func, randomness=randomness)(*rows)
    return ran(Settings(func, 0, randomness, None, "split", None), rows, None, [0] * len(rows), size)


def plain_size(args: tuple[Any, ...]) -> int:
    """The size of dim 0 of arguments that are plain tensors; -1 where it takes more to read them."""
    size = -1
    for a in args:
        if type(a) is not Tensor or a.is_nested or not a.dim():
            return -1
        n = a.size(0)
        if n != size:
            if size >= 0:
                return -1
            size = n
    return size


def read_inputs(func: Any, in_dims: Any, args: Any, kwargs: Any, policy: str) -> tuple[list[Any], Any, list[Any], int]:
    """Leaves, structure, mapped dimensions and batch size; lanes of different sizes are looked for."""
    if any(type(a) is not Tensor or a.is_nested for a in args) or kwargs:
        args, kwargs = with_ragged(args, kwargs)
    leaves, spec, dims = flat_inputs(func, in_dims, args, kwargs)
    try:
        size = batch_size(func, in_dims, args, kwargs, leaves, dims)
    except ArgumentError:
        args, found = lists_as_ragged(args, in_dims)
        if not found:
            raise
        leaves, spec, dims = flat_inputs(func, in_dims, args, kwargs)
        size = batch_size(func, in_dims, args, kwargs, leaves, dims)
        text = (
            f"vmap({name_of(func)}): {' and '.join(found)}: a list of tensors of different sizes is taken as the lanes of one batch, "
            "where of one size each tensor would be mapped by itself; say pf.ragged(...) for lanes"
        )
        warn(text, UserWarning)
    if policy == "pad" and any(type(leaf) is Rows for leaf in leaves):
        leaves, spec, dims = padded(func, leaves, spec, dims)
    return leaves, spec, dims, size


def flat_inputs(func: Any, in_dims: Any, args: Any, kwargs: Any) -> tuple[list[Any], Any, list[int | None]]:
    """The leaves of the arguments, their structure, and the mapped dimension of each leaf."""
    if type(in_dims) is int and not kwargs and all(type(a) is Tensor for a in args):
        leaves: list[Any] = list(args)
        spec = None
        dims: list[Any] = [in_dims] * len(leaves)
    else:
        leaves, spec = tree.flat((args, kwargs))
        n = len(tree.leaves(kwargs))
        whole = args[0] if isinstance(in_dims, dict) and len(args) == 1 else args
        spread = tree.broadcast_prefix(in_dims, whole, is_leaf=lambda d: d is None or isinstance(d, int))
        if spread is None:
            msg = (
                f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): in_dims does not match the "
                f"structure of the inputs; it has "
                f"{describe(in_dims)}, the inputs have {describe(whole)}"
            )
            raise ArgumentError(msg)
        dims = spread + [0] * n
    if not leaves:
        msg = f"vmap({name_of(func)})(<inputs>): there is nothing to map over; no inputs were given"
        raise ArgumentError(msg)
    for k, (leaf, d) in enumerate(zip(leaves, dims, strict=True)):
        if type(leaf) is Rows:
            if not len(leaf) and d is not None:
                msg = f"vmap({name_of(func)})(<inputs>): {input_path(args, kwargs, k)} is ragged and has no lanes, so no shape either"
                raise ArgumentError(msg)
            if d not in (0, None):
                msg = (
                    f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): "
                    f"{input_path(args, kwargs, k)} is ragged; its in_dim must be 0 or None"
                )
                raise ArgumentError(msg)
            if d is None:
                leaves[k] = leaf.ragged
            continue
        if d is None:
            continue
        if not isinstance(leaf, Tensor):
            dims[k] = None
            continue
        rank = leaf.dim()
        if not -rank <= d < rank:
            path = input_path(args, kwargs, k)
            msg = (
                f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): in_dim {d} of {path} is out of "
                f"range: it has {rank} "
                f"dimensions (shape {list(leaf.shape)})"
                + ("; say in_dims=None for it if it is not mapped" if not rank else "")
            )
            raise ArgumentError(msg)
        if d < 0:
            dims[k] = d + rank
    return leaves, spec, dims


def input_path(args: Any, kwargs: Any, k: int) -> str:
    """How the user would write the k-th leaf."""
    return (tree.paths(args, "args") + tree.paths(kwargs, "kwargs"))[k]


def batch_size(func: Any, in_dims: Any, args: Any, kwargs: Any, leaves: list[Any], dims: list[int | None]) -> int:
    """The common size of the mapped dimensions."""
    size = None
    for leaf, d in zip(leaves, dims, strict=True):
        if d is not None:
            n = leaf.shape[d] if isinstance(leaf, Tensor) else len(leaf)
            if size is None:
                size = n
            elif n != size:
                raise sizes_differ(func, in_dims, args, kwargs, leaves, dims)
    if size is None:
        others = [k for k, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)]
        told = ", ".join(f"{input_path(args, kwargs, k)} is {kind(leaves[k])}" for k in others[:MOST])
        hint = next((f"; {instead(leaves[k])}" for k in others if is_number(leaves[k])), "")
        msg = (
            f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): no input is mapped; at least one "
            f"tensor needs an in_dim that is not None{f' ({told}{hint})' if told else ''}"
        )
        raise ArgumentError(msg)
    return size


def sizes_differ(
    func: Any, in_dims: Any, args: Any, kwargs: Any, leaves: list[Any], dims: list[int | None]
) -> ArgumentError:
    """The error that lists the mapped sizes of all arguments."""
    rows = []
    for k, (leaf, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is not None:
            path = input_path(args, kwargs, k)
            rows.append(
                f"  {path}: ragged, {len(leaf)} lanes"
                if type(leaf) is Rows
                else f"  {path}: shape {list(leaf.shape)}, mapped over dim {d}, size {leaf.shape[d]}"
            )
    listing = "\n".join(rows)
    return ArgumentError(
        f"vmap({name_of(func)}, in_dims={in_dims!r})(<inputs>): the mapped dimensions have different sizes\n{listing}\n"
        "Map over dimensions of one size, or say None for inputs that all lanes share." + list_hint(args, kwargs)
    )


def list_hint(args: Any, kwargs: Any) -> str:
    """What to do with a list of tensors of different sizes, which may have been meant as the lanes of one batch."""
    for path, a in [*((f"args[{k}]", a) for k, a in enumerate(args)), *kwargs.items()]:
        if type(a) is list and len(a) > 1 and all(isinstance(x, Tensor) and x.dim() for x in a) and len({len(x) for x in a}) > 1:
            return (
                f"\n{path} is a list, so each of its tensors is mapped by itself; if they are the lanes of one batch, say "
                f"pf.ragged({path})."
            )
    return ""
