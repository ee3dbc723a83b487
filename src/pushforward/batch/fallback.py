"""The loop over lanes: right for every operator, at the speed of a loop. Also where shapes depend on the data."""

from __future__ import annotations

from typing import Any

import torch

from ..core.level import THREAD
from ..core.slow import say_slow
from ..core.traced import TooLarge
from ..ops.lanes import empty_result

Tensor = torch.Tensor


def lane_arguments(
    values: list[Any], flags: Any, kwargs: dict[str, Any], lane: int
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of one lane."""
    args = []
    for v, f in zip(values, flags, strict=True):
        if f is True:
            args.append(v.select(0, lane))
        elif f is False or not any(f):
            args.append(v)
        else:
            args.append([x.select(0, lane) if m else x for x, m in zip(v, f, strict=True)])
    mapped = getattr(flags, "keywords", ())
    return args, {k: v.select(0, lane) if k in mapped else v for k, v in kwargs.items()} if mapped else kwargs


def lane_loop(op: Any, level: Any, values: list[Any], flags: Any, kwargs: dict[str, Any]) -> Any:
    """Run `op` lane by lane and stack; said once per operator by `SlowFallback`."""
    if getattr(level, "most", None) is not None:  # of a run that was tried because it would be fast
        raise TooLarge
    say_slow(op.name(), "has no batching rule and runs once per lane")
    return run_lanes(op, level, values, flags, kwargs)


def run_lanes(op: Any, level: Any, values: list[Any], flags: Any, kwargs: dict[str, Any]) -> Any:
    """As `lane_loop`, silently: for operators whose result's shape depends on the data."""
    THREAD.unrepeatable += 1
    if level.size == 0:
        return empty_result(op, values, flags, kwargs)
    lanes = level.active_lanes()
    rows: dict[int, Any] = {}
    for lane in lanes:
        args, kw = lane_arguments(values, flags, kwargs, lane)
        rows[lane] = op(*args, **kw)
    first = rows[lanes[0]]
    if isinstance(first, Tensor):
        columns = [{k: r for k, r in rows.items()}]
    elif isinstance(first, (list, tuple)):
        columns = [{k: r[j] for k, r in rows.items()} for j in range(len(first))]
    else:
        keys = [rows.get(k, first) for k in range(level.size)]
        return rows[level.choose(keys)]
    tensors = [j for j, c in enumerate(columns) if isinstance(c[lanes[0]], Tensor)]
    shapes = [tuple(tuple(columns[j][k].shape) for j in tensors) if k in rows else None for k in range(level.size)]
    chosen = level.choose(shapes)
    good = {k for k in lanes if shapes[k] == shapes[chosen]}
    out: list[Any] = []
    for column in columns:
        if isinstance(column[chosen], Tensor):
            filler = column[chosen]
            out.append(torch.stack([column[k] if k in good else filler for k in range(level.size)]))
        else:
            out.append(column[chosen])
    return out[0] if isinstance(first, Tensor) else type(first)(out) if type(first) in (list, tuple) else tuple(out)
