"""Whether a function only computes, and what its result depends on besides its arguments.

Read from its bytecode: it may do arithmetic, call torch's functions and methods of tensors, loop, branch, make tuples, lists and
functions of its own, and call functions that do no more than that. Everything that it takes from outside (globals, what it
closes over, defaults) is looked up in every call and becomes a part of the key, by value; tensors become inputs. Whatever
else it does (an attribute set, an item assigned, an import, `with`, `try`, a method with an unknown name, a call of
something unknown) makes it a function that nothing is known of, and it is run each time. So does a name of its code that no
instruction read here explains: versions of Python differ in their instructions.
"""

from __future__ import annotations

import builtins
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
DEEP = 24  # functions called by functions


class Impure(Exception):
    """A function that does more than compute, or takes what a key cannot tell apart."""


class NotNow(Exception):
    """Values of which this call is not replayed: they require grad, are large, or are no plain tensors."""


_CONSTANTS = frozenset(
    {type(None), bool, int, str, bytes, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format, range}
)

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

    __slots__ = ("active", "changes_lists", "has_lists", "key", "leaves")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.leaves: list[Tensor] = []
        self.active: list[int] = []
        self.changes_lists = self.has_lists = False

    def add(self, value: Any) -> None:
        """One more value."""
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            self.tensor(value)
        elif kind in _CONSTANTS:
            self.key += (kind, value)
        elif kind is float:
            self.key += (kind, value, math.copysign(1.0, value))
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
            self.key += (kind, *value)
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
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
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
            or not x.is_cpu
            or x.dtype.is_complex
            or x.is_neg()
            or x.is_inference()
            or x._is_zerotensor()
            or x.numel() > MOST_NUMBERS
        ):
            raise NotNow
        self.key += (Tensor, x.shape, x.stride(), x.dtype)
        self.leaves.append(x)

    def function(self, f: types.FunctionType) -> None:
        """A function of Python's, by its code and all that it takes from outside."""
        code, key = f.__code__, self.key
        here = id(code)
        if f in PURE or f in OWN_FUNCTIONS:
            key += (f, here)
            return
        if here in self.active:
            key += ("again", self.active.index(here))
            return
        if len(self.active) >= DEEP:
            raise Impure
        own = here in OWN_CODE
        paths = None if own else reading_of(code)
        self.active.append(here)
        key.append(here if paths is None else paths)  # which keeps the code: nothing else gets its identity
        cells = f.__closure__ or ()
        if paths is None:
            for cell in cells:
                self.add(cell.cell_contents)
        else:
            self.changes_lists |= paths.changes_lists
            named = dict(zip(code.co_freevars, cells, strict=True))
            for is_global, name, chain in paths.paths:
                self.add(followed(f.__globals__, named, is_global, name, chain))
            if f.__defaults__ is not None:
                self.add(f.__defaults__)
            if f.__kwdefaults__ is not None:
                self.add(f.__kwdefaults__)
        self.active.pop()


def followed(space: dict[str, Any], cells: Any, is_global: bool, name: str, chain: tuple[str, ...]) -> Any:
    """What a name stands for, with its attributes: of modules and objects as they are now, of tensors and numbers by name."""
    rest = 0
    try:
        if not is_global:
            value = cells[name].cell_contents
        elif name in space:
            value = space[name]
        else:
            value = getattr(builtins, name)
        while rest < len(chain) and type(value) not in _VALUES:
            value = getattr(value, chain[rest])
            rest += 1
    except Exception:
        raise NotNow from None  # the function itself says what is missing
    if not ATTRIBUTES.issuperset(chain[rest:]) or (type(value) is list and not CHANGING.isdisjoint(chain[rest:])):
        raise Impure(chain)
    return value
