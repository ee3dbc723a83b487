"""Values of a run that some lanes have left: cut down to the lanes that are left, when they are next used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..core.level import autograd_on
from ..core.torch_private import BelowAutograd, NoDispatch, NoFunction
from ..core.traced import Traced

Tensor = torch.Tensor


def stale(value: Any) -> bool:
    """Whether lanes have left since a value was made."""
    return isinstance(value, Traced) and getattr(value._level, "successor", None) is not None


def settle_all(level: Any, values: Any) -> None:
    """Cut down every stale value of the run of `level` among arguments; for a handler of the level."""
    for v in values:
        if type(v) in (list, tuple):
            settle_all(level, v)
        elif stale(v) and v._level.newest() is level:
            settle(v)


def renewed(values: Any) -> bool:
    """Settle stale values where that takes plain tensors only, before dispatch; whether there were any, and no others."""
    found = False
    for v in values:
        if not stale(v):
            continue
        p = v._payload
        if v._cell is not None or type(p) is not Tensor or p.requires_grad or not v._level.newest().on_top():
            return False
        with NoFunction(), NoDispatch():
            settle(v)
        found = True
    return found


def settle(value: Any) -> None:
    """Cut down one stale value, and all that share its memory."""
    old = value._level
    new = old.newest()
    places = old.place_of(new)
    cell = value._cell
    if cell is None:
        if value._mapped:
            value._payload = taken(value._payload, places)
        moved(value, new)
        return
    root, mapped = cell.root
    if mapped:
        cell.root = (taken(root, places), True)
    with recording(cell.root[0]):
        for member in cell.living():
            member._payload, member._mapped = new.replay(cell, member._path)
            moved(member, new, cell.root[0].storage_offset())


def moved(value: Any, level: Any, base: Any = 0) -> None:
    """Make a value one of another level; its own strides follow the payload's."""
    value._level = level
    value._meta = value._form = None
    if value.requires_grad:
        level.tracked = True
    payload = value._payload
    stride = payload.stride()[1:] if value._mapped else payload.stride()
    offset = max(payload.storage_offset() - base, 0)
    if value.stride() != stride or value.storage_offset() != offset:
        with NoDispatch(), BelowAutograd():
            torch.as_strided_(value, value.shape, stride, offset)


def taken(payload: Tensor, places: Tensor) -> Tensor:
    """Some lanes of a payload, in front in memory; the other dimensions in the same order."""
    if payload.is_conj():
        return taken(payload.conj(), places).conj()
    if payload.is_neg():
        return torch._neg_view(taken(torch._neg_view(payload), places))
    places = places.to(payload.device)
    with recording(payload):
        if payload.is_contiguous():
            return payload.index_select(0, places)
        order = [0, *sorted(range(1, payload.dim()), key=lambda d: -payload.stride(d))]
        back = [order.index(d) for d in range(payload.dim())]
        return payload.permute(order).index_select(0, places).permute(back)


@contextlib.contextmanager
def recording(payload: Tensor) -> Iterator[None]:
    """Autograd on where a payload has a graph, also under `no_grad`: the value may be used outside of it again."""
    if payload.requires_grad:
        with torch.enable_grad(), autograd_on():
            yield
    else:
        yield


def widened(level: Any, payload: Tensor, newer: Any) -> Tensor:
    """A payload of a successor as one of `level`: lanes that have left get the values of one that has not."""
    places = level.place_of(newer)
    back = torch.zeros(level.size, dtype=torch.long)
    back[places] = torch.arange(len(places))
    return payload.index_select(0, back.to(payload.device))


def payload_in(level: Any, value: Any) -> Any:
    """`(payload, mapped)` of a value of the run of `level`, in the lanes of `level`; None for other values."""
    own = value._level
    if own is level:
        return value._payload, value._mapped
    if getattr(own, "newest", None) is None or own.newest() is not level.newest():
        return None
    if not value._mapped:
        return value._payload, False
    newest = own.newest()
    if own is not newest:
        settle(value)
    return (value._payload, True) if newest is level else (widened(level, value._payload, newest), True)


def refresh_all(values: Any) -> None:
    """Settle stale values from outside of a handler: an operator on each of them does it."""
    for v in values:
        if stale(v) and v._level.newest().alive:
            with NoFunction():
                torch.ops.aten.alias.default(v)
