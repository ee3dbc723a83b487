"""Modules that take their sizes from their first input: a transform's first call initialises them once, as a plain call does.

What they do then concerns no lane and no derivative: parameters get memory, and their first numbers are drawn. So it is done below
all levels; of the input only its sizes are read, those that one lane sees.
"""

from __future__ import annotations

import functools
from typing import Any

from .errors import TransformError
from .level import THREAD
from .torch_private import LazyModuleMixin, NoFunction, Uninitialized, no_modes


def inferred(original: Any) -> Any:
    """The hook that initialises a module, below all levels."""

    @functools.wraps(original)
    def infer(self: Any, *args: Any, **kwargs: Any) -> None:
        if not THREAD.levels:
            return original(self, *args, **kwargs)
        THREAD.unrepeatable += 1
        with NoFunction(), no_modes():
            return original(self, *args, **kwargs)

    return infer


def materialized(original: Any) -> Any:
    """A parameter that gets its memory; `TransformError` where the hook of a module made before this import would do it."""

    @functools.wraps(original)
    def materialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if THREAD.levels and THREAD.levels[-1].on_top():
            msg = (
                f"{THREAD.levels[-1].where}: a module that takes its sizes from its first input was to be initialised inside. Call it "
                "once before, on an input like that of one lane, or import pushforward before the module is made."
            )
            raise TransformError(msg)
        return original(self, *args, **kwargs)

    return materialize


def install() -> None:
    """Catch the initialisation from now on."""
    LazyModuleMixin._infer_parameters = inferred(LazyModuleMixin._infer_parameters)  # type: ignore[method-assign]
    Uninitialized.materialize = materialized(Uninitialized.materialize)  # type: ignore[method-assign]


install()
