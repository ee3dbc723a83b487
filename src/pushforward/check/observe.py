"""Observers: what a function does, seen operator by operator, without changing it.

An observer sits on top of whatever runs: plain tensors, dual numbers, a backward pass. Three things pass it:
operators (by dispatch), the calls of the Python API that take a value out of the derivative (`.detach()`, `.item()`,
`.numpy()`, …), and whole calls of a `torch.autograd.Function`, whose insides stay unseen unless asked for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from .. import functions
from ..core.level import THREAD
from ..core.source import is_library_file
from ..core.torch_private import (
    ForceKeys,
    FunctionBase,
    NoFunction,
    TorchDispatchMode,
    excluded_keys,
    graph_task_id,
    included_keys,
    mode_count,
    pop_mode,
    push_mode,
)
from ..forward.level import DualLevel

Tensor = torch.Tensor

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CONSTRUCTORS = os.path.join("core", "constructors.py")

# As torch has them: `core.constructors` puts its own in their place, which call these.
BUILT = tuple(getattr(f, "__wrapped__", f) for f in (torch.tensor, torch.as_tensor, torch.asarray))
# Calls of the Python API whose result carries no derivative, and what to call them.
NUMBERS = {
    Tensor.item: ".item()",
    Tensor.__float__: "float()",
    Tensor.__int__: "int()",
    Tensor.__complex__: "complex()",
    Tensor.__index__: "__index__",
}
ARRAYS = {
    Tensor.numpy: ".numpy()",
    Tensor.__array__: "numpy.asarray()",
    Tensor.tolist: ".tolist()",
    **{f: f"torch.{f.__name__}()" for f in BUILT},
}
STOPS = {
    Tensor.detach: ".detach()",
    torch.detach: "torch.detach()",
    Tensor.data.__get__: ".data",  # type: ignore[attr-defined]
    torch.autograd.grad: "torch.autograd.grad() without create_graph=True",
}
MAKERS = {*BUILT, torch.from_numpy, torch.frombuffer}
# Aliases that autograd and dual numbers make for themselves: no operators of the function.
ALIASES = frozenset({"detach", "alias", "lift_fresh", "detach_", "lift_fresh_copy"})


class Call:
    """One call on its way through an observer."""

    __slots__ = ("args", "function", "kind", "kwargs", "name", "run_with", "source")

    def __init__(
        self, kind: str, name: str, function: Any, args: Any, kwargs: Any, run_with: Callable[..., Any]
    ) -> None:
        self.kind, self.name, self.function = kind, name, function
        self.args, self.kwargs, self.run_with = args, kwargs, run_with
        self.source = user_line()

    def run(self) -> Any:
        """Do what was called."""
        return self.run_with(*self.args, **self.kwargs)


def user_line() -> str:
    """`file.py:line` of the innermost frame outside of torch and this package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library_file(name):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return "<unknown>"


def asked_by_user() -> bool:
    """Whether the nearest frame outside of torch is not one of this package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            if frame.f_code.co_name not in ("__torch_function__", "user_call") and not name.endswith(_CONSTRUCTORS):
                return False
        elif not is_library_file(name):
            return True
        frame = frame.f_back
    return False


class Observer:
    """Base of the observers: override what is of interest; `call.run()` does what was called."""

    sees_inside = False  # whether the operators inside of a torch.autograd.Function are observed, too

    def __init__(self) -> None:
        self.paused = 0
        self.thread = threading.get_ident()
        self.keys = excluded_keys()

    def operator(self, call: Call) -> Any:
        """An operator, or a whole call of a `torch.autograd.Function` (`call.kind`: "operator" or "function")."""
        return call.run()

    def lost(self, call: Call) -> Any:
        """A call that gives a value without a derivative (`call.kind`: "stop", "number" or "array")."""
        return call.run()

    def made(self, value: Any) -> None:
        """A tensor that came from numbers or arrays, past dispatch."""

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """See nothing for a while."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """For the observer's own arithmetic: no mode, nothing recorded, dispatch keys as outside of any handler."""
        # In a handler lazy conjugation, for one, would not be resolved. The keys are read once the modes are off.
        with self.pause(), modes_off(), NoFunction(), ForceKeys(included_keys(), self.keys), torch.no_grad():
            yield

    @contextlib.contextmanager
    def resume(self) -> Iterator[None]:
        """See again, inside of a pause."""
        before, self.paused = self.paused, 0
        try:
            yield
        finally:
            self.paused = before

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe what runs inside."""
        self.keys = excluded_keys()
        with whole_functions(self), _Api(self), _Operators(self):
            yield


class _Operators(TorchDispatchMode):
    """Operators, as they arrive at dispatch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler imports it, which takes seconds

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        observer = self.observer
        name = func._schema.name.removeprefix("aten::")
        if observer.paused or name in ALIASES:
            return func(*args, **(kwargs or {}))
        return observer.operator(Call("operator", name, func, args, kwargs or {}, func))


class _Api(TorchFunctionMode):
    """Calls of the Python API that end a derivative."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        observer = self.observer
        if observer.paused:
            return func(*args, **kwargs)
        for kind, names in (("stop", STOPS), ("number", NUMBERS), ("array", ARRAYS)):
            if func in names:
                return self.user_call(kind, names[func], func, args, kwargs)
        out = func(*args, **kwargs)
        if func in MAKERS:
            observer.made(out)
        return out

    def user_call(self, kind: str, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A call that ends a derivative, if the user's code made it and it takes a tensor."""
        observer = self.observer
        if kwargs.get("create_graph") or not _holds_tensor(args) or not asked_by_user():
            out = func(*args, **kwargs)
        else:

            def run(*args: Any, **kwargs: Any) -> Any:
                with observer.pause():
                    return func(*args, **kwargs)

            out = observer.lost(Call(kind, name, func, args, kwargs, run))
        if func in MAKERS:
            observer.made(out)
        return out


def _holds_tensor(args: Any) -> bool:
    if isinstance(args, Tensor):
        return True
    return isinstance(args, (list, tuple)) and any(_holds_tensor(a) for a in args)


@contextlib.contextmanager
def whole_functions(observer: Observer) -> Iterator[None]:
    """Calls of `torch.autograd.Function` reach the observer as one operator each, however `apply` was bound."""

    def seen(cls: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        if observer.paused or observer.thread != threading.get_ident():
            return run(*args, **kwargs)

        def inside(*args: Any, **kwargs: Any) -> Any:
            if not observer.sees_inside:
                return run(*args, **kwargs)
            with observer.resume():
                return run(*args, **kwargs)

        if cls is CheckpointFunction:
            return run(*args, **kwargs)
        call = Call("function", cls.__name__, cls, args, kwargs, inside)
        with observer.pause():
            return observer.operator(call)

    def below(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return seen(cls, args, kwargs, super(FunctionBase, cls).apply)

    functions.WATCHERS.append(seen)
    outermost = "apply" not in FunctionBase.__dict__
    if outermost:  # a method bound before this package was imported goes to torch's own class at once
        FunctionBase.apply = classmethod(below)
    try:
        yield
    finally:
        functions.WATCHERS.remove(seen)
        if outermost:
            del FunctionBase.apply


@contextlib.contextmanager
def modes_off() -> Iterator[None]:
    """No dispatch mode at all: plain tensors are plain."""
    taken = [pop_mode(None) for _ in range(mode_count())]
    try:
        yield
    finally:
        for mode in reversed(taken):
            push_mode(mode)


def innermost_jvp() -> DualLevel | None:
    """The level of the innermost running `jvp`."""
    return next((v for v in reversed(THREAD.levels) if isinstance(v, DualLevel)), None)


def in_backward() -> bool:
    """Whether autograd's engine is running."""
    return graph_task_id() != -1


def tensors(value: Any) -> list[Tensor]:
    """The tensors in arguments or results, at any depth of lists and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    return []
