"""The state of a thread, carried to the threads on which the engine runs the backward passes of other devices.

torch takes its own state there (the stack of modes among it), but knows nothing of ours. So it is named to torch
around each call of the engine, and code that may run on such a thread works under the state of the thread that called.
"""

from __future__ import annotations

import contextlib
from typing import Any

from .level import THREAD
from .torch_private import forget_carried, is_carried, keep_carried, named_carried
from .torch_private import run_backward as engine
from .traced import HELD

KEY = "pushforward"
CARRIED: list[Any] = [THREAD, HELD]  # thread-local objects; modules add theirs



class carrying(contextlib.AbstractContextManager):
    """A call of the engine, from which other threads find the state of this one."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = named_carried(KEY) if is_carried(KEY) else None
        keep_carried(KEY, [vars(local) for local in CARRIED])

    def __exit__(self, *_: Any) -> None:
        forget_carried(KEY)  # what is left when a thread ends would lock it
        if self.before is not None:
            keep_carried(KEY, self.before)


class adopted(contextlib.AbstractContextManager):
    """Code of a backward pass, under the state of the thread that called the engine."""

    __slots__ = ("origins", "own")

    def __enter__(self) -> None:
        origins = named_carried(KEY) if is_carried(KEY) else None
        self.origins: Any = None
        if origins is None or origins[0] is vars(THREAD):
            return
        self.origins, self.own = origins, [dict(vars(local)) for local in CARRIED]
        for local, origin in zip(CARRIED, origins, strict=True):
            vars(local).update(origin)

    def __exit__(self, *_: Any) -> None:
        if self.origins is None:
            return
        for local, origin, own in zip(CARRIED, self.origins, self.own, strict=True):
            origin.update(vars(local))
            vars(local).clear()
            vars(local).update(own)


def elsewhere() -> bool:
    """Whether this is a thread of the engine's, working for a thread on which levels run."""
    return is_carried(KEY) and named_carried(KEY)[0] is not vars(THREAD)


def run_backward(*args: Any, **kwargs: Any) -> Any:
    """The engine, called without the Python that stands before it in `torch.autograd.grad`."""
    with carrying():
        return engine(*args, **kwargs)
