"""How each kind of operator is batched.

A rule is called as `rule(op, level, args, mapped, kwargs)`. `args` holds payloads; `mapped[k]` says whether the k-th has the mapped
dimension in front (for a list argument: a tuple of such flags). It returns payloads, all with the mapped dimension in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.level import resumed
from ..ops import kinds
from ..ops.table import Entry
from .custom import batch_custom
from .fallback import lane_loop, run_lanes
from .settle import payload_in

Tensor = torch.Tensor
Rule = Callable[[Any, Any, list[Any], Any, dict[str, Any]], Any]


def batching_rule(e: Entry) -> Rule:
    """The rule of an operator: hand-written, by kind, or the loop over lanes."""
    return chosen(e)[1]


def chosen(e: Entry) -> tuple[str, Rule]:
    """Where the rule of an operator comes from, and the rule."""
    hand, formula = e.rule("batch"), e.rule("formula")
    if hand is not None:
        return kinds.OWN, hand if formula is None else or_by_formula(hand, decomposed(kinds.Decomposed(formula)))
    if e.row is not None:
        for kind, make in BY_KIND.items():
            if isinstance(e.row.kind, kind):
                return kinds.DECOMPOSITION if kind is kinds.Decomposed else kinds.OWN, make(e.row.kind)
    if formula is not None:
        return kinds.DECOMPOSITION, decomposed(kinds.Decomposed(formula))
    if e.op.namespace not in ("aten", "prims", "prim"):
        return kinds.LOOP, batch_custom
    if e.composite:
        return kinds.DECOMPOSITION, decomposed(kinds.Decomposed())
    data_dependent = e.dynamic or torch.Tag.data_dependent_output in e.op.tags
    return (kinds.ONE_BY_ONE, run_lanes) if data_dependent else (kinds.LOOP, lane_loop)


def or_by_formula(hand: Rule, written_out: Rule) -> Rule:
    """A hand-written rule that may decline, and the operator's formula where it does."""

    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        out = hand(op, level, args, mapped, kwargs)
        return written_out(op, level, args, mapped, kwargs) if out is NotImplemented else out

    return rule


def no_mapped_keywords(rule: Rule) -> Rule:
    """`rule`, or the loop over lanes where a keyword argument is mapped."""

    def guarded(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        if getattr(mapped, "keywords", None):
            return lane_loop(op, level, args, mapped, kwargs)
        return rule(op, level, args, mapped, kwargs)

    return guarded


# -- element-wise -------------------------------------------------------------------------------------------------


def elementwise(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """Line up the logical dimensions behind the mapped one, and keep the promotion of 0-dim values."""
    rank, ranks, dtype, mixed = 0, [], None, False
    for a, m in zip(args, mapped, strict=True):
        if isinstance(a, Tensor):
            r = a.dim() - 1 if m else a.dim()
            ranks.append(r)
            rank = max(rank, r)
            if dtype is None:
                dtype = a.dtype
            elif a.dtype is not dtype:
                mixed = True
        else:
            ranks.append(-1)
    out = list(args)
    for k, (m, r) in enumerate(zip(mapped, ranks, strict=True)):
        if m and r < rank:
            if mixed and r == 0:
                out[k] = promoted(out[k], args, ranks)
            out[k] = out[k].reshape(level.size, *[1] * (rank - r), *out[k].shape[1:])
        elif mixed and rank == 0 and r == 0 and not m:
            out[k] = out[k].reshape(1)
    return op(*out, **kwargs)


def promoted(scalars: Tensor, args: list[Any], ranks: list[int]) -> Tensor:
    """0-dim lane values in the dtype to which they would be promoted as 0-dim tensors."""
    dtype = None
    for a, r in zip(args, ranks, strict=True):
        if r > 0 and a.dtype is not torch.bool:
            dtype = a.dtype if dtype is None else torch.promote_types(dtype, a.dtype)
    if dtype is None:
        return scalars
    wide = torch.result_type(torch.empty(1, dtype=dtype), torch.empty((), dtype=scalars.dtype))
    return scalars.to(wide)


# -- along dimensions ---------------------------------------------------------------------------------------------


def shifted(dim: int, rank: int) -> int:
    """A logical dimension as one of the payload."""
    if not -max(rank, 1) <= dim < max(rank, 1):
        msg = (
            f"Dimension out of range (expected to be in range of [{-max(rank, 1)}, {max(rank, 1) - 1}], but got {dim})"
        )
        raise IndexError(msg)
    return (dim % max(rank, 1)) + 1


FULL = {
    "sum.default": ("sum", "dim_IntList"),
    "mean.default": ("mean", "dim"),
    "prod.default": ("prod", "dim_int"),
    "max.default": ("amax", "default"),
    "min.default": ("amin", "default"),
    "all.default": ("all", "dim"),
    "any.default": ("any", "dim"),
    "median.default": ("median", "dim"),
    "nanmedian.default": ("nanmedian", "dim"),
    "count_nonzero.default": ("count_nonzero", "dim_IntList"),
}


def reduction(kind: kinds.Reduction) -> Rule:
    """Reductions: logical dimensions shift by one, `dim=None` becomes all of them."""

    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        if any(mapped[1:]) or getattr(mapped, "keywords", None):
            return lane_loop(op, level, args, mapped, kwargs)
        x, rank = args[0], args[0].dim() - 1
        short = op.name().split("::")[1]
        full = FULL.get(short if "." in short else short + ".default")
        if full is not None and (len(args) == 1 or args[1] is None):
            other = getattr(getattr(torch.ops.aten, full[0]), full[1])
            along = [1] if full[1] == "dim_IntList" else 1
            out = other(x.flatten(1) if rank > 0 else x.unsqueeze(1), along, **kwargs)
            return out[0] if isinstance(out, tuple) else out
        schema = op._schema.arguments
        args, kwargs = list(args), dict(kwargs)
        position = next((k for k, a in enumerate(schema) if a.name == "dim"), kind.dim)
        keep = next((k for k, a in enumerate(schema) if a.name == "keepdim"), None)
        while len(args) <= position and len(args) < len(schema) and not schema[len(args)].kwarg_only:
            args.append(schema[len(args)].default_value)
        named = schema[position].kwarg_only
        dim = kwargs.get("dim") if named else args[position]
        many = "int[]" in str(schema[position].type) or "List[int]" in str(schema[position].type)
        keepdim = bool(kwargs.get("keepdim", args[keep] if keep is not None and keep < len(args) else False))
        squeeze = None
        if many and dim is not None and len(dim) == 0 and short in ("any.dims", "all.dims"):
            return x != 0  # to these, no dimensions are none
        if dim is None or (many and len(dim) == 0):
            if many:
                dim = list(range(1, rank + 1)) or [1]
                x = x.reshape(level.size, 1) if rank == 0 else x
            else:
                x = x.flatten(1) if rank > 0 else x.unsqueeze(1)
                if keepdim:
                    squeeze = (level.size, *[1] * rank)
                dim = 1
        else:
            x = x.reshape(level.size, 1) if rank == 0 else x
            dim = [shifted(d, rank) for d in dim] if isinstance(dim, (list, tuple)) else shifted(dim, rank)
        if rank == 0 and keep is not None:
            squeeze = (level.size,)
        args[0] = x
        if named:
            kwargs["dim"] = dim
        else:
            args[position] = dim
        out = op(*args, **kwargs)
        if squeeze is not None:
            return tuple(o.reshape(squeeze) for o in out) if isinstance(out, (list, tuple)) else out.reshape(squeeze)
        return out

    return rule


def along_dim(kind: kinds.AlongDim) -> Rule:
    """Along one dimension (or several) with the shape kept; every tensor argument has the same rank."""

    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        if getattr(mapped, "keywords", None):
            return lane_loop(op, level, args, mapped, kwargs)
        schema = op._schema.arguments
        args, kwargs = list(args), dict(kwargs)
        first = next(k for k, a in enumerate(args) if isinstance(a, Tensor))
        rank = args[first].dim() - (1 if mapped[first] else 0)
        for k, a in enumerate(args):
            if isinstance(a, Tensor):
                full = a if mapped[k] else a.unsqueeze(0).expand(level.size, *a.shape)
                args[k] = full.unsqueeze(-1) if rank == 0 else full
        position = next((k for k, a in enumerate(schema) if a.name in ("dim", "dims")), kind.dim)
        while len(args) <= position and not schema[len(args)].kwarg_only:
            args.append(schema[len(args)].default_value)
        if schema[position].kwarg_only:
            kwargs["dim"] = _shift_any(kwargs.get("dim", schema[position].default_value), rank)
        else:
            args[position] = _shift_any(args[position], rank)
        out = op(*args, **kwargs)
        if rank == 0:
            return tuple(o.squeeze(-1) for o in out) if isinstance(out, (list, tuple)) else out.squeeze(-1)
        return out

    return rule


def _shift_any(dim: Any, rank: int) -> Any:
    return [shifted(d, rank) for d in dim] if isinstance(dim, (list, tuple)) else shifted(dim, rank)


def movement(kind: kinds.Movement) -> Rule:
    """Only the first argument is a tensor: the arguments that count dimensions shift by one."""

    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        if any(mapped[1:]):
            return lane_loop(op, level, args, mapped, kwargs)
        args, schema = list(args), op._schema.arguments
        rank = args[0].dim() - 1
        flat = rank == 0 and bool(kind.dims)
        if flat:
            op(args[0].new_empty(()), *args[1:], **kwargs)  # which says so, if a number has no such dimension
            args[0] = args[0].unsqueeze(-1)
        for k in kind.dims:
            while len(args) <= k:
                args.append(schema[len(args)].default_value)
            args[k] = _shift_any(args[k], rank)
        out = op(*args, **kwargs)
        return out.squeeze(-1) if flat and isinstance(out, Tensor) and out.dim() == 2 else out

    return rule


def factory(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """`zeros_like(x)` of a mapped x is mapped like it; `x.new_zeros(sizes)` gets the batch size in front."""
    del mapped
    names = [a.name for a in op._schema.arguments]
    if "size" in names:
        k = names.index("size")
        args = list(args)
        args[k] = [level.size, *args[k]]
        if "stride" in names and names.index("stride") < len(args):
            j = names.index("stride")
            extent = 1 + sum((n - 1) * s for n, s in zip(args[k][1:], args[j], strict=True))
            args[j] = [max(extent, 1), *args[j]]
    return op(*args, **kwargs)


def decomposed(kind: kinds.Decomposed) -> Rule:
    """Run the decomposition on traced values of the level itself."""

    def rule(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
        return through_level(kind.function or op.decompose, level, args, mapped, kwargs)

    return rule


def through_level(function: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """Call `function` on values of the level and unwrap what it returns."""
    keywords = getattr(mapped, "keywords", ())
    lifted = [lift(level, a, m) for a, m in zip(args, mapped, strict=True)]
    kwargs = {k: lift(level, v, True) if k in keywords else v for k, v in kwargs.items()}
    with resumed(level):
        return lower(level, function(*lifted, **kwargs))


# These two call themselves, so they are no closures: a closure that does is a cycle, and would keep the level with all its values.
def lift(level: Any, a: Any, m: Any) -> Any:
    """A payload as a value of the level."""
    from .level import wrap

    if m is True:
        return wrap(level, a, True)
    if isinstance(a, (list, tuple)) and m:
        return [lift(level, x, f) for x, f in zip(a, m, strict=True)]
    return a


def lower(level: Any, o: Any) -> Any:
    """A value of the level as a payload, spread over the lanes."""
    from .level import Batched

    if isinstance(o, (list, tuple)):
        made = [lower(level, x) for x in o]
        return made if type(o) is list else tuple(made)
    own = payload_in(level, o) if isinstance(o, Batched) else None
    if own is not None:
        payload, is_mapped = own
        return payload if is_mapped else payload.unsqueeze(0).expand(level.size, *payload.shape)
    if isinstance(o, Tensor):
        return o.unsqueeze(0).expand(level.size, *o.shape)
    return o


BY_KIND: dict[type, Callable[[Any], Rule]] = {
    kinds.Elementwise: lambda _: no_mapped_keywords(elementwise),
    kinds.ElementwiseLinear: lambda _: no_mapped_keywords(elementwise),
    kinds.ElementwiseBilinear: lambda _: no_mapped_keywords(elementwise),
    kinds.Movement: movement,
    kinds.Reduction: reduction,
    kinds.AlongDim: along_dim,
    kinds.Factory: lambda _: factory,
    kinds.Decomposed: decomposed,
}
