"""The short way of whole recurrent networks under `vmap`: samples do not mix, so the lanes are more of them.

`torch.lstm`, `torch.gru` and the simple ones are called once on `[lanes · N, L, features]`, with weights from outside;
the states at the start may be values of the level or not.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.level import THREAD
from ..core.traced import Traced
from .fast import direct
from .fast_layers import constants_only, plain_mapped
from .level import Batched, wrap

Tensor = torch.Tensor
POSITIONAL = 9


def network(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A network of a mapped, padded input, that draws nothing."""
    if len(args) != POSITIONAL or kwargs or THREAD.order >= 2 or not isinstance(args[2], (list, tuple)):
        return None
    x, states, weights, _, _, dropout, train, _, batch_first = args
    payload = plain_mapped(x)
    several = isinstance(states, (list, tuple))
    if payload is None or payload.dim() != 4 or 0 in payload.shape or (dropout and train):
        return None
    level = x._level
    starts = [start_of(level, s) for s in (states if several else [states])]
    if None in starts or not constants_only(level, tuple(weights), {}):
        return None
    lanes, n = payload.shape[0], payload.shape[1 if batch_first else 2]
    if any(s.dim() != 3 + mapped or s.shape[-2] != n for s, mapped in starts):  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        return None  # the long way raises the error

    def all_lanes(payload: Tensor) -> tuple[Tensor, ...]:
        joined = [joined_states(s, mapped, lanes) for s, mapped in starts]  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        rows = payload.flatten(0, 1) if batch_first else payload.movedim(0, 1).flatten(1, 2)
        out, *last = func(rows, joined if several else joined[0], weights, *args[3:])
        out = out.unflatten(0, (lanes, n)) if batch_first else out.unflatten(1, (lanes, n)).movedim(1, 0)
        return out, *(s.unflatten(1, (lanes, n)).movedim(1, 0) for s in last)

    return tuple(wrap(level, o, True) for o in direct(all_lanes, payload, held=level.held))


def start_of(level: Any, state: Any) -> tuple[Tensor, bool] | None:
    """The payload of a state, and whether it is mapped; None where it is not known."""
    if type(state) is Batched and state._level is level:
        plain = type(state._payload) is Tensor and not state._payload.is_complex()
        return (state._payload, state._mapped) if plain else None
    if isinstance(state, Traced) or not isinstance(state, Tensor) or not constants_only(level, (state,), {}):
        return None
    return (state, False) if state.is_floating_point() else None  # whole numbers are the sizes of packed sequences


def joined_states(state: Tensor, mapped: bool, lanes: int) -> Tensor:
    """`[layers, N, H]` of each lane as `[layers, lanes · N, H]`."""
    if not mapped:
        return state.unsqueeze(1).expand(state.shape[0], lanes, *state.shape[1:]).flatten(1, 2).contiguous()
    return state.movedim(0, 1).flatten(1, 2).contiguous()


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    Batched._named[_function] = network
