"""Dense Jacobians and Hessians: `jacfwd`, `jacrev`, `hessian`, `hvp`.

Forward mode takes one pass for each input element, reverse mode one for each output element; the passes of a chunk run as one
mapped call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..batch.repeat import OneDraw
from ..batch.rows import alone, pulled_rows
from ..batch.vmap import over_rows, vmap
from ..batch.work import FIRST
from ..core import calls, tree
from ..core.errors import ArgumentError
from ..core.level import THREAD
from ..core.opaque import opaque
from ..core.torch_private import mode_count
from ..core.traced import NO_PLAN
from ..core.words import check_argnums, check_function, kind, name_of, with_aux
from ..forward.jvp import checked, directional, jvp
from ..reverse import chosen_paths, differentiable, grad, recorded_vjp
from . import copies
from .basis import basis, chosen_inputs
from .complex import check_columns, check_rows, is_checked, of_dtype, row_puller, turned

Tensor = torch.Tensor


FEW = 8  # so many passes one by one cost less than mapping them, where
SMALL = 4096  # the tensors have at most so many elements, so that an operator's overhead is its time


def check_chunk(what: str, chunk_size: Any) -> None:
    """`chunk_size` is None or a positive int."""
    if chunk_size is not None and (not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size <= 0):
        msg = f"{what}: chunk_size is {chunk_size!r}; it must be None or a positive int"
        raise ArgumentError(msg)


def in_chunks(function: Callable[[int, int], list[Tensor]], total: int, chunk_size: int | None) -> list[Tensor]:
    """`function(start, stop)` over the basis, joined."""
    if chunk_size is None or chunk_size >= total:
        return function(0, total)
    draws, parts = OneDraw(), []
    for k in range(0, total, chunk_size):
        with draws:
            parts.append(function(k, min(k + chunk_size, total)))
    draws.end()
    return [torch.cat(column) for column in zip(*parts, strict=True)]


@calls.transform
def jacfwd(
    func: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    randomness: str = "same",
) -> Callable[..., Any]:
    """The Jacobian by forward mode: one pass for each input element, run as one mapped call.

    Args:
        func: returns a tensor or a pytree of tensors (with `has_aux`: a pair of that and anything).
        argnums: which arguments to differentiate by: an int, a parameter's name, or a tuple of them.
        has_aux: whether `func` returns `(output, aux)`.
        chunk_size: at most so many directions at a time.
        randomness: as in `vmap`, over the directions: "same", one draw for all of them, is what the derivative of a random function
            means; "error" refuses such functions.

    Returns:
        A function that returns, for each output tensor, the derivative in the structure of the argument; each block has the
        output's shape followed by the input's.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.jacfwd(torch.sin)(torch.zeros(2))
        tensor([[1., 0.],
                [0., 1.]])
    """
    check_function("jacfwd", func, "jacfwd(f)(x)")
    check_argnums("jacfwd", func, argnums)
    check_chunk("jacfwd", chunk_size)

    asked = calls.Asked(jacfwd, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size, randomness=randomness)

    @calls.returned
    @opaque
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if calls.REPLAY is not None and not kwargs and not THREAD.levels:
            out = calls.REPLAY(asked, func, args)
            if out is not NO_PLAN:
                return out
        positions, _, leaves, spec = chosen_inputs(func, argnums, args, "jacfwd")
        found: dict[str, Any] = {}

        def of_inputs(*inputs: Tensor) -> Any:
            full = list(args)
            for k, value in zip(positions, tree.unflatten(list(inputs), spec), strict=True):
                full[k] = value
            result = func(*full, **kwargs)
            aux = None
            if has_aux:
                result, aux = with_aux("jacfwd", func, result)
            outs, found["spec"] = tree.flat(result)
            found["tensors"] = [isinstance(o, Tensor) for o in outs]
            if True not in found["tensors"]:
                found["returned"] = kind(result)
            return [o for o in outs if isinstance(o, Tensor)], aux

        def push(*directions: Tensor) -> Any:
            _, moved, aux = jvp(of_inputs, tuple(leaves), directions, has_aux=True)
            if not has_aux:
                return moved
            flat, found["aux_spec"] = tree.flat(aux)
            return moved, flat

        total = sum(x.numel() for x in leaves)
        probe = turned(leaves) if is_checked(leaves) else None  # one more direction

        def columns(start: int, stop: int) -> list[Tensor]:
            directions = basis(leaves, min(start, total), min(stop, total))
            if probe is not None and stop > total:
                directions = [torch.cat([d, p[None]]) for d, p in zip(directions, probe, strict=True)]
            if not has_aux:
                return over_rows(push, directions, randomness)
            moved, aux = vmap(push, out_dims=(0, FIRST), randomness=randomness)(*directions)
            found["aux"] = aux
            return moved

        moved = in_chunks(columns, total + (probe is not None), chunk_size)
        check_tensors("jacfwd", func, found)
        if probe is not None:
            path = complex_path(leaves, args, positions)
            for k, m in enumerate(moved):
                moved[k] = m[:-1]
                if m.is_floating_point() or m.is_complex():
                    check_columns("jacfwd", func, path, moved[k], probe, m[-1])
        blocks = []
        sizes = [x.numel() for x in leaves]
        for m in moved:
            parts = [p.movedim(0, -1) for p in (m.split(sizes) if len(sizes) > 1 else (m,))]
            blocks.append(
                [
                    p if x.dim() == 1 else p.reshape((*p.shape[:-1], *x.shape))
                    for p, x in zip(parts, leaves, strict=True)
                ]
            )
        made = assembled(blocks, found, spec, argnums)
        return (made, tree.unflatten(found["aux"], found["aux_spec"])) if has_aux else made

    return wrapped


def check_tensors(what: str, func: Any, found: dict[str, Any]) -> None:
    """The function has returned a tensor, or nothing at all.

    Raises:
        ArgumentError: only other things.
    """
    if found["tensors"] and True not in found["tensors"]:
        msg = f"{what}({name_of(func)}): the function must return a tensor, but returned {found['returned']}"
        raise ArgumentError(msg)


def complex_path(leaves: list[Tensor], args: Any, positions: tuple[int, ...]) -> str:
    """How the caller would write the first complex input."""
    return chosen_paths(args, positions)[next(k for k, x in enumerate(leaves) if x.is_complex())]


def assembled(blocks: list[list[Tensor]], found: dict[str, Any], spec: Any, argnums: Any) -> Any:
    """Blocks by output and input leaf in the nested structure of torch.func: outputs outside, inputs inside."""
    per_output = []
    rows = iter(blocks)
    for is_tensor in found["tensors"]:
        if not is_tensor:
            per_output.append(None)
            continue
        inputs = tree.unflatten(next(rows), spec)
        per_output.append(tuple(inputs) if isinstance(argnums, (tuple, list)) else inputs[0])
    return tree.unflatten(per_output, found["spec"])


@calls.transform
def jacrev(
    func: Callable[..., Any],
    argnums: Any = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The Jacobian by reverse mode: one pass for each output element, run as one mapped call.

    Arguments and results are those of `jacfwd`; outputs of integer type have a derivative of zeros. A small function with up to 64
    outputs sees mapped values from its second call on: each row comes from a copy of the input. Where it looks at its graph, keeps a
    value, writes into its argument or is refused something, it runs once more in that call, and on plain tensors from then on.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.jacrev(lambda x: (x ** 2).sum())(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """
    check_function("jacrev", func, "jacrev(f)(x)")
    check_argnums("jacrev", func, argnums)
    check_chunk("jacrev", chunk_size)

    asked = calls.Asked(jacrev, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size)

    @calls.returned
    @opaque
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if calls.REPLAY is not None and not kwargs and not THREAD.levels:
            out = calls.REPLAY(asked, func, args)
            if out is not NO_PLAN:
                return out
        positions, _, leaves, spec = chosen_inputs(func, argnums, args, "jacrev")
        found: dict[str, Any] = {}

        def of_inputs(*inputs: Tensor) -> Any:
            full = list(args)
            for k, value in zip(positions, tree.unflatten(list(inputs), spec), strict=True):
                full[k] = value
            result = func(*full, **kwargs)
            aux = None
            if has_aux:
                result, aux = with_aux("jacrev", func, result)
            outs, found["spec"] = tree.flat(result)
            found["tensors"] = [isinstance(o, Tensor) for o in outs]
            if True not in found["tensors"]:
                found["returned"] = kind(result)
            return [o for o in outs if isinstance(o, Tensor)], aux

        known = 0 if has_aux or chunk_size is not None else copies.known_outputs(func, leaves)
        if known is not None and known > FEW:
            tried = copies.jacobian_rows(func, lambda *inputs: of_inputs(*inputs)[0], leaves, known)
            if tried is not None:
                rows, shapes = tried
                return assembled(cut_rows(rows, shapes, leaves), found, spec, argnums)
        outs, pull, aux, kept = recorded_vjp(of_inputs, tuple(leaves), True)
        check_tensors("jacrev", func, found)
        quiet = not kept and alone()
        smooth = [k for k, o in enumerate(outs) if differentiable(o)]
        if known is None:
            copies.remember_outputs(func, leaves, outs)

        def pulled(*cotangents: Tensor) -> tuple[Tensor, ...]:
            if len(smooth) == len(outs):
                return pull(list(cotangents))
            full = [torch.zeros_like(o) for o in outs]
            for k, c in zip(smooth, cotangents, strict=True):
                full[k] = c
            return pull(full)

        chosen = [outs[k] for k in smooth]
        total = sum(o.numel() for o in chosen)
        pull_rows = row_puller(pulled, chosen, leaves)

        def rows_of(start: int, stop: int) -> list[Tensor]:
            if stop - start == 1 or (total <= FEW and sum(o.numel() for o in (*outs, *leaves)) <= SMALL):
                seeds = [b.unbind(0) for b in basis(chosen, start, stop)]
                each = [pull_rows(*row) for row in zip(*seeds, strict=True)]
                if len(each) == 1:
                    return [g.unsqueeze(0) for g in each[0]]
                return [torch.stack(column) for column in zip(*each, strict=True)]
            seeds = basis(chosen, start, stop)
            found = pulled_rows(pull_rows, seeds) if quiet else None
            return list(over_rows(pull_rows, seeds, "same")) if found is None else found

        if chosen and is_checked(leaves):
            check_rows("jacrev", func, complex_path(leaves, args, positions), pulled, chosen, leaves)
        rows = in_chunks(rows_of, total, chunk_size) if total else [x.new_zeros((0, *x.shape)) for x in leaves]
        by_output: dict[int, list[Tensor]] = {}
        sizes = [o.numel() for o in chosen]
        cut = [r.split(sizes) if len(sizes) > 1 else (r,) for r in rows]
        for j, k in enumerate(smooth):
            by_output[k] = [
                of_dtype(c[j].reshape((*outs[k].shape, *x.shape)), outs[k], x) for c, x in zip(cut, leaves, strict=True)
            ]
        blocks = [by_output.get(k) or [x.new_zeros((*o.shape, *x.shape)) for x in leaves] for k, o in enumerate(outs)]
        made = assembled(blocks, found, spec, argnums)
        return (made, aux) if has_aux else made

    return wrapped


def cut_rows(rows: list[Tensor], shapes: list[Any], leaves: list[Tensor]) -> list[list[Tensor]]:
    """The rows of all outputs as blocks by output and input."""
    if len(shapes) == 1:
        return [[r.reshape((*shapes[0], *x.shape)) for r, x in zip(rows, leaves, strict=True)]]
    sizes = [s.numel() for s in shapes]
    cut = [r.split(sizes) for r in rows]
    return [[c[k].reshape((*s, *x.shape)) for c, x in zip(cut, leaves, strict=True)] for k, s in enumerate(shapes)]


@calls.transform
def hessian(
    func: Callable[..., Any], argnums: Any = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """The Hessian by forward over reverse mode: `jacfwd(jacrev(func))`; of a few inputs, by reverse over reverse.

    Of at most 64 inputs of a small function, all rows are taken at once from copies of the input, which `func` then sees
    as mapped values. A random function draws once for all directions.

    Args:
        func: returns a tensor, usually a scalar (with `has_aux`: a pair of that and anything).
        argnums: as in `jacfwd`.
        has_aux: whether `func` returns `(output, aux)`; the result is then `(hessian, aux)`.
        chunk_size: at most so many directions at a time.

    Example:
        >>> import torch, pushforward as pf
        >>> pf.hessian(lambda x: (x ** 3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
    """
    check_function("hessian", func, "hessian(f)(x)")
    check_argnums("hessian", func, argnums)
    check_chunk("hessian", chunk_size)
    inner = jacrev(func, argnums, has_aux=has_aux)
    forward = jacfwd(inner, argnums, has_aux=has_aux, chunk_size=chunk_size)
    reverse = jacrev(inner, argnums, has_aux=has_aux)

    asked = calls.Asked(hessian, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size)

    @calls.returned
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if calls.REPLAY is not None and not kwargs and not THREAD.levels:
            out = calls.REPLAY(asked, func, args)
            if out is not NO_PLAN:
                return out
        positions, _, leaves, _ = chosen_inputs(func, argnums, args, "hessian")
        if mode_count() == THREAD.recorders and chunk_size is None:
            total = sum(x.numel() for x in leaves)
            if len({x.dtype for x in leaves}) > 1:  # a block has the dtype of the gradient that it is the derivative of
                return forward(*args, **kwargs)
            if total <= FEW:
                return reverse(*args, **kwargs)
            if total <= copies.COPIES and not has_aux and all(x.is_floating_point() for x in leaves):
                found = copies.hessian_of_copies(func, argnums, positions, args, kwargs)
                if found is not None:
                    return found
        return forward(*args, **kwargs)

    return wrapped


@calls.transform
def hvp(func: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Gradient and Hessian-vector product of a scalar function, by forward over reverse mode.

    Args:
        func: a function of the primals with a scalar output.
        primals: a tuple of inputs.
        tangents: a tuple of directions like them.

    Returns:
        `(gradient, product)`: for one primal in its structure, for several as tuples.

    Example:
        >>> import torch, pushforward as pf
        >>> x = torch.tensor([1.0, 2.0, 3.0])
        >>> pf.hvp(lambda x: (x ** 3).sum(), (x,), (torch.ones(3),))[1]
        tensor([ 6., 12., 18.])
    """
    check_function("hvp", func, "hvp(f, (x,), (t,))")
    if isinstance(primals, Tensor):
        primals, tangents = (primals,), tangents if isinstance(tangents, tuple) else (tangents,)
    if not isinstance(primals, (tuple, list)):
        checked(func, primals, tangents, "hvp")  # it says what is wrong
    argnums = 0 if len(primals) == 1 else tuple(range(len(primals)))
    return gradient_along(grad(func, argnums), primals, tangents)


@calls.transform
def gradient_along(gradient: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The `jvp` of a gradient, whose messages speak of `hvp`."""
    return directional("hvp", GRADIENT_ALONG, gradient, primals, tangents)


GRADIENT_ALONG = calls.Asked(gradient_along, True)
