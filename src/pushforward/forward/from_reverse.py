"""Tangents derived from the reverse formula: J v = d/du ⟨vjp(u), v⟩, for one operator alone.

The vector-Jacobian product is linear in u, so its derivative at any u is the transpose we want. Where the reverse formula
cannot be differentiated in u, the rows of J are taken one by one.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import NotDifferentiableError
from ..core.fresh import fresh, released
from ..core.level import autograd_on, is_grad_enabled
from ..core.source import source_line
from ..core.torch_private import NoFunction, has_kernel
from ..core.transposing import STATE, transposing
from ..core.transposing import grad as user_grad

Tensor = torch.Tensor


def from_reverse(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Value and tangent of `op` by transposing its reverse mode."""
    del level
    places: list[tuple[Any, ...]] = []
    inputs: list[Tensor] = []
    directions: list[Tensor] = []
    keywords = getattr(tangents, "keywords", {})
    outside = is_grad_enabled() and depends_on_outside(primals, tangents, kwargs)
    with autograd_on(), torch.enable_grad():
        args: list[Any] = list(primals)
        for k, t in enumerate(tangents):
            if isinstance(t, list):
                args[k] = list(primals[k])
                for j, d in enumerate(t):
                    if d is not None:
                        args[k][j] = fresh(primals[k][j])
                        inputs.append(args[k][j])
                        directions.append(d)
                        places.append((k, j))
            elif t is not None:
                args[k] = fresh(primals[k])
                inputs.append(args[k])
                directions.append(t)
                places.append((k,))
        named = dict(kwargs)
        for name, t in keywords.items():
            named[name] = fresh(kwargs[name])
            inputs.append(named[name])
            directions.append(t)
        out = op(*args, **named)
        outs = list(out) if isinstance(out, (list, tuple)) else [out]
        live = [k for k, o in enumerate(outs) if isinstance(o, Tensor) and o.requires_grad]
        made: list[Any] = [None] * len(outs)
        by_user = hasattr(op, "cls") or op.namespace not in ("aten", "prims")
        smooth = any(isinstance(o, Tensor) and (o.is_floating_point() or o.is_complex()) for o in outs)
        if smooth and not live and by_user and not hasattr(op, "cls") and not has_autograd(op):
            raise no_derivative(op)
        if live:
            try:
                by = by_rows if getattr(op, "once", False) else transposed
                with NoFunction(), transposing():
                    moved = by([outs[k] for k in live], inputs, directions, outside)
            except RuntimeError as error:
                if "no autograd formula" not in str(error):
                    raise
                raise no_derivative(op) from None
            for k, t in zip(live, moved, strict=True):
                made[k] = t
    values = outs if outside else [released(o) if isinstance(o, Tensor) and o.requires_grad else o for o in outs]
    if isinstance(out, (list, tuple)):
        return tuple(values) if not isinstance(out, list) else values, tuple(made)
    return values[0], made[0]


def no_derivative(op: Any) -> NotDifferentiableError:
    """The error for a custom operator without a reverse formula."""
    return NotDifferentiableError(
        f"jvp: `{op.name()}` at {source_line()} has no derivative: register one with "
        "torch.library.register_autograd, or detach its input."
    )


def has_autograd(op: Any) -> bool:
    """Whether a custom operator was given a backward formula, or needs none."""
    return any(has_kernel(op.name(), key) for key in ("Autograd", "CompositeImplicitAutograd"))


def depends_on_outside(primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> bool:
    """Whether anything given requires grad, so that autograd must record value and tangent."""
    given = [*primals, *tangents, *kwargs.values(), *getattr(tangents, "keywords", {}).values()]
    for v in given:
        parts = v if isinstance(v, (list, tuple)) else (v,)
        if any(isinstance(x, Tensor) and x.requires_grad for x in parts):
            return True
    return False


def transposed(
    outs: list[Tensor], inputs: list[Tensor], directions: list[Tensor], outside: bool
) -> list[Tensor | None]:
    """The tangents of `outs` for the directions of `inputs`."""
    seeds = [torch.zeros_like(o).requires_grad_() for o in outs]
    cut = STATE.cut
    pulled = user_grad(outs, inputs, seeds, create_graph=True, allow_unused=True, materialize_grads=False)
    pairs = [(g, d) for g, d in zip(pulled, directions, strict=True) if g is not None]
    linear = [(g, d) for g, d in pairs if g.requires_grad]
    if not pairs:
        return [torch.zeros_like(o) for o in outs]
    if len(linear) < len(pairs) or STATE.cut != cut:
        return by_rows(outs, inputs, directions, outside)
    try:
        tangents = user_grad(
            [g for g, _ in pairs], seeds, [d.to(g.dtype) for g, d in pairs], create_graph=True, allow_unused=True
        )
    except RuntimeError:
        return by_rows(outs, inputs, directions, outside)
    return [
        torch.zeros_like(o) if t is None else t if outside else released(t) for t, o in zip(tangents, outs, strict=True)
    ]


def by_rows(outs: list[Tensor], inputs: list[Tensor], directions: list[Tensor], outside: bool) -> list[Tensor | None]:
    """One reverse pass for each element of the output: exact where the reverse formula has no derivative of its own."""
    made: list[Tensor | None] = []
    for out in outs:
        flat = out.reshape(-1)
        rows = []
        for k in range(flat.numel()):
            part = row_product(flat[k], 1, inputs, directions, outside)
            if out.is_complex():
                part = torch.complex(part, row_product(flat[k], 1j, inputs, directions, outside))
            rows.append(part)
        made.append(torch.stack(rows).reshape(out.shape) if rows else torch.zeros_like(out))
    return made


def row_product(
    element: Tensor, seed: complex, inputs: list[Tensor], directions: list[Tensor], outside: bool
) -> Tensor:
    """Re ⟨vjp(seed), directions⟩ for one element of the output."""
    weight = torch.full_like(element, seed)
    row = user_grad(element, inputs, weight, retain_graph=True, create_graph=outside, allow_unused=True)
    parts = [torch.real(g.conj() * d).sum() for g, d in zip(row, directions, strict=True) if g is not None]
    return sum(parts[1:], parts[0]) if parts else torch.real(released(element) * 0)
