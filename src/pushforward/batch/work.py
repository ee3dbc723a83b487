"""The work list: groups of lanes that left the first run get runs of their own, and results go back in lane order."""

from __future__ import annotations

from typing import Any

import torch

from .level import BatchLevel

Tensor = torch.Tensor


def run_groups(call: Any, size: int, payloads: list[Any], level: BatchLevel, flat: list[Any], spec: Any) -> Any:
    """Run what is queued after a first run of all lanes, and put every lane's result at its place."""
    done: list[tuple[list[int], list[Any]]] = [(list(level.active_lanes()), rows_of(call, level, flat))]
    pending = [list(group) for group in level.queue]
    while pending:
        lanes = pending.pop(0)
        index = torch.tensor(lanes)
        part = [
            p if d is None else p.index_select(0, index.to(p.device)) for p, d in zip(payloads, call.dims, strict=True)
        ]
        level = BatchLevel(len(lanes), call.randomness)
        flat, spec = call.run_level(level, part)
        done.append(([lanes[i] for i in level.active_lanes()], rows_of(call, level, flat)))
        pending += [[lanes[i] for i in group] for group in level.queue]
    order = torch.argsort(torch.tensor([lane for lanes, _ in done for lane in lanes]))
    outs = []
    for column in zip(*[rows for _, rows in done], strict=True):
        outs.append(joined(column, [len(lanes) for lanes, _ in done], order))
    return call.finish(outs, spec, size)


def rows_of(call: Any, level: BatchLevel, flat: list[Any]) -> list[Any]:
    """The results of a run for its active lanes."""
    out = []
    for o, m in flat:
        value = call.place(level, o, m)
        if isinstance(value, Tensor) and level.active is not None:
            value = value.index_select(0, torch.tensor(level.active, device=value.device))
        out.append(value)
    return out


def joined(column: Any, counts: list[int], order: Tensor) -> Any:
    """One output of all runs, in lane order."""
    if isinstance(column[0], Tensor):
        return torch.cat(column).index_select(0, order.to(column[0].device))
    if all(type(v) is type(column[0]) and v == column[0] for v in column):
        return column[0]
    spread = [v for v, n in zip(column, counts, strict=True) for _ in range(n)]
    values = [spread[k] for k in order.tolist()]
    if all(isinstance(v, (bool, int, float, complex)) for v in values):
        return torch.tensor(values)
    return values
