"""Random operators under `vmap`: "error", "same" (one draw for all lanes) or "different" (a draw for each)."""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import RandomnessError
from ..core.source import source_line
from ..ops.kinds import Random
from ..ops.table import Entry
from .fallback import lane_arguments, run_lanes

Tensor = torch.Tensor


def draw(level: Any, e: Entry, func: Any, values: Any, flags: Any, kwargs: Any, mapped: bool) -> tuple[Any, bool]:
    """The result of a random operator, and whether it is mapped."""
    refuse(level, func)
    if level.randomness == "same":
        if not mapped:
            return func(*values, **kwargs), False
        return same_for_all(func, level, values, flags, kwargs), True
    kind = e.row.kind if e.row is not None else None
    shape = kind.draws if isinstance(kind, Random) else "loop"
    if shape == "size" and not mapped:
        values = list(values)
        k = size_position(func)
        if k is not None and k < len(values):
            values[k] = [level.size, *values[k]]
            return func(*values, **kwargs), True
    if shape == "elementwise":
        return func(*stretched(level, values, flags), **kwargs), True
    rule = e.rule("batch")
    if rule is not None and mapped:
        return rule(func, level, values, flags, kwargs), True
    return run_lanes(func, level, values, flags, kwargs), True


def draw_into(level: Any, e: Entry, func: Any, values: Any, flags: Any, kwargs: Any) -> tuple[Tensor, bool]:
    """What an in-place draw writes into its first argument."""
    refuse(level, func)
    values, flags = list(values), list(flags)
    if level.randomness == "same":
        if not any(flags[1:]):
            like = values[0].select(0, 0) if flags[0] and level.size else values[0]
            fresh = like.detach().clone()
            func(fresh, *values[1:], **kwargs)
            return (fresh.unsqueeze(0).expand(level.size, *fresh.shape), True) if flags[0] else (fresh, False)
        return same_for_all(_returning(func), level, values, flags, kwargs), True
    base = values[0] if flags[0] else values[0].unsqueeze(0).expand(level.size, *values[0].shape)
    rest, rest_flags = values[1:], flags[1:]
    fresh = base.detach().clone(memory_format=torch.contiguous_format)
    kind = e.row.kind if e.row is not None else None
    if isinstance(kind, Random) and kind.draws == "elementwise":
        func(fresh, *stretched(level, rest, rest_flags, rank=fresh.dim() - 1), **kwargs)
        return fresh, True
    return run_lanes(_returning(func), level, [fresh, *rest], [True, *rest_flags], kwargs), True


def refuse(level: Any, func: Any) -> None:
    """Raise where draws were not said to be wanted."""
    if level.randomness == "error":
        msg = (
            f"vmap: `{func.name()}` at {source_line()} draws random numbers. Say vmap(..., randomness='different') for a draw "
            "per lane, or randomness='same' for one that all lanes share."
        )
        raise RandomnessError(msg)


class _returning:  # noqa: N801
    """An in-place operator that returns its first argument's new value."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def name(self) -> str:
        return self.func.name()

    def __call__(self, first: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
        fresh = first.detach().clone()
        self.func(fresh, *rest, **kwargs)
        return fresh


def same_for_all(func: Any, level: Any, values: Any, flags: Any, kwargs: Any) -> Any:
    """One draw for all lanes of a mapped input: the generator is put back before each lane."""
    generator = kwargs.get("generator")
    get, put = (generator.get_state, generator.set_state) if generator else (torch.get_rng_state, torch.set_rng_state)
    if level.size == 0:
        return run_lanes(func, level, values, flags, kwargs)
    with torch.utils._python_dispatch._disable_current_modes():
        state = get()
    rows = []
    for lane in range(level.size):
        if lane:
            with torch.utils._python_dispatch._disable_current_modes():
                put(state)
        args, kw = lane_arguments(values, flags, kwargs, lane)
        rows.append(func(*args, **kw))
    if isinstance(rows[0], Tensor):
        return torch.stack(rows)
    return tuple(torch.stack(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*rows, strict=True))


def stretched(level: Any, values: Any, flags: Any, rank: int | None = None) -> list[Any]:
    """Tensor arguments with the batch in front and equal ranks: every element gets a draw of its own."""
    ranks = [v.dim() - bool(f) for v, f in zip(values, flags, strict=True) if isinstance(v, Tensor)]
    rank = max([*ranks, rank or 0])
    out = []
    for v, f in zip(values, flags, strict=True):
        if isinstance(v, Tensor):
            own = v.shape[1:] if f else v.shape
            front = v if f else v.unsqueeze(0).expand(level.size, *v.shape)
            out.append(front.reshape(level.size, *[1] * (rank - len(own)), *own))
        else:
            out.append(v)
    return out


def size_position(func: Any) -> int | None:
    """Which argument of a random factory holds the sizes."""
    for k, arg in enumerate(func._schema.arguments):
        if arg.name == "size":
            return k
    return None


__all__ = ["draw", "draw_into"]
