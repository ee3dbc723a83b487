"""The derivative that `linearize` returns, as a list of operators: recorded in one walk over its graph, replayed from then on.

The graph is that of the reverse pass, differentiated by its seeds (twice transposed, so forward again). Walking it computes
again in every call what does not depend on the direction, and more: torch's formula for a convolution gives gradients that
nobody asked for. A recording shows which operators lead from the directions to the outputs. What they need besides is
computed once and kept, if it is little; all else is left out.

    def push(directions):
        [a0] = directions
        directions.clear()       # who calls holds them no longer than they are needed
        b2 = k4(a0, k5)          # a0 · cos(x)
        del a0
        return [b2]

Nothing is recorded where Python code of the user's has a say in the walk (hooks, functions with a backward of their own, checkpoints),
and nothing is believed that does not give twice the numbers for twice the direction, to the last bit.
"""

from __future__ import annotations

import math
import re
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..core import carry
from ..core.level import THREAD
from ..core.opaque import made_opaque
from ..core.torch_private import (
    TorchDispatchMode,
    autocast_on,
    function_mode_on,
    library_folder,
    mode_count,
    pop_mode,
    push_mode,
)
from ..forward import jvp
from .record import _BAD_TAGS, Ref, places_only
from .write import SMALL, direct, freed

Tensor = torch.Tensor
LONGEST = 4096  # operators in a recording
WORTH = 1 << 14  # numbers in a value from which the first walk is recorded: it takes longer than the recording
ROOM = 1 << 18  # bytes of slopes that a program may keep
MOST = 4  # recordings of one function, by layouts of directions
VARIABLE = re.compile(r"\b[ab]\d+\b")
UNREPEATABLE = frozenset({"_local_scalar_dense", "_efficientzerotensor", "set_", "resize_", "as_strided_"})
OWN_CODE = (__file__, carry.__file__, library_folder)  # what runs in a walk without the user's doing


class Unrecorded(Exception):
    """A walk that a list of operators does not stand for."""


class Step:
    """One operator: its arguments with references in place of tensors, and the names of its results."""

    __slots__ = ("args", "func", "kwargs", "made")

    def __init__(self, func: Any, args: Any, kwargs: Any, made: list[str | None]) -> None:
        self.func, self.args, self.kwargs, self.made = func, args, kwargs, made

    def results(self) -> list[str]:
        """The names of what it makes and is used."""
        return [name for name in self.made if name is not None]

    def read(self) -> list[str]:
        """The names of the tensors that it needs."""
        return [ref.name for ref in references([self.args, list(self.kwargs.values())])]


def references(a: Any) -> list[Ref]:
    """All references among some arguments."""
    if isinstance(a, Ref):
        return [a]
    return [ref for x in a for ref in references(x)] if isinstance(a, list) else []


class Recording(TorchDispatchMode):
    """The operators of a walk; tensors that were there before are constants `k…`, with a count of what is written into them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler imports it, which takes seconds

    def __init__(self, directions: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.names: dict[int, tuple[Any, str]] = {}
        self.steps: list[Step] = []
        self.constants: dict[str, Tensor] = {}
        self.versions: list[tuple[Tensor, int]] = []
        self.aliased: set[str] = set()  # results that share memory with others
        self.count = len(directions)
        self.largest = self.made = 0
        self.in_place = self.inside = False
        self.good = True
        for k, d in enumerate(directions):
            self.names.setdefault(id(d), (weakref.ref(d), f"a{k}"))

    def name(self, x: Tensor, name: str) -> str:
        """Remember which variable holds a tensor."""
        self.names[id(x)] = (weakref.ref(x), name)
        return name

    def of(self, x: Tensor) -> str:
        """The variable of a tensor."""
        ref, name = self.names.get(id(x), (None, ""))
        if ref is not None and ref() is x:
            return name
        if type(x) not in (Tensor, torch.nn.Parameter) or x.is_neg() or x.is_inference():
            raise Unrecorded
        name = f"k{len(self.constants)}"
        self.constants[name] = x.detach()  # one count of versions for both
        self.versions.append((x, x._version))
        return self.name(x, name)

    def referred(self, a: Any) -> Any:
        """An argument with references in place of its tensors."""
        if isinstance(a, Tensor):
            if a.layout is not torch.strided or a.dtype.is_complex or a.device.type != "cpu":
                raise Unrecorded
            self.largest = max(self.largest, a.numel())
            return Ref(self.of(a), a.shape, a.stride(), a.dtype, a.device)
        if isinstance(a, (list, tuple)):
            return [self.referred(x) for x in a]
        if isinstance(a, (torch.Generator, torch.SymInt)):
            raise Unrecorded
        return a

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.inside = True
        try:
            given = None
            if self.good:
                try:
                    given = self.referred(args), {k: self.referred(v) for k, v in kwargs.items()}
                except Unrecorded:
                    self.good = False
            out = func(*args, **kwargs)
            if given is not None:
                try:
                    self.keep(func, *given, out, args)
                except Unrecorded:
                    self.good = False
            return out
        finally:
            self.inside = False

    def keep(self, func: Any, args: Any, kwargs: Any, out: Any, given: Any) -> None:
        """Write down one operator."""
        name = func._schema.name.split("::")[1]
        if (
            len(self.steps) >= LONGEST
            or func.namespace != "aten"
            or name in UNREPEATABLE
            or ("batch_norm" in name and any(a is True for a in args) and "backward" not in name)
            or (any(tag in func.tags for tag in _BAD_TAGS) and not places_only(func, given))
        ):
            raise Unrecorded
        results = out if isinstance(out, (tuple, list)) else (out,)
        if not all(r is None or (isinstance(r, Tensor) and r.layout is torch.strided) for r in results):
            raise Unrecorded
        if func._schema.is_mutable:
            self.write(func, args, kwargs, results, given, name)
            return
        made: list[str | None] = []
        for r in results:
            self.made += 1
            made.append(None if r is None else self.name(r, f"b{self.made}"))
            self.largest = max(self.largest, 0 if r is None else r.numel())
        step = Step(func, args, kwargs, made)
        if any(r.alias_info is not None for r in func._schema.returns) or "alias" in name:
            self.aliased.update([*step.read(), *step.results()])
        self.steps.append(step)

    def write(self, func: Any, args: Any, kwargs: Any, results: Any, given: Any, name: str) -> None:
        """An operator that writes into a result of an earlier one; the engine's own `+=` makes a new one here."""
        target = args[0]
        writes = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
        if (
            not isinstance(target, Ref)
            or not writes[0]
            or any(writes[1:])
            or target.name[0] != "b"
            or results[0] is not given[0]
        ):
            raise Unrecorded
        if name == "add_" and target.name not in self.aliased:
            self.made += 1
            self.steps.append(Step(torch.ops.aten.add.Tensor, args, kwargs, [self.name(given[0], f"b{self.made}")]))
            return
        self.in_place = True
        self.steps.append(Step(func, args, kwargs, [target.name]))


class Pushes:
    """The walks over one graph: the gradients of `outputs`, by `seeds`, along directions."""

    def __init__(self, outputs: tuple[Tensor, ...], seeds: tuple[Tensor, ...]) -> None:
        self.outputs, self.seeds = outputs, seeds
        self.programs: dict[Any, Any] = {}  # by layouts of directions; True: met once; False: not to be recorded

    def __call__(self, directions: list[Tensor]) -> Any:
        """The outputs' tangents by a recording, or None: the engine has to walk."""
        if THREAD.levels or mode_count() or function_mode_on() or autocast_on():
            return None
        key = layouts(directions)
        program = self.programs.get(key, None) if key is not None else False
        if program is False:
            return None
        if program is None:
            if len(self.programs) >= MOST:
                return None
            self.programs[key] = True
            if not large(self.outputs):
                return None
            return self.recorded(key, directions, at_once=False)
        if program is True:
            return self.recorded(key, directions, at_once=True)
        if any([x._version != version for x, version in program.versions]):
            return None  # the engine says what is wrong
        if type(program) is Doubted:
            return self.believed(key, program, directions)
        return program(directions)

    def recorded(self, key: Any, directions: list[Tensor], *, at_once: bool) -> Any:
        """One walk, with the recording on; its program is kept if it is right, which the next call may find out."""
        if not all([bool(d.any()) for d in directions]):
            return None  # of zeros nothing can be learnt
        self.programs[key] = False
        if sys.getprofile() is not None or torch.is_anomaly_enabled():
            return None
        given, directions = directions, [d.view_as(d) for d in directions]  # what the graph has saved too is a constant
        recording = Recording(tuple(directions))
        moved = walk(self.outputs, self.seeds, directions, recording)
        if not recording.good:
            return moved
        try:
            ends = [None if m is None else recording.of(m) for m in moved]
            if not at_once and len(moved) == 1 and is_large(moved[0]):
                self.programs[key] = Doubted(recording, ends, given, fingerprint(moved[0]))
                return moved
            program = written(recording, ends)
            doubled = program([d + d for d in directions])
        except (Unrecorded, RuntimeError, IndexError):
            return moved
        with torch.no_grad():
            right = all(
                p is q
                if p is None or q is None
                else p.stride() == q.stride() and p.dtype is q.dtype and torch.equal(p, q + q)
                for p, q in zip(doubled, moved, strict=True)
            )
        if right:
            self.programs[key] = program
        return moved

    def believed(self, key: Any, doubted: Doubted, directions: list[Tensor]) -> Any:
        """The second call on large tensors: the program is tried on the first one's direction, then used."""
        if any([d._version != version for d, version in doubted.given]):
            return self.recorded(key, directions, at_once=True)
        self.programs[key] = False
        with torch.no_grad():
            try:
                program = written(doubted.recording, doubted.ends)
                (twice,) = program([d + d for d, _ in doubted.given])
            except (Unrecorded, RuntimeError, IndexError):
                return None
            if twice is None or fingerprint(twice.mul_(0.5)) != doubted.known:
                return None
            del twice
        self.programs[key] = program
        return program(directions)


class Doubted:
    """A recording of a walk over large tensors, of which the result is known by its fingerprint only: no two are in memory at once."""

    __slots__ = ("ends", "given", "known", "recording", "versions")

    def __init__(self, recording: Recording, ends: list[Any], given: list[Tensor], known: Any) -> None:
        self.recording, self.ends, self.known, self.versions = recording, ends, known, recording.versions
        self.given = [(d, d._version) for d in given]


def is_large(x: Any) -> bool:
    """Whether a result is large, and its numbers lie one after another."""
    return x is not None and x.numel() >= WORTH and x.is_contiguous()


def fingerprint(x: Tensor) -> tuple[Any, ...]:
    """The layout of a tensor and three sums over its numbers, for which no other tensor is made."""
    flat = x.detach().view(-1)
    return x.shape, x.stride(), x.dtype, *[s.item() for s in (flat.sum(), flat[::3].sum(), torch.dot(flat, flat))]


def large(outputs: Any) -> bool:
    """Whether a value of a graph has many numbers."""
    stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen = {None, *stack}
    while stack:
        node = stack.pop()
        if any(math.prod(value.shape) >= WORTH for value in node._input_metadata):
            return True
        for source, _ in node.next_functions:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return False


def layouts(directions: list[Tensor]) -> Any:
    """What a program depends on; None of what none is made for."""
    key: list[Any] = []
    for d in directions:
        if (
            type(d) is not Tensor
            or d.device.type != "cpu"
            or d.requires_grad
            or d.layout is not torch.strided
            or d.is_neg()
        ):
            return None
        key += (d.shape, d.stride(), d.dtype)
    return None if len({id(d) for d in directions}) < len(directions) else (*key, torch.is_inference_mode_enabled())


def walk(outputs: Any, seeds: Any, directions: list[Tensor], recording: Recording) -> Any:
    """A walk of the engine under a recording; not good if Python code other than the recording's ran in it."""

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and not recording.inside and not frame.f_code.co_filename.startswith(OWN_CODE):
            recording.good = False

    push_mode(recording)
    sys.setprofile(watch)
    try:
        return carry.run_backward(outputs, tuple(directions), True, False, seeds, True, accumulate_grad=False)
    finally:
        sys.setprofile(None)
        pop_mode(None)


def written(recording: Recording, ends: list[Any]) -> Callable[[list[Tensor]], list[Tensor | None]]:
    """The function of the directions that a recording stands for."""
    steps = recording.steps
    if any(end is not None and end in recording.constants for end in ends):
        raise Unrecorded
    space: dict[str, Any] = dict(recording.constants)
    if not recording.in_place:
        with torch.no_grad():
            steps = folded(needed(steps, ends), space)
    lines = [line(step, space, recording.largest) for step in steps]  # what is kept stays in `space`, and is not let go
    result = f"[{', '.join(map(str, ends))}]"
    taken = ", ".join(f"a{k}" for k in range(recording.count))
    body = "".join(f"    {text}\n" for text in freed(lines, " ".join([result, *space]), VARIABLE))
    text = f"def push(directions):\n    [{taken}] = directions\n    directions.clear()\n{body}    return {result}\n"
    exec(text, space)
    push = made_opaque(space.pop("push"))  # or its own namespace would keep it, and its tensors, until cycles are collected
    push.versions, push.text = recording.versions, text
    return push


def needed(steps: list[Step], ends: list[str | None]) -> list[Step]:
    """The steps that lead to the ends."""
    wanted = set(ends)
    kept: list[Step] = []
    for step in reversed(steps):
        if not wanted.isdisjoint(step.results()):
            kept.append(step)
            wanted.update(step.read())
    return kept[::-1]


def folded(steps: list[Step], space: dict[str, Any]) -> list[Step]:
    """The steps that are left when what does not depend on the directions is computed now, if there is room for it."""
    varying: set[str] = set()
    for step in steps:
        if any(name in varying or name[0] == "a" for name in step.read()):
            varying.update(step.results())
    used = {name for step in steps if not varying.isdisjoint(step.results()) for name in step.read()}
    values = dict(space)
    for step in steps:
        if varying.isdisjoint(step.results()):
            out = step.func(*given(step.args, values), **{k: given(v, values) for k, v in step.kwargs.items()})
            values.update(
                (name, x)
                for name, x in zip(step.made, out if isinstance(out, (tuple, list)) else (out,), strict=True)
                if name
            )
    new = [name for name in values if name in used and name not in space]
    if sum(values[name].nbytes for name in new) > ROOM:
        return steps
    space.update((name, values[name]) for name in new)
    return [step for step in steps if not varying.isdisjoint(step.results())]


def given(a: Any, values: dict[str, Any]) -> Any:
    """An argument with tensors in place of references."""
    if isinstance(a, Ref):
        return values[a.name]
    return [given(x, values) for x in a] if isinstance(a, list) else a


def line(step: Step, space: dict[str, Any], largest: int) -> str:
    """One step as source."""

    def argument(a: Any) -> str:
        if isinstance(a, Ref):
            return a.name
        if isinstance(a, list) and references(a):
            return f"[{', '.join(map(argument, a))}]"
        if a is None or type(a) in (bool, int):
            return repr(a)
        return constant(tuple(a) if isinstance(a, list) else a)

    def constant(value: Any) -> str:
        name = f"c{len(space)}"
        space[name] = value
        return name

    words = [argument(a) for a in step.args] + [f"{k}={argument(v)}" for k, v in step.kwargs.items()]
    call = step.func._op if largest > SMALL else direct(step.func, step.args, step.kwargs, largest)
    names = ["_" if made is None else made for made in step.made]
    target = names[0] if len(step.func._schema.returns) == 1 and len(names) == 1 else f"[{', '.join(names)}]"
    return f"{target} = {constant(call)}({', '.join(words)})"


jvp.PUSHES = Pushes
