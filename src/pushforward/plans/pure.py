"""Whether a function only computes, and what its result depends on besides its arguments.

Read from its bytecode: it may do arithmetic, call torch's functions and methods of tensors, loop, branch, make tuples, lists and
functions of its own, and call functions that do no more than that. Everything that it takes from outside (globals, what it
closes over, defaults) is looked up in every call and becomes a part of the key, by value; tensors become inputs. Whatever
else it does (an attribute set, an item assigned, an import, `with`, `try`, a method with an unknown name, a call of
something unknown) makes it a function that nothing is known of, and it is run each time. So does a name of its code that no
instruction read here explains: versions of Python differ in their instructions.
"""

from __future__ import annotations

import collections
import dis
import functools
import math
import types
from typing import Any

import torch

from ..core.calls import OWN_CODE, OWN_FUNCTIONS, Asked
from .known import ATTRIBUTES, CHANGING, INSTRUCTIONS, INTRINSICS, JUMPS, PURE

Tensor = torch.Tensor
MOST_CODE = 1 << 12
MOST_NUMBERS = 1 << 17  # in a tensor: the operators take longer than the way to them
MOST_KEY = 1 << 10  # parts of what a call depends on: more, and looking at them takes longer than the call
MOST_ITEMS = 1 << 8  # in a container
MOST_FUNCTIONS = 1 << 8  # and containers
MISSING = object()


class Impure(Exception):
    """A function that does more than compute, or takes what a key cannot tell apart."""


class NotNow(Exception):
    """Values of which this call is not replayed: they require grad, are large, or are no plain tensors."""


_CONSTANTS = frozenset(
    {type(None), bool, int, str, bytes, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format}
)

_CONTAINERS = frozenset({tuple, list, dict, torch.Size})

# Their attributes are methods and facts of the value, not further values.
_VALUES = _CONSTANTS | {Tensor, torch.nn.Parameter, float, tuple, list, dict, slice, torch.Size, types.FunctionType}


class Reading:
    """What the code of a function takes from outside: names of globals and of what it closes over, with attributes."""

    __slots__ = ("changes_lists", "code", "paths")

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.changes_lists = False
        self.paths: dict[tuple[bool, str, tuple[str, ...]], None] = {}
        self.read(code, frozenset())
        if not {name for is_global, name, _ in self.paths if not is_global}.issuperset(code.co_freevars):
            raise Impure(code.co_freevars)

    def read(self, code: types.CodeType, cells: frozenset[str]) -> None:
        """The instructions of a function, and of those that it makes; `cells`: variables of the functions around it."""
        if not set(code.co_cellvars).isdisjoint(code.co_freevars):
            raise Impure(code.co_freevars)  # a comprehension's variable, in place of one of the same name around it
        own = cells | set(code.co_cellvars)
        lines = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
        k, named = 0, set()
        while k < len(lines):
            op, value, words = lines[k].opname, lines[k].argval, lines[k].argrepr
            k += 1
            if op not in INSTRUCTIONS and not op.startswith(JUMPS):
                raise Impure(op)
            if isinstance(value, types.CodeType):
                self.read(value, own)
            elif op == "BINARY_OP" and words.endswith("="):
                self.changes_lists = True
            elif op == "CALL_INTRINSIC_1" and words not in INTRINSICS:
                raise Impure(words)
            elif op == "STORE_DEREF" and value not in code.co_cellvars:
                raise Impure(op)
            elif op in ("LOAD_ATTR", "LOAD_METHOD"):
                named.add(value)
                self.attribute(value)
            elif op in ("LOAD_GLOBAL", "LOAD_DEREF"):
                chain = []
                # What other branches jump to takes an attribute of their values too.
                while k < len(lines) and lines[k].opname in ("LOAD_ATTR", "LOAD_METHOD") and not lines[k].is_jump_target:
                    chain.append(lines[k].argval)
                    k += 1
                named.update(chain, (value,))
                if op == "LOAD_DEREF" and value in own:
                    for name in chain:
                        self.attribute(name)
                else:
                    self.paths[op == "LOAD_GLOBAL", value, tuple(chain)] = None
        if not named.issuperset(code.co_names):
            raise Impure(code.co_names)

    def attribute(self, name: str) -> None:
        """An attribute of a value that is not known yet: it must be one of tensors."""
        if name in CHANGING:
            self.changes_lists = True
        elif name not in ATTRIBUTES:
            raise Impure(name)


READINGS: dict[int, tuple[types.CodeType, Reading | None]] = {}  # with the code, so that nothing else gets its identity


def reading_of(code: types.CodeType) -> Reading:
    """What a function's code says, or `Impure`."""
    known = READINGS.get(id(code))
    if known is None:
        if len(READINGS) >= MOST_CODE:
            READINGS.clear()
        try:
            known = code, Reading(code)
        except Impure:
            known = code, None
        READINGS[id(code)] = known
    if known[1] is None:
        raise Impure(code.co_name)
    return known[1]


class Described:
    """The key of a call, and its tensors: those given and those that the function takes from outside."""

    __slots__ = ("changes_lists", "has_lists", "key", "leaves", "seen")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.leaves: list[Tensor] = []
        self.seen: dict[int, tuple[int, Any]] = {}  # functions and containers, which are not described again
        self.changes_lists = self.has_lists = False

    def add(self, value: Any) -> None:
        """One more value."""
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            self.tensor(value)
            return
        if kind in _CONSTANTS:
            self.key += (kind, value)
            return
        if kind is float:
            self.key += (kind, value if value == value else "nan", math.copysign(1.0, value))
            return
        known = self.seen.get(id(value))
        if known is not None:
            self.key += ("same", known[0])
            return
        if len(self.key) > MOST_KEY or (kind in _CONTAINERS and len(value) > MOST_ITEMS):
            raise NotNow
        self.seen[id(value)] = len(self.seen), value  # kept, so that nothing else gets its identity
        self.compound(value, kind)

    def compound(self, value: Any, kind: Any) -> None:
        """A value made of others."""
        if kind is range:
            self.key += (kind, value.start, value.stop, value.step)
        elif kind is tuple or kind is list or kind is torch.Size:
            self.has_lists |= kind is list
            self.key += (kind, len(value))
            for v in value:
                self.add(v)
        elif kind is slice:
            self.key.append(kind)
            for v in (value.start, value.stop, value.step):
                self.add(v)
        elif kind is dict:
            self.has_lists = True
            self.key += (kind, len(value), *value)
            if not all([type(k) is str for k in value]):
                raise Impure
            for v in value.values():
                self.add(v)
        elif kind is types.FunctionType:
            self.function(value)
        elif kind is functools.partial:
            self.key.append(kind)
            self.add(value.func)
            self.add(value.args)
            self.add(value.keywords)
        elif kind is Asked:
            pass  # its settings are in the closure too
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type)):
            if value not in PURE and not (isinstance(value, type) and issubclass(value, Exception) and value.__module__ == "builtins"):
                raise Impure(value)
            self.key.append(value)
        elif isinstance(value, tuple) and only_named(kind):
            self.key += (kind, len(value))
            for v in value:
                self.add(v)
        else:
            raise Impure(kind)

    def tensor(self, x: Tensor) -> None:
        """A tensor counts by its layout, never by its numbers."""
        if (
            x.requires_grad
            or x.layout is not torch.strided
            or x.is_nested
            or not x.is_cpu
            or x.dtype.is_complex
            or x.is_neg()
            or x.is_inference()
            or x._is_zerotensor()
            or x.numel() > MOST_NUMBERS
            or not ATTRIBUTES.isdisjoint(x.__dict__)
        ):
            raise NotNow
        self.key += (type(x), x.shape, x.stride(), x.dtype)
        self.leaves.append(x)

    def function(self, f: types.FunctionType) -> None:
        """A function of Python's, by its code and all that it takes from outside."""
        code, key = f.__code__, self.key
        here = id(code)
        if f in PURE or f in OWN_FUNCTIONS:
            key += (f, here)
            return
        if len(self.seen) >= MOST_FUNCTIONS or not ATTRIBUTES.isdisjoint(f.__dict__):
            raise Impure
        own = here in OWN_CODE
        paths = None if own else reading_of(code)
        key.append(here if paths is None else paths)  # which keeps the code: nothing else gets its identity
        cells = f.__closure__ or ()
        if paths is None:
            for cell in cells:
                self.add(cell.cell_contents)
        else:
            self.changes_lists |= paths.changes_lists
            named = dict(zip(code.co_freevars, cells, strict=True))
            for is_global, name, chain in paths.paths:
                self.add(followed(f, named, is_global, name, chain))
            if f.__defaults__ is not None:
                self.add(f.__defaults__)
            if f.__kwdefaults__ is not None:
                self.add(f.__kwdefaults__)


def followed(f: types.FunctionType, cells: Any, is_global: bool, name: str, chain: tuple[str, ...]) -> Any:
    """What a name stands for, with its attributes: of modules and objects as they are now, of tensors and numbers by name."""
    rest = 0
    try:
        if not is_global:
            value = cells[name].cell_contents
        elif name in f.__globals__:
            value = f.__globals__[name]
        else:
            value = f.__builtins__[name]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        while rest < len(chain) and type(value) not in _VALUES:
            value = attribute_of(value, chain[rest])
            rest += 1
    except (AttributeError, KeyError, ValueError):
        raise NotNow from None  # the function itself says what is missing
    if not ATTRIBUTES.issuperset(chain[rest:]) or (type(value) is list and not CHANGING.isdisjoint(chain[rest:])):
        raise Impure(chain)
    return value


def attribute_of(value: Any, name: str) -> Any:
    """What is stored under a name in a module, a class or an object; `Impure` where code of the object's own would say."""
    kind: Any = type(value)
    if kind is types.ModuleType:
        return vars(value)[name]
    if kind is not type and (isinstance(value, (type, types.ModuleType)) or kind.__getattribute__ is not object.__getattribute__):
        raise Impure(kind)
    bases: Any = (value if kind is type else kind).__mro__
    for base in bases:
        if name in vars(base):
            found = vars(base)[name]
            break
    else:
        found = MISSING
    if kind is type:
        if found is MISSING:
            raise AttributeError(name)
        if type(found) is staticmethod:
            return found.__func__
        if hasattr(type(found), "__get__") and type(found) is not types.FunctionType:
            raise Impure(name)
        return found
    if type(found) is types.MemberDescriptorType:
        return found.__get__(value, kind)
    if hasattr(type(found), "__set__"):
        raise Impure(name)
    own = getattr(value, "__dict__", {})
    if name in own:
        return own[name]
    if found is not MISSING:
        if hasattr(type(found), "__get__"):
            raise Impure(name)  # a method
        return found
    if isinstance(value, torch.nn.Module) and getattr(kind, "__getattr__", None) is torch.nn.Module.__getattr__:
        for store in ("_parameters", "_buffers", "_modules"):
            if name in own[store]:
                return own[store][name]
    raise Impure(name) if hasattr(kind, "__getattr__") else AttributeError(name)


NAMED: dict[type, bool] = {}
_OF_CLASSES = {"__annotations__", "__orig_bases__", "__annotate_func__", "__static_attributes__", "__firstlineno__"}
_OF_NAMED = _OF_CLASSES.union(vars(collections.namedtuple("_Named", "")))


def only_named(kind: type) -> bool:
    """Whether a class of tuples has names for its items and nothing else of its own."""
    if kind not in NAMED:
        fields = getattr(kind, "_fields", None)
        NAMED[kind] = fields is not None and all(
            name in _OF_NAMED or (name in fields and type(what).__name__ == "_tuplegetter")
            for base in kind.__mro__ if base not in (tuple, object)
            for name, what in vars(base).items()
        )  # fmt: skip
    return NAMED[kind]
