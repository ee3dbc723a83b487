"""Recording a plan: the call runs the long way with a recorder under all levels, which sees the operators on payloads.

What cannot be repeated without being asked again is not planned: operators that write, draw, read numbers or give sizes that depend
on them, constants made on the way, warnings, decisions between lanes.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch.level import Batched
from ..core.cell import STOP
from ..core.level import THREAD, is_grad_enabled
from ..core.torch_private import TorchDispatchMode, mode_count, pop_mode, push_mode, tree_leaves
from ..forward.level import Dual

Tensor = torch.Tensor
LONGEST = 64  # operators in a plan
LARGE = 1 << 18  # of tensors with more elements the operators take longer than the way to them
_UNPLANNED = frozenset(
    {"_local_scalar_dense", "lift_fresh", "_efficientzerotensor", "as_strided", "as_strided_copy", "as_strided_scatter"}
)
_BAD_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class Unplanned(Exception):
    """A call that cannot be a plan."""


def places_only(func: Any, args: Any) -> bool:
    """Whether an index is by numbers, so that the result's sizes are known, and not by masks."""
    return func is torch.ops.aten.index.Tensor and all(
        i is None or i.dtype not in (torch.bool, torch.uint8) for i in args[1]
    )


class Recorder(TorchDispatchMode):
    """The operators that reach the tensors below all levels."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler imports it, which takes seconds

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.good = True
        self.grad_mode = is_grad_enabled()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if (
            len(self.calls) >= LONGEST
            or self.grad_mode is not is_grad_enabled()
            or func._schema.is_mutable
            or name in _UNPLANNED
            or ("batch_norm" in name and any(a is True for a in args))  # writes statistics, and its schema does not say so
            or (any(tag in func.tags for tag in _BAD_TAGS) and not places_only(func, args))
            or not all(isinstance(o, Tensor) for o in (out if isinstance(out, (tuple, list)) else (out,)))
        ):
            self.good = False
        if not self.good or max((o.numel() for o in tree_leaves(out)), default=0) > LARGE:
            self.good = False
            self.calls.clear()
        else:
            self.calls.append((func, args, kwargs, out))
        return out


def state_of(levels: list[Any]) -> tuple[Any, ...]:
    """What a plan cannot change: a call that changes it is not planned."""
    return (
        THREAD.unrepeatable,
        len(THREAD.levels),
        *[
            (id(v), v.tracked, v.hidden, v.complex, v.suspended, v.successor is None, v.open_graph, v.payload_graphs)
            for v in levels
        ],
    )


def recorded(call: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any] | None]:
    """The result of `call(func, args, kwargs)`, and the operators on payloads that led to it, or None."""
    levels = list(THREAD.levels)
    before = state_of(levels)
    recorder = Recorder()
    modes = [pop_mode(None) for _ in range(mode_count())]
    for mode in (recorder, *reversed(modes)):
        push_mode(mode)
    try:
        out = call(func, args, kwargs)
    finally:
        now = [pop_mode(None) for _ in range(mode_count())]
        for mode in reversed(now):
            if mode is not recorder:
                push_mode(mode)
    same = recorder.good and before == state_of(levels)
    return out, recorder.calls if same else None


class Source:
    """Where each tensor of a recording comes from: an argument, or the result of an operator."""

    def __init__(self, leaves: list[Tensor], values: list[Any]) -> None:
        self.names: dict[int, str] = {}
        self.values = values
        self.new_cells: set[int] = set()
        for k, x in enumerate(leaves):
            self.names.setdefault(id(x), f"a{k}")

    def name(self, x: Tensor) -> str:
        """The variable that holds a tensor."""
        found = self.names.get(id(x))
        if found is None:
            raise Unplanned
        return found

    def base_of(self, view: Any) -> tuple[int, tuple[Any, ...]] | None:
        """Which argument a view looks at, and the view operators from there; None if it looks at memory of the call's own."""
        if not any(v._cell is view._cell for v in self.values):
            if id(view._cell) in self.new_cells:
                raise Unplanned  # two results over one memory
            self.new_cells.add(id(view._cell))
            return None
        steps: list[Any] = []
        path = view._path
        while True:
            for k, v in enumerate(self.values):
                if v._cell is view._cell and type(v) is type(view) and v._path is path:
                    return k, tuple(steps[::-1])
            if path is None:
                raise Unplanned
            path, step = path
            func, rest, kwargs, _ = step
            if any(isinstance(x, Tensor) for x in tree_leaves((rest, kwargs))) or (func is not STOP and "as_strided" in str(func)):
                raise Unplanned
            steps.append(step)


def level_of(value: Any) -> int:
    """The place of a value's level among the running ones."""
    depth = value._level.depth
    if depth > len(THREAD.levels) or THREAD.levels[depth - 1] is not value._level:
        raise Unplanned
    return depth - 1


def parts_of(value: Any) -> list[Tensor | None]:
    """The payloads of a traced value."""
    if type(value) is Batched:
        return [value._payload]
    if type(value) is Dual:
        return [value._primal, value._tangent]
    raise Unplanned
