"""Decisions: where an operator chooses, and how far its input is from the other choice.

A piecewise smooth operator chooses a piece for each element: the sign in relu, the nearer bound in clamp, the
position in max, the whole number in floor. Its derivative jumps where the choice does. `decision` gives the choice as
integers, and, where there is one, a margin: a number whose sign is the choice, so that |margin| is the distance to
the kink in the operator's own input.

    relu          choice sign(x)             margin x
    clamp         choice of x − min, x − max margins x − min, x − max
    max along dim choice argmax              margin (none: the gap of the two candidates is looked up)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
Margins = list[Any]


def _arg(op: Any, args: Any, kwargs: Any, name: str) -> Any:
    """An argument by name, with its default."""
    for k, a in enumerate(op._schema.arguments):
        if a.name == name:
            if k < len(args) and not a.kwarg_only:
                return args[k]
            return kwargs.get(name, a.default_value if a.has_default_value() else None)
    return None


def _first(op: Any, args: Any, kwargs: Any) -> Margins:
    return [args[0]]


def _bounds(op: Any, args: Any, kwargs: Any) -> Margins:
    names = ("min", "min_val", "max", "max_val")
    bounds = [_arg(op, args, kwargs, n) for n in names]
    return [args[0] - b for b in bounds if b is not None]


def _pair(op: Any, args: Any, kwargs: Any) -> Margins:
    return [args[0] - args[1]] if args[0].dtype is not torch.bool else []


def _threshold(op: Any, args: Any, kwargs: Any) -> Margins:
    return [args[0] - args[1]]


def _shrink(op: Any, args: Any, kwargs: Any) -> Margins:
    lambd = _arg(op, args, kwargs, "lambd")
    return [args[0] - lambd, args[0] + lambd]


def _hard(op: Any, args: Any, kwargs: Any) -> Margins:
    return [args[0] + 3, args[0] - 3]


def _band(op: Any, args: Any, kwargs: Any) -> Margins:
    width = _arg(op, args, kwargs, "beta") or _arg(op, args, kwargs, "delta") or 1.0
    d = args[0] - args[1]
    return (
        [d - width, d + width, d]
        if op._schema.name == "aten::smooth_l1_loss" and width == 0
        else [d - width, d + width]
    )


def _norm(op: Any, args: Any, kwargs: Any) -> Margins:
    order = _arg(op, args, kwargs, "ord") if "linalg" in op._schema.name else _arg(op, args, kwargs, "p")
    return [args[0]] if order in (0, 1) else []


def _distances(op: Any, args: Any, kwargs: Any) -> Margins:
    p, x = _arg(op, args, kwargs, "p"), args[0]
    if op._schema.name == "aten::_pdist_forward":
        i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
        return [x[i] - x[j]] if p in (0, 1) else []
    return [x.unsqueeze(-2) - args[1].unsqueeze(-3)] if p in (0, 1) else []


SIGNED: dict[str, Callable[[Any, Any, Any], Margins]] = {
    **dict.fromkeys(("relu", "abs", "sign", "sgn", "leaky_relu", "prelu", "_prelu_kernel", "elu", "heaviside"), _first),
    **dict.fromkeys(("rrelu_with_noise", "relu6"), _first),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh", "clip"), _bounds),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin", "gt", "ge", "lt", "le", "eq", "ne"), _pair),
    "threshold": _threshold,
    **dict.fromkeys(("hardshrink", "softshrink"), _shrink),
    **dict.fromkeys(("hardswish", "hardsigmoid"), _hard),
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), _band),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _norm),
    **dict.fromkeys(("_cdist_forward", "_pdist_forward"), _distances),
}
ROUNDED: dict[str, Callable[[Any, Any], Tensor]] = {
    "floor": lambda a, out: out,
    "ceil": lambda a, out: out,
    "round": lambda a, out: out,
    "trunc": lambda a, out: out,
    "frac": lambda a, out: a[0].trunc(),
    "remainder": lambda a, out: torch.div(a[0], a[1], rounding_mode="floor"),
    "fmod": lambda a, out: torch.div(a[0], a[1], rounding_mode="trunc"),
    "floor_divide": lambda a, out: out,
    "grid_sampler_2d": lambda a, out: _cells(a),
    "grid_sampler_3d": lambda a, out: _cells(a),
}
EXTREMES = frozenset(
    {"amax", "amin", "max", "min", "median", "nanmedian", "aminmax", "scatter_reduce", "segment_reduce"}
)


def _cells(args: Any) -> Tensor:
    """The cell of the image that each point of the grid falls into."""
    image, grid, align = args[0], args[1], bool(args[4])
    sizes = torch.tensor(image.shape[2:][::-1], dtype=grid.dtype)
    place = (grid + 1) / 2 * (sizes - 1) if align else ((grid + 1) * sizes - 1) / 2
    return place.floor()


def moving_kind(t: Any) -> bool:
    """Whether a value is a tensor of real or complex numbers."""
    return isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())


def decision(name: str, op: Any, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], Margins] | None:
    """The choices of one operator as integer tensors, and signed margins where there are any; None: it makes none.

    An in-place operator is asked before it runs, with `out` None.
    """
    name = name[:-1] if name.endswith("_") and not name.startswith("_") else name
    inputs = [a for a in _flat(args)]
    if not any(moving_kind(a) for a in inputs):
        return None
    signed = SIGNED.get(name)
    if signed is not None:
        margins = [m for m in signed(op, args, kwargs) if isinstance(m, Tensor) and not m.is_complex()]
        if margins:
            return [m.sign() for m in margins], margins
        return _largest(op, args, kwargs, out) if "norm" in name and out is not None else None
    if name == "div" and kwargs.get("rounding_mode") is not None and out is not None:
        return [out], []
    if name in ROUNDED and (out is not None or name in ("frac", "remainder", "fmod")):
        return [ROUNDED[name](args, out)], []
    if name == "_local_scalar_dense":
        return None
    if out is None:
        return None
    results = [o for o in _flat(out)]
    whole = [o for o in results if isinstance(o, Tensor) and not moving_kind(o)]
    if whole:
        return whole, []
    if name in EXTREMES and moving_kind(args[0]):
        return _extremes(name, op, args, kwargs, results)
    return None


def _largest(op: Any, args: Any, kwargs: Any, out: Tensor) -> tuple[list[Tensor], Margins]:
    """Of a norm: which elements are the largest (order ±∞), and whether it is 0, where every norm has its kink."""
    order = _arg(op, args, kwargs, "ord") if "linalg" in op._schema.name else _arg(op, args, kwargs, "p")
    states = [out == 0]
    if order in (float("inf"), float("-inf")):
        states.append(args[0].abs() == _kept(op, args, kwargs, out))
    return states, []


def _kept(op: Any, args: Any, kwargs: Any, out: Tensor) -> Tensor:
    """The result of a reduction with the reduced dimensions kept."""
    dims, x = _arg(op, args, kwargs, "dim"), args[0]
    if _arg(op, args, kwargs, "keepdim") or not x.dim():
        return out
    if dims is None or dims == []:
        return out
    for d in sorted(d % x.dim() for d in (dims if isinstance(dims, (list, tuple)) else [dims])):
        out = out.unsqueeze(d)
    return out


def _extremes(name: str, op: Any, args: Any, kwargs: Any, results: list[Any]) -> tuple[list[Tensor], Margins] | None:
    x = args[0]
    if name in ("scatter_reduce", "segment_reduce"):
        reduce = _arg(op, args, kwargs, "reduce")
        if reduce not in ("amax", "amin", "max", "min") or name == "segment_reduce":
            return None
        return [args[3] == results[0].gather(args[1], args[2])], []
    return [x == _kept(op, args, kwargs, o) for o in results], []


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [v for item in value for v in _flat(item)]
    return [value]


_CHUNK = 1 << 18
_WEIGHTS: list[Tensor] = []
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(values: list[Tensor]) -> int:
    """A number that differs, but for one case in 2⁶⁴, when an integer tensor among `values` does."""
    if not _WEIGHTS:
        _WEIGHTS.append(torch.randint(-(2**62), 2**62, (_CHUNK,), generator=torch.Generator().manual_seed(7)))
    total = 0
    for k, v in enumerate(values):
        flat = v.detach().reshape(-1)
        if flat.is_floating_point():  # whole numbers in a floating-point type: signs, floors
            flat = torch.nan_to_num(flat, nan=1e6, posinf=1e6 + 1, neginf=-1e6 - 1)
        for j, part in enumerate(flat.split(_CHUNK) if flat.numel() else ()):
            weights = _WEIGHTS[0][: part.numel()].to(part.device)
            total += (2 * k + 1) * (2 * j + 1) * int((part.to(torch.int64) * weights).sum())
        total += (k + 1) * flat.numel()
    return total % 2**64


def exact(values: list[Tensor]) -> int:
    """A number that differs, but for one case in 2⁶⁴, when a bit of a tensor among `values` does."""
    bits = []
    for t in values:
        flat = t.detach()
        if flat.is_complex():
            flat = torch.view_as_real(flat.resolve_conj())
        if flat.layout is not torch.strided:
            flat = flat.to_dense()
        flat = flat.reshape(-1)
        bits.append(flat.view(_BITS[flat.element_size()]) if flat.dtype is not torch.bool else flat)
    return fingerprint(bits)
