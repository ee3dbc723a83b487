"""Jacobians and Hessians of small functions, each row from a copy of the input of its own.

Where an operator's overhead is its time, a backward pass of mapped cotangents costs most: each operator of the engine passes through
Python. Of as many copies of the input as there are rows, mapped, the function takes the short ways of `vmap` once, and the engine's
pass runs over plain tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..batch.level import BatchLevel, wrap
from ..batch.vmap import vmap
from ..batch.work import placed, taken_out
from ..core import tree
from ..core.errors import REFUSALS
from ..core.journal import attempt
from ..core.level import THREAD
from ..core.source import code_of
from ..core.torch_private import mode_count
from ..core.traced import NeedsGraph, TooLarge, give_up_if_caught
from ..reverse import grad, grad_and_value, vjp
from .basis import basis, chosen_inputs

Tensor = torch.Tensor
COPIES = 64  # so many at most, where
LARGEST = 3000  # no value has more elements, all copies together: what is kept of hundreds of them is a few megabytes
_NOT_SMALL: set[Any] = set()  # functions for which that was tried in vain
_OUTPUTS: dict[Any, int] = {}  # how many outputs functions had at inputs of some sizes


def key_of(func: Any, leaves: list[Tensor]) -> Any:
    """What the number of outputs is remembered by."""
    return (code_of(func), *[(x.shape, x.dtype) for x in leaves])


def known_outputs(func: Any, leaves: list[Tensor]) -> int | None:
    """How many rows to try from copies: as many outputs as `func` had when it was last called so, 0 for none; None: not known."""
    if mode_count() != THREAD.recorders or THREAD.levels or code_of(func) in _NOT_SMALL:
        return 0
    return _OUTPUTS.get(key_of(func, leaves))


def remember_outputs(func: Any, leaves: list[Tensor], outs: list[Tensor]) -> None:
    """Keep the number of outputs, or 0 where the rows cannot come from copies: all must be real, of one dtype, and small."""
    total, size = sum([o.numel() for o in outs]), sum([x.numel() for x in leaves])
    together = [*outs, *leaves]
    small = (
        total <= COPIES
        and total * max(size, total) <= LARGEST
        and all([type(x) is Tensor and x.is_floating_point() and x.dtype is outs[0].dtype for x in together])
    )
    if len(_OUTPUTS) >= 1 << 12:
        _OUTPUTS.clear()
    _OUTPUTS[key_of(func, leaves)] = total if small else 0


def jacobian_rows(
    func: Any, of_inputs: Callable[..., list[Tensor]], leaves: list[Tensor], total: int
) -> tuple[list[Tensor], list[Any]] | None:
    """For each input the rows of all outputs, and the outputs' shapes; None where `func` is not what it was."""
    asked, THREAD.most = THREAD.most, LARGEST
    refused = REFUSALS.count
    try:
        with attempt(BaseException):
            given = [x.unsqueeze(0).expand(total, *x.shape).clone() for x in leaves]
            outs, pull = vjp(lambda *inputs: mapped_once(func, of_inputs, inputs, total), *given)
            seeds = rows_of_outputs(outs, total)
            rows = list(pull(seeds, retain_graph=False))
            give_up_if_caught(refused)
            return rows, [o.shape[1:] for o in outs]
    except (Exception, TooLarge, NeedsGraph):
        _OUTPUTS.pop(key_of(func, leaves), None)
        refuse(code_of(func))
        return None
    finally:
        THREAD.most = asked


def mapped_once(func: Any, of_inputs: Callable[..., list[Tensor]], inputs: tuple[Tensor, ...], total: int) -> list[Tensor]:
    """`vmap(of_inputs)(*inputs)`, given up where the function looks at a graph, or keeps a value that is not its result."""
    level: Any = BatchLevel(total, "same")
    level.divergence, level.func = "error", func
    level.payload_graphs = 1  # what is recorded is recorded on the payloads, and only there
    level.fixed = {id(p) for p in inputs}  # a write into the argument must reach the caller's tensor
    level.start()
    try:
        outs = of_inputs(*[wrap(level, p, True) for p in inputs])
    finally:
        level.stop()
    made = [placed(total, *taken_out(level, o)) for o in outs]
    del outs
    kept = THREAD.attempts[-1]  # what was written there of the level's own values need not be given back
    kept[:] = [(x, y) for x, y in kept if isinstance(x, Tensor) or isinstance(y, torch.Generator)]
    known = weakref.ref(level)
    del level
    if known() is not None:
        raise TooLarge
    return made


def refuse(code: Any) -> None:
    """Functions of this code are not small, unless it was a recording that gave up (`plans`)."""
    if THREAD.recorders:
        return
    if len(_NOT_SMALL) >= 1 << 12:
        _NOT_SMALL.clear()
    _NOT_SMALL.add(code)


def rows_of_outputs(outs: list[Tensor], total: int) -> list[Tensor]:
    """The standard basis of the outputs that the copies gave."""
    if sum([o[0].numel() for o in outs]) != total or not all([o.is_floating_point() for o in outs]):
        raise TooLarge
    return basis([o[0] for o in outs], 0, total)


def hessian_of_copies(
    func: Any, argnums: Any, positions: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The Hessian of a small function, one row from each of as many copies of the input; None where it is not small.

    Row k is the gradient of <grad f(x), e_k>. All rows are two backward passes of the engine over plain tensors, where the engine's
    operators on mapped cotangents would each pass through Python.
    """
    code = code_of(func)
    if code in _NOT_SMALL:
        return None
    _, _, leaves, spec = chosen_inputs(func, argnums, args, "hessian")
    first = grad_and_value(func, positions)

    def row(*direction: Tensor) -> Any:
        def along(*inputs: Tensor) -> Tensor:
            full = list(args)
            for k, value in zip(positions, tree.unflatten(list(inputs), spec), strict=True):
                full[k] = value
            slopes, value = first(*full, **kwargs)
            if value.is_complex() or value.dim():
                raise TooLarge  # `grad` takes the real part of one element, whatever its dimensions
            slopes = tree.leaves(list(slopes))
            return torch.stack([(s * d).sum() for s, d in zip(slopes, direction, strict=True)]).sum()

        return grad(along, tuple(range(len(leaves))))(*leaves)

    total = sum(x.numel() for x in leaves)
    asked, THREAD.most = THREAD.most, LARGEST
    refused = REFUSALS.count
    try:
        with attempt(BaseException):
            rows = vmap(row, randomness="same")(*basis(leaves, 0, total))
            give_up_if_caught(refused)
    except (Exception, TooLarge, NeedsGraph):
        refuse(code)
        return None
    finally:
        THREAD.most = asked
    sizes = [x.numel() for x in leaves]
    blocks = []
    for x, down in zip(leaves, zip(*[r.split(sizes) for r in rows], strict=True), strict=True):
        blocks.append([c.reshape((*x.shape, *y.shape)) for c, y in zip(down, leaves, strict=True)])
    many = isinstance(argnums, (tuple, list))
    outer = []
    for line in blocks:
        inputs = tree.unflatten(line, spec)
        outer.append(tuple(inputs) if many else inputs[0])
    whole = tree.unflatten(outer, spec)
    return tuple(whole) if many else whole[0]
