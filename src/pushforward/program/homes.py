"""Where a function keeps what it captures: closure cells, globals, attributes, module parameters, containers.

The walk starts at the function and follows what its code can name. It gives, for each tensor found, the expressions
that read it again (so that rebinding is seen), and for Python values the conditions under which a program stays valid.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.source import is_library_file

Tensor = torch.Tensor
_NUMBERS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_LONGEST = 256  # containers longer than this are not looked into


@dataclass
class Home:
    """A place that holds a tensor: an expression over named objects, and a name for people."""

    expression: str
    name: str


@dataclass
class Homes:
    """What the walk found."""

    names: dict[str, Any] = field(default_factory=dict)  # the objects that expressions speak of
    tensors: dict[int, list[Home]] = field(default_factory=dict)  # by id
    objects: dict[int, Tensor] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)

    def find(self, x: Tensor) -> list[Home]:
        """The homes of a tensor: of the object itself, or of one with the same memory and layout."""
        found = self.tensors.get(id(x))
        if found:
            return found
        for key, other in self.objects.items():
            if same_memory(x, other):
                return self.tensors[key]
        return []


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one and the same piece of memory, seen the same way."""
    if a.layout is not torch.strided or b.layout is not torch.strided or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.shape != b.shape or a.stride() != b.stride() or a.numel() == 0:
        return False
    try:
        return a.data_ptr() == b.data_ptr()
    except RuntimeError:
        return False


def homes_of(function: Any) -> Homes:
    """Walk over what `function` captures."""
    walk = _Walk()
    walk.visit(function, walk.constant(function), "", guarded=True)
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found = Homes()
        self.seen: set[int] = set()
        self.attributes: set[str] = set()

    def constant(self, value: Any) -> str:
        """A name for an object in the expressions."""
        for name, other in self.found.names.items():
            if other is value:
                return name
        name = f"_{len(self.found.names)}"
        self.found.names[name] = value
        return name

    def require(self, condition: str) -> None:
        if condition not in self.found.conditions:
            self.found.conditions.append(condition)

    def same(self, expression: str, value: Any) -> None:
        """Require that a place still holds this very object."""
        self.require(f"{expression} is {self.constant(value)}")

    def visit(self, value: Any, expression: str, name: str, *, guarded: bool = False) -> None:
        """Look at one value; `guarded` says that its identity is certain (a constant, or checked already)."""
        if isinstance(value, Tensor):
            self.tensor(value, expression, name)
        elif isinstance(value, _NUMBERS):
            if not guarded:
                self.number(value, expression)
        elif isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
            return
        elif isinstance(value, (list, tuple, dict)) and len(value) <= _LONGEST:
            self.container(value, expression, name)
        else:
            if not guarded:
                self.same(expression, value)
            if id(value) not in self.seen:
                self.seen.add(id(value))
                for child, where, label, certain in self.children(value, name):
                    self.visit(child, where, label, guarded=certain)

    def tensor(self, value: Tensor, expression: str, name: str) -> None:
        homes = self.found.tensors.setdefault(id(value), [])
        self.found.objects[id(value)] = value
        if all(h.expression != expression for h in homes):
            homes.append(Home(expression, name or "captured"))

    def number(self, value: Any, expression: str) -> None:
        if value is None or isinstance(value, (bool, torch.dtype)):
            self.require(
                f"{expression} is {value!r}"
                if not isinstance(value, torch.dtype)
                else f"{expression} is {self.constant(value)}"
            )
            return
        held = self.constant(value)
        self.require(f"(({expression}) is {held} or (type({expression}) is type({held}) and {expression} == {held}))")

    def container(self, value: Any, expression: str, name: str) -> None:
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        if not any(interesting(v) for _, v in items):
            return
        self.require(f"len({expression}) == {len(items)}")
        for key, child in items:
            index = repr(key) if isinstance(key, (int, str)) else self.constant(key)
            self.visit(child, f"{expression}[{index}]", f"{name}[{key!r}]")

    def children(self, value: Any, name: str) -> Iterator[tuple[Any, str, str, bool]]:
        """What an object holds: (child, expression, name, whether its identity is certain)."""
        if isinstance(value, functools.partial):
            yield value.func, f"{self.constant(value)}.func", name, True
            for k, a in enumerate(value.args):
                yield a, f"{self.constant(value)}.args[{k}]", f"{name}[{k}]", not isinstance(a, Tensor)
            for k, a in value.keywords.items():
                yield a, f"{self.constant(value)}.keywords[{k!r}]", k, not isinstance(a, Tensor)
        elif isinstance(value, types.MethodType):
            yield value.__func__, self.constant(value.__func__), name, True
            yield value.__self__, self.constant(value.__self__), name or "self", True
        elif isinstance(value, types.FunctionType):
            yield from self.of_function(value)
        elif isinstance(value, torch.nn.Module):
            yield from self.of_module(value, name)
        elif type(value).__module__.split(".")[0] not in ("torch", "builtins", "numpy"):
            yield from self.of_object(value, name)

    def of_function(self, function: types.FunctionType) -> Iterator[tuple[Any, str, str, bool]]:
        library = is_library_file(function.__code__.co_filename)
        for label, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            yield content, f"{self.constant(cell)}.cell_contents", label, library and not isinstance(content, Tensor)
        if library:
            return
        names = code_names(function.__code__)
        self.attributes |= names
        held = self.constant(function.__globals__)
        for label in sorted(names & set(function.__globals__)):
            content = function.__globals__[label]
            if not is_library(content):
                yield content, f"{held}[{label!r}]", label, False
        for k, content in enumerate(function.__defaults__ or ()):
            yield content, f"{self.constant(function)}.__defaults__[{k}]", "default", not isinstance(content, Tensor)
        for label, content in (function.__kwdefaults__ or {}).items():
            yield (
                content,
                f"{self.constant(function)}.__kwdefaults__[{label!r}]",
                label,
                not isinstance(content, Tensor),
            )

    def of_module(self, module: torch.nn.Module, name: str) -> Iterator[tuple[Any, str, str, bool]]:
        held = self.constant(module)
        self.require(f"{held}.training is {module.training}")
        for table in ("_parameters", "_buffers"):
            entries = getattr(module, table)
            if entries:
                self.require(f"len({self.constant(entries)}) == {len(entries)}")
            for label, content in entries.items():
                yield content, f"{self.constant(entries)}[{label!r}]", joined(name, label), False
        if module._modules:
            children = self.constant(module._modules)
            self.require(f"tuple({children}.values()) == {self.constant(tuple(module._modules.values()))}")
            for label, content in module._modules.items():
                yield content, f"{children}[{label!r}]", joined(name, label), True
        forward = type(module).forward
        if isinstance(forward, types.FunctionType) and not is_library_file(forward.__code__.co_filename):
            yield forward, self.constant(forward), name, True
            for label, content in vars(module).items():
                if label in self.attributes and label != "training" and not label.startswith("_"):
                    yield content, f"{held}.__dict__[{label!r}]", joined(name, label), False

    def of_object(self, value: Any, name: str) -> Iterator[tuple[Any, str, str, bool]]:
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, types.FunctionType):
            yield call, self.constant(call), name, True
        for label in sorted(self.attributes):
            method = inspect.getattr_static(type(value), label, None)
            if isinstance(method, types.FunctionType):
                yield method, self.constant(method), name, True
        held = self.constant(value)
        for label, content in getattr(value, "__dict__", {}).items():
            if label in self.attributes or isinstance(content, Tensor):
                yield content, f"{held}.{label}", joined(name, label), False


def interesting(value: Any) -> bool:
    """Whether a container's item can matter to a program."""
    return not isinstance(value, types.ModuleType)


def is_library(value: Any) -> bool:
    """Whether a global is a module, a class, or a function of torch's or ours."""
    if isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
        return True
    if isinstance(value, types.FunctionType):
        return is_library_file(value.__code__.co_filename)
    return type(value).__module__.split(".")[0] == "torch" and not isinstance(
        value, (Tensor, torch.nn.Module, *_NUMBERS)
    )


def code_names(code: types.CodeType) -> set[str]:
    """Every global or attribute name that a function's code, or code inside of it, can speak of."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= code_names(constant)
    return names


def joined(prefix: str, label: str) -> str:
    """A dotted name."""
    return f"{prefix}.{label}" if prefix else label
