"""Recording a plan: the call runs the long way with a recorder under all levels, which sees the operators on payloads.

What cannot be repeated without being asked again is not planned: operators that write, draw, read numbers or give sizes that depend
on them, constants made on the way, warnings, decisions between lanes.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any, NamedTuple

import torch

from ..batch.level import Batched
from ..core.cell import STOP
from ..core.level import THREAD, is_grad_enabled
from ..core.torch_private import TorchDispatchMode, mode_at, mode_count, pop_mode, push_mode, tensor_text, tree_leaves
from ..core.warned import listen, unlisten
from ..forward.level import Dual

Tensor = torch.Tensor
LONGEST = 64  # operators in a plan
LARGE = 1 << 22  # of tensors with more elements the operators take longer than the way to them
TWICE = (
    1 << 16
)  # so many elements at most where a plan is tried beside the long way, and both results are there at once
_UNPLANNED = frozenset(
    {"_local_scalar_dense", "lift_fresh", "_efficientzerotensor", "as_strided", "as_strided_copy", "as_strided_scatter"}
)
BAD_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


KNOWN: Any = 1  # of a level's `hidden`, while a call is recorded: true from before


class Unrecorded(Exception):
    """A run that a list of operators does not stand for."""


class Unplanned(Exception):
    """A call that cannot be a plan."""


def places_only(func: Any, args: Any) -> bool:
    """Whether an index is by numbers, so that the result's sizes are known, and not by masks."""
    return func is torch.ops.aten.index.Tensor and all(
        i is None or i.dtype not in (torch.bool, torch.uint8) for i in args[1]
    )


class Ref(NamedTuple):
    """A tensor in a recording: the variable that holds it, and its sizes, strides, dtype and device."""

    name: str
    size: Any
    stride: Any
    dtype: torch.dtype
    device: torch.device


class Names:
    """Which variable holds a tensor: an argument's, or that of an operator's result. Tensors are not kept alive."""

    def __init__(self, leaves: list[Tensor]) -> None:
        self.known: dict[int, tuple[Any, str]] = {}
        self.count = 0
        for k, x in enumerate(leaves):
            self.known.setdefault(id(x), (weakref.ref(x), f"a{k}"))

    def new(self, x: Tensor) -> str:
        """The variable of a new tensor."""
        self.count += 1
        name = f"b{self.count}"
        self.known[id(x)] = (weakref.ref(x), name)
        return name

    def of(self, x: Tensor) -> str:
        """The variable of a known tensor."""
        ref, name = self.known.get(id(x), (None, ""))
        if ref is None or ref() is not x:
            raise Unplanned
        return name

    def referred(self, a: Any) -> Any:
        """An argument with references in place of its tensors."""
        if isinstance(a, Tensor):
            return Ref(self.of(a), a.shape, a.stride(), a.dtype, a.device)
        if isinstance(a, (list, tuple)):
            return [self.referred(x) for x in a]
        return a


class Recorder(TorchDispatchMode):
    """The operators that reach the tensors below all levels."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler imports it, which takes seconds

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.calls: list[tuple[Any, Any, dict[str, Any], Any]] = []  # operator, arguments, names of the results
        self.good = True
        self.largest = 0
        self.hidden: list[int] = []  # levels whose function was found to capture what requires grad
        self.grad_mode = is_grad_enabled()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.good:
            try:
                given = self.names.referred(args), {k: self.names.referred(v) for k, v in kwargs.items()}
            except Unplanned:
                self.good = False
        out = func(*args, **kwargs)
        if not self.good:
            return out
        results = out if isinstance(out, (tuple, list)) else (out,)
        name = func._schema.name.split("::")[1]
        if (
            len(self.calls) >= LONGEST
            or self.grad_mode is not is_grad_enabled()
            or func._schema.is_mutable
            or name in _UNPLANNED
            or func.namespace != "aten"
            or (
                "batch_norm" in name and any(a is True for a in args)
            )  # writes statistics, and its schema does not say so
            or (any(tag in func.tags for tag in BAD_TAGS) and not places_only(func, args))
            or not all(isinstance(o, Tensor) and o.layout is torch.strided for o in results)
            or max((o.numel() for o in results), default=0) > LARGE
        ):
            self.good = False
            return out
        made = self.names.new(out) if isinstance(out, Tensor) else [self.names.new(o) for o in results]
        self.largest = max([self.largest, *[o.numel() for o in results]])
        self.calls.append((func, given[0], given[1], made))
        return out


def state_of(levels: list[Any]) -> tuple[Any, ...]:
    """What a plan cannot change: a call that changes it is not planned."""
    return (
        THREAD.unrepeatable,
        len(THREAD.levels),
        *[
            (id(v), v.tracked, v.complex, v.suspended, v.successor is None, v.open_graph, v.payload_graphs)
            for v in levels
        ],
    )


class unrepeatable_counted:
    """Meanwhile a warning, or the text of a tensor, makes the call one that cannot be repeated.

    Python's warnings are counted even where they would not be shown again; what torch's own code in C++ says is counted where it
    is shown. A recording of a whole call ends there, and says nothing: what runs again in its place says it.
    """

    lock = threading.Lock()
    users = 0
    warn: Any = None
    text: Any = None

    def __enter__(self) -> None:
        listen(counted)
        with self.lock:
            if not unrepeatable_counted.users:
                if warnings.warn is not counting:  # which somebody may have put back
                    unrepeatable_counted.warn, warnings.warn = warnings.warn, counting
                if tensor_text._str is not counting_text:
                    unrepeatable_counted.text, tensor_text._str = tensor_text._str, counting_text
            unrepeatable_counted.users += 1

    def __exit__(self, *_: object) -> None:
        unlisten(counted)
        with self.lock:
            unrepeatable_counted.users -= 1
            if unrepeatable_counted.users:
                return
            if warnings.warn is counting:
                warnings.warn = unrepeatable_counted.warn
            if tensor_text._str is counting_text:
                tensor_text._str = unrepeatable_counted.text


def counting(message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any) -> None:
    """`warnings.warn`, counted."""
    THREAD.unrepeatable += 1
    if THREAD.recorders:
        raise Unrecorded
    unrepeatable_counted.warn(message, category, stacklevel + 1, *args, **kwargs)


def counted(*_: object) -> bool:
    """A warning that is shown: what torch's own code in C++ says comes here only."""
    THREAD.unrepeatable += 1
    return THREAD.recorders > 0


def counting_text(*args: Any, **kwargs: Any) -> Any:
    """The text of a tensor, counted: its numbers are read where no mode sees it."""
    THREAD.unrepeatable += 1
    return unrepeatable_counted.text(*args, **kwargs)


def off_and_on(modes: Any) -> None:
    """The modes that are on taken off, and these put on."""
    for _ in range(mode_count()):
        pop_mode(None)
    for mode in modes:
        push_mode(mode)


def recorded(call: Any, func: Any, args: Any, kwargs: Any, leaves: list[Tensor]) -> tuple[Any, Recorder | None]:
    """The result of `call(func, args, kwargs)`, and the operators on payloads that led to it, or None."""
    levels = list(THREAD.levels)
    before = state_of(levels)
    recorder = Recorder(Names(leaves))
    for v in levels:
        v.hidden = v.hidden and KNOWN
    modes = [mode_at(k) for k in range(mode_count())]
    try:
        with unrepeatable_counted():
            off_and_on((recorder, *modes))
            out = call(func, args, kwargs)
    finally:
        off_and_on(modes)
        recorder.hidden = [k for k, v in enumerate(levels) if v.hidden is True]
        for v in levels:
            v.hidden = bool(v.hidden)
    return out, recorder if recorder.good and before == state_of(levels) else None


class Views:
    """Which views of a result look at an argument, and which at memory of the call's own."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.new_cells: set[int] = set()

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
            if any(isinstance(x, Tensor) for x in tree_leaves((rest, kwargs))) or (
                func is not STOP and "as_strided" in str(func)
            ):
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
