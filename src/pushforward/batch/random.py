"""Random operators under `vmap`: "error", "same" (one draw for all lanes) or "different" (a draw for each).

Draws for all lanes are one call of the operator with the mapped dimension in front. Under a seed every lane has a
generator of its own, so that its draws are those of a loop. What a further run of the same lanes must draw again is
in `batch.repeat`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..core.errors import RandomnessError
from ..core.journal import about_to_draw
from ..core.level import THREAD
from ..core.source import source_line
from ..ops.kinds import Random
from ..ops.table import Entry
from .fallback import lane_arguments, run_lanes
from .repeat import default_generator, put_state, state_of
from .seeds import lane_generator

Tensor = torch.Tensor
# How much of the generator these use depends on the data, so their draws are kept for further runs.
BY_VALUE = frozenset({"poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "multinomial"})


class Sized(NamedTuple):
    """What a batching rule of a draw is told of its lanes."""

    size: int


def draw(level: Any, e: Entry, func: Any, values: Any, flags: Any, kwargs: Any, mapped: bool) -> tuple[Any, bool]:
    """The result of a random operator, and whether it is mapped."""
    refuse(level, func)
    remember(values, kwargs)
    recorded = e.rule("recorded")
    if recorded is not None:
        func = _recorded(func, recorded)
    kind = e.row.kind if e.row is not None else None
    shape = kind.draws if isinstance(kind, Random) else "loop"
    if level.randomness == "same":
        keep_state(level, values, kwargs)
        if mapped and shape == "like" and level.size:
            values, mapped = one(values, flags, 0), False
        if not mapped:
            return func(*values, **kwargs), False
        return same_for_all(func, level, values, flags, kwargs), True
    k = size_position(func)
    if shape == "size" and not mapped and k is not None and k < len(values):

        def compute(size: int, values: Any) -> Any:
            values = list(values)
            values[k] = [size, *values[k]]
            return func(*values, **kwargs)

    elif shape in ("elementwise", "like"):

        def compute(size: int, values: Any) -> Any:
            return func(*stretched(size, values, flags), **kwargs)

    else:
        rule = e.rule("batch")
        compute = looped(func, flags, kwargs) if rule is None else ruled(rule, func, flags, kwargs)  # type: ignore[assignment]

    return for_all_lanes(level, e, func, compute, values, flags, kwargs), True


def draw_into(level: Any, e: Entry, func: Any, values: Any, flags: Any, kwargs: Any) -> tuple[Tensor, bool]:
    """What an in-place draw writes into its first argument."""
    refuse(level, func)
    remember(values, kwargs)
    values, flags = list(values), list(flags)
    if level.randomness == "same":
        keep_state(level, values, kwargs)
        if not any(flags[1:]):
            if flags[0] and not level.size:
                return values[0].clone(), True
            like = values[0].select(0, 0) if flags[0] else values[0]
            fresh = like.detach().clone()
            func(fresh, *values[1:], **kwargs)
            return (fresh.unsqueeze(0).expand(level.size, *fresh.shape), True) if flags[0] else (fresh, False)
        return same_for_all(_returning(func), level, values, flags, kwargs), True
    kind = e.row.kind if e.row is not None else None
    if isinstance(kind, Random) and kind.draws == "elementwise":

        def compute(size: int, values: Any) -> Any:
            base = values[0] if flags[0] else values[0].unsqueeze(0).expand(size, *values[0].shape)
            fresh = base.detach().clone(memory_format=torch.contiguous_format)
            func(fresh, *stretched(size, values[1:], flags[1:], rank=fresh.dim() - 1), **kwargs)
            return fresh

    else:
        compute = looped(_returning(func), flags, kwargs)  # type: ignore[assignment]
    return for_all_lanes(level, e, _returning(func), compute, values, flags, kwargs), True


def refuse(level: Any, func: Any) -> None:
    """Raise where draws were not said to be wanted."""
    if level.randomness == "error":
        msg = (
            f"vmap: `{func.name()}` at {source_line()} draws random numbers. Say vmap(..., "
            f"randomness='different') for a draw "
            "per lane, or randomness='same' for one that all lanes share."
        )
        raise RandomnessError(msg)


def remember(values: Any, kwargs: Any) -> None:
    """Let a run that is given up leave the generator as it was."""
    if THREAD.attempts:
        about_to_draw(explicit_generator(values, kwargs) or default_generator(device_of(values, kwargs)))


class _returning:
    """An in-place operator that returns its first argument's new value."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def name(self) -> str:
        return self.func.name()

    def __call__(self, first: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
        fresh = first.detach().clone()
        self.func(fresh, *rest, **kwargs)
        return fresh


class _recorded:
    """A draw whose derivative torch's engine would get wrong, by a rule that it gets right."""

    def __init__(self, func: Any, rule: Any) -> None:
        self.func, self.rule, self._schema = func, rule, func._schema

    def name(self) -> str:
        return self.func.name()

    def __call__(self, *values: Any, **kwargs: Any) -> Any:
        return self.rule(self.func, *values, **kwargs)


# -- a draw for each lane --------------------------------------------------------------------------


def for_all_lanes(
    level: Any, e: Entry, func: Any, compute: Callable[[int, Any], Any], values: Any, flags: Any, kwargs: Any
) -> Any:
    """Draws for the lanes of a run: `compute(size, values)` for all of the first run, of which it takes its own."""
    if level.call is None:
        return compute(level.size, values)
    repeats = level.call.repeating()
    explicit = explicit_generator(values, kwargs)
    if repeats.seed is not None and explicit is None:
        return seeded(level, repeats, func, values, flags, kwargs)
    name = e.functional_name() if e.writes or e.out_names else e.name
    generator = explicit or default_generator(device_of(values, kwargs))
    if name in BY_VALUE:
        return repeats.replayed(level, generator, lambda: compute(level.size, values))
    repeats.keep_state(generator)
    places = repeats.places(level)
    if places is None:
        return compute(level.size, values)
    back = torch.zeros(repeats.size, dtype=torch.long)
    back[places] = torch.arange(level.size)
    full = [spread(v, f, back) for v, f in zip(values, flags, strict=True)]
    return chosen(compute(repeats.size, full), places)


def spread(value: Any, flag: Any, back: Tensor) -> Any:
    """A mapped argument for all lanes of the first run; those that are not of this one get a stand-in."""
    return value.index_select(0, back.to(value.device)) if flag is True else value


def chosen(out: Any, places: Tensor) -> Any:
    """Some lanes of a result."""
    if isinstance(out, Tensor):
        return out.index_select(0, places.to(out.device))
    return tuple(chosen(o, places) if isinstance(o, Tensor) else o for o in out)


def ruled(rule: Any, func: Any, flags: Any, kwargs: Any) -> Callable[[int, Any], Any]:
    """An operator with a batching rule of its own."""

    def compute(size: int, values: Any) -> Any:
        return rule(func, Sized(size), values, flags, kwargs)

    return compute


def looped(func: Any, flags: Any, kwargs: Any) -> Callable[[int, Any], Any]:
    """An operator that is called once for each lane."""

    def compute(size: int, values: Any) -> Any:
        return stacked([func(*one(values, flags, lane), **kwargs) for lane in range(size)], func, values, flags, kwargs)

    return compute


def one(values: Any, flags: Any, lane: int) -> list[Any]:
    """The positional arguments of one lane."""
    return lane_arguments(values, flags, {}, lane)[0]


def stacked(rows: list[Any], func: Any, values: Any, flags: Any, kwargs: Any) -> Any:
    """The results of all lanes; for no lanes, of the shape of one of zeros."""
    if not rows:
        from .fallback import empty_result

        return empty_result(func, values, flags, kwargs)
    if isinstance(rows[0], Tensor):
        return torch.stack(rows)
    return tuple(
        torch.stack(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*rows, strict=True)
    )


def seeded(level: Any, repeats: Any, func: Any, values: Any, flags: Any, kwargs: Any) -> Any:
    """Each lane draws from a generator of its own, seeded by the call's seed and the lane's number."""
    device = device_of(values, kwargs)
    generator = default_generator(device)
    numbers = range(level.size) if level.lanes is None else level.lanes.tolist()
    rows = []
    with shared_below(level):
        before = state_of(generator)
        try:
            for lane, number in enumerate(numbers):
                state = repeats.lane_states.get((number, device))
                put_state(generator, state_of(lane_generator(repeats.seed, number, device)) if state is None else state)
                rows.append(func(*one(values, flags, lane), **kwargs))
                repeats.lane_states[number, device] = state_of(generator)
        finally:
            put_state(generator, before)
    return stacked(rows, func, values, flags, kwargs)


@contextlib.contextmanager
def shared_below(level: Any) -> Iterator[None]:
    """Draws of the levels below are the same for all their lanes: each of them runs this call with the same seed."""
    others: list[Any] = [v for v in THREAD.levels if v is not level and hasattr(v, "randomness")]
    before = [(v, v.randomness, v.call) for v in others]
    for v in others:
        v.randomness, v.call = "same", None
    try:
        yield
    finally:
        for v, randomness, call in before:
            v.randomness, v.call = randomness, call


# -- one draw for all ------------------------------------------------------------------------------


def same_for_all(func: Any, level: Any, values: Any, flags: Any, kwargs: Any) -> Any:
    """One draw for all lanes of a mapped input: the generator is put back before each lane."""
    if level.size == 0:
        return run_lanes(func, level, values, flags, kwargs)
    generator = explicit_generator(values, kwargs) or default_generator(device_of(values, kwargs))
    state = state_of(generator)
    rows = []
    for lane in range(level.size):
        if lane:
            put_state(generator, state)
        rows.append(func(*one(values, flags, lane), **kwargs))
    return stacked(rows, func, values, flags, kwargs)


# -- what a draw is made from ----------------------------------------------------------------------


def keep_state(level: Any, values: Any, kwargs: Any) -> None:
    """Let further runs of the call begin where this draw does."""
    if level.call is not None:
        generator = explicit_generator(values, kwargs) or default_generator(device_of(values, kwargs))
        level.call.repeating().keep_state(generator)


def explicit_generator(values: Any, kwargs: Any) -> Any:
    """The generator that was given to an operator."""
    return kwargs.get("generator") or next((v for v in values if isinstance(v, torch.Generator)), None)


def device_of(values: Any, kwargs: Any) -> torch.device:
    """Where an operator draws."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    tensor = next((v for v in values if isinstance(v, Tensor)), None)
    return tensor.device if tensor is not None else torch.get_default_device()


def stretched(size: int, values: Any, flags: Any, rank: int | None = None) -> list[Any]:
    """Tensor arguments with the batch in front and equal ranks: every element gets a draw of its own."""
    ranks = [v.dim() - bool(f) for v, f in zip(values, flags, strict=True) if isinstance(v, Tensor)]
    rank = max([*ranks, rank or 0])
    out = []
    for v, f in zip(values, flags, strict=True):
        if isinstance(v, Tensor):
            own = v.shape[1:] if f else v.shape
            front = v if f else v.unsqueeze(0).expand(size, *v.shape)
            out.append(front.reshape(size, *[1] * (rank - len(own)), *own))
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
