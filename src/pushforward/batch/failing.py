"""An operator that fails for the data of some lanes: those lanes go a way of their own, where the error is theirs."""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import TransformError
from .fallback import lane_arguments
from .lanes import plainly

Tensor = torch.Tensor
_DATA = (
    "out of bounds",
    "out of range",
    "ZeroDivision",
    "index",
    "singular",
    "not positive",
    "converge",
    "assert",
    "Assert",
    "nan",
)
_TRIED = 64  # so many lanes failing in the same way are taken for all of them


def go_on_without_failing(level: Any, e: Any, error: Exception, args: Any, kwargs: Any) -> bool:
    """Let the lanes in which an operator fails split off; False where all fail, or those that fail go on."""
    failing = failing_lanes(level, e, error, args, kwargs)
    if failing is None:
        return False
    with plainly():
        groups = [torch.tensor([k for k, f in enumerate(failing) if f is which]) for which in (False, True)]
    root = level.root()
    root.asked += 1
    return not failing[level.split(groups)]


def failing_lanes(level: Any, e: Any, error: Exception, args: Any, kwargs: Any) -> list[bool] | None:
    """In which lanes an operator fails alone; None where it is all of them, or no matter of the data."""
    if isinstance(error, (TransformError, NotImplementedError)) or level.successor is not None or level.size < 2:
        return None
    if not isinstance(error, (IndexError, torch.linalg.LinAlgError)) and not any(word in str(error) for word in _DATA):
        return None
    if e.writes or e.out_names or e.random:
        return None
    values, flags, named = payloads_of(level, args, kwargs)
    if not any(f is True or (f is not False and any(f)) for f in flags):
        return None
    found: list[bool] = []
    for lane in range(level.size):
        own, kw = lane_arguments(values, flags, named, lane)
        try:
            e.op(*own, **kw)
        except (RuntimeError, IndexError):
            found.append(True)
        else:
            found.append(False)
        if lane == _TRIED and all(found):
            return None
    return None if all(found) or not any(found) else found


def payloads_of(level: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Payloads of the arguments of an operator, and which are mapped."""
    from .level import Batched

    def own(a: Any) -> Any:
        return a._payload if type(a) is Batched and a._level is level else a

    def mapped(a: Any) -> bool:
        return type(a) is Batched and a._level is level and a._mapped

    values = [[own(x) for x in a] if type(a) in (list, tuple) else own(a) for a in args]
    flags: list[Any] = [tuple(mapped(x) for x in a) if type(a) in (list, tuple) else mapped(a) for a in args]
    return values, flags, {k: own(v) for k, v in kwargs.items()}
