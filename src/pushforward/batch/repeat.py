"""Several runs of one call: draws are those of the first run, and a warning is given once.

Before its first draw from a generator a call keeps the generator's state; every further run begins there, and draws
for all lanes of the call, of which it takes its own. So a lane's draws do not depend on which lanes it runs with.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..core.errors import RandomnessError
from ..core.level import THREAD
from ..core.source import source_line
from ..core.torch_private import mode_at, mode_count, no_modes
from ..core.warned import listen, unlisten
from .lanes import plainly

Tensor = torch.Tensor


class Repeats:
    """What must be the same in every run of a call."""

    def __init__(self, seed: int | None, size: int, lanes: Tensor | None = None) -> None:
        self.seed, self.size = seed, size
        self.lanes = lanes  # which lanes of the call the first run had, in rising order; None: all
        self.states: dict[Any, Tensor] = {}  # of generators, before their first draw
        self.after: dict[Any, Tensor] | None = None  # of the same, when the first run had ended
        self.recorded: list[
            Any
        ] = []  # (draw, its lanes, the state after it): those whose use of the generator depends on the data
        self.replays: list[Any] = []
        self.lane_states: dict[Any, Tensor] = {}  # under a seed: of each lane's own generator
        self.level: Any = None
        self.watching = False
        self.seen: set[Any] = set()

    def begin(self, level: Any, waiting: Any) -> None:
        """A further run begins."""
        self.level = level
        if self.after is None:
            self.after = {g: state_of(g) for g in self.states}
        for generator, state in self.states.items():
            put_state(generator, state)
        self.lane_states = {}
        self.recorded = []
        self.replays = [(selected(out, lanes, waiting.lanes), state) for out, lanes, state in waiting.draws]

    def end(self) -> None:
        """All runs have ended: the generators are as the first run left them."""
        for generator, state in (self.after or {}).items():
            put_state(generator, state)
        if self.watching:
            unlisten(self.repeated)

    def keep_state(self, generator: Any) -> None:
        """Remember a generator's state before its first draw."""
        if generator not in self.states:
            self.states[generator] = state = state_of(generator)
            for draws in _OPEN.draws:
                draws.drew = True
                draws.before.setdefault(generator, state)

    def places(self, level: Any) -> Tensor | None:
        """Which lanes of the first run those of a level are; None: all of them."""
        if level.size == self.size:
            return None
        with plainly():
            return level.lanes if self.lanes is None else torch.searchsorted(self.lanes, level.lanes)

    def replayed(self, level: Any, generator: Any, compute: Any) -> Any:
        """A draw that is kept: the one of an earlier run, or a new one."""
        self.keep_state(generator)
        if self.replays:
            out, state = self.replays.pop(0)
            put_state(generator, state)
        else:
            out = compute()
            state = state_of(generator)
        with plainly():
            lanes = torch.arange(self.size) if level.lanes is None else level.lanes
        self.recorded.append((out, lanes, state))
        return out

    # -- warnings ----------------------------------------------------------------------------------

    def watch_warnings(self) -> None:
        """From now on, know which warnings were given."""
        if not self.watching:
            self.watching = True
            listen(self.repeated)

    def repeated(self, message: Any, category: Any, filename: str, lineno: int) -> bool:
        """Whether a warning was given by an earlier run already."""
        key, level = (category, str(message), filename, lineno), self.level
        again = key in self.seen or (level is not None and level.asked < level.prefix)
        self.seen.add(key)
        return again


def default_generator(device: Any) -> torch.Generator:
    """The generator that draws on a device where none is given."""
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    index = module.current_device() if device.index is None else device.index
    return module.default_generators[index]


def state_of(generator: Any) -> Tensor:
    """A generator's state, whatever levels are running."""
    if not mode_count():
        return generator.get_state()
    with no_modes():
        return generator.get_state()


def put_state(generator: Any, state: Tensor) -> None:
    """Set a generator's state, whatever levels are running."""
    with no_modes():
        generator.set_state(state)


def selected(out: Any, lanes: Tensor, wanted: Tensor) -> Any:
    """The part of a recorded draw that belongs to some lanes."""
    with plainly():
        places = torch.searchsorted(lanes, wanted)
    if isinstance(out, Tensor):
        return out.index_select(0, places.to(out.device))
    return tuple(selected(o, lanes, wanted) if isinstance(o, Tensor) else o for o in out)


# -- several calls that are one to the user ---------------------------------------------------------


class _Open(threading.local):
    def __init__(self) -> None:
        self.draws: list[OneDraw] = []


_OPEN = _Open()


class OneDraw:
    """Runs of one function, each in a `with` block, which draw what the first drew: afterwards it is as if it had run once.

    Known are the default generators of the CPU and of `device`, those given as `known`, and every other that a mapped call draws
    from, or of which is said that it is `met`.
    """

    def __init__(self, device: Any = None, known: Any = ()) -> None:
        devices = [torch.device("cpu")]
        if device is not None and device.type not in ("cpu", "meta"):
            devices.append(device)
        self.before: dict[Any, Tensor] = {g: state_of(g) for g in (*map(default_generator, devices), *known)}
        self.after: dict[Any, Tensor] | None = None
        self.runs = 0
        self.drew = False
        self.seeded = [(v, seeds_of(v)) for v in THREAD.levels]  # levels below, whose lanes have generators of their own
        self.seeded_after: list[Any] = []

    def __enter__(self) -> None:
        """One of the runs begins."""
        if self.runs:
            if self.drew and recorded():
                msg = (
                    f"a function that draws random numbers is run several times at {source_line()}, in a program that is being "
                    "recorded, where each run would draw anew. Record it without chunk_size, and in one mode."
                )
                raise RandomnessError(msg)
            if self.after is None:
                self.after, self.seeded_after = self.states()
            self.put(self.before, self.seeded)
        self.runs += 1
        _OPEN.draws.append(self)

    def __exit__(self, *_: object) -> None:
        _OPEN.draws.remove(self)

    def states(self) -> tuple[dict[Any, Tensor], list[Any]]:
        """Where the generators are now."""
        return {g: state_of(g) for g in self.before}, [(v, seeds_of(v)) for v, _ in self.seeded]

    def put(self, states: dict[Any, Tensor], seeded: list[Any]) -> None:
        """Set the generators."""
        for generator, state in states.items():
            put_state(generator, state)
        put_seeds(seeded)

    def end(self) -> None:
        """All runs have ended: the generators are as the first run left them."""
        if self.after is not None:
            self.put(self.after, self.seeded_after)


def recorded() -> bool:
    """Whether the operators that run now become a program."""
    return any(type(mode_at(k)).__name__ == "ProxyTorchDispatchMode" for k in range(mode_count()))


def met(generator: torch.Generator) -> None:
    """A generator is about to draw."""
    for draws in _OPEN.draws:
        if generator not in draws.before:
            draws.before[generator] = state_of(generator)


@contextlib.contextmanager
def undrawn(device: Any = None) -> Iterator[None]:
    """Afterwards the generators are as they were: what is drawn meanwhile is tried only."""
    draws = OneDraw(device)
    try:
        with draws:
            yield
    finally:
        draws.put(draws.before, draws.seeded)


def seeds_of(level: Any) -> dict[Any, Tensor]:
    """The states of the generators of a level's lanes."""
    repeats = getattr(getattr(level, "call", None), "repeats", None)
    return {} if repeats is None else dict(repeats.lane_states)


def put_seeds(states: list[Any]) -> None:
    """Set them."""
    for level, before in states:
        repeats = getattr(getattr(level, "call", None), "repeats", None)
        if repeats is not None:
            repeats.lane_states = dict(before)
