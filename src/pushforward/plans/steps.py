"""Lists of operators on plain tensors: how they are recorded, shortened and written down as source."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..core.torch_private import TorchDispatchMode
from .record import BAD_TAGS, Ref, Unrecorded, places_only
from .write import SMALL, direct

Tensor = torch.Tensor
LONGEST = 4096  # operators in a recording
ROOM = 1 << 18  # bytes of constants that a program may keep
UNREPEATABLE = frozenset({"_local_scalar_dense", "_efficientzerotensor", "set_", "resize_", "as_strided_"})


def keeps_statistics(name: str, args: Any) -> bool:
    """Whether an operator writes the statistics of a batch, which its schema does not say."""
    return "batch_norm" in name and any(a is True for a in args) and "backward" not in name


class Multiple:
    """A size in a recording of `lanes` lanes: so many times their number, which is `n` in what is written."""

    __slots__ = ("factor", "lanes")

    def __init__(self, factor: int, lanes: int) -> None:
        self.factor, self.lanes = factor, lanes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multiple) and self.factor == other.factor

    def __hash__(self) -> int:
        return hash(self.factor)

    def __str__(self) -> str:
        return "n" if self.factor == 1 else f"{self.factor} * n"


def concrete(a: Any) -> Any:
    """An argument as it was in the recording."""
    if isinstance(a, Multiple):
        return a.factor * a.lanes
    return [concrete(x) for x in a] if isinstance(a, list) else a


def sized(a: Any) -> bool:
    """Whether an argument depends on the number of lanes."""
    return isinstance(a, Multiple) or (isinstance(a, list) and any(sized(x) for x in a))


class Step:
    """One operator: its arguments with references in place of tensors, and the names of its results.

    Or a question about a tensor, with its `answer`.
    """

    __slots__ = ("answer", "args", "call", "func", "kwargs", "made")

    def __init__(self, func: Any, args: Any, kwargs: Any, made: list[str | None], answer: bool | None = None) -> None:
        self.func, self.args, self.kwargs, self.made, self.answer = func, args, kwargs, made, answer
        self.call: Any = None  # the cheapest way to call the operator, once that is known

    def changed(self, args: Any, kwargs: Any) -> Step:
        """The step with other arguments."""
        return Step(self.func, args, kwargs, self.made, self.answer)

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
            or keeps_statistics(name, args)
            or (any(tag in func.tags for tag in BAD_TAGS) and not places_only(func, given))
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
        if isinstance(a, Multiple):
            return str(a)
        if isinstance(a, list) and (references(a) or sized(a)):
            return f"[{', '.join(map(argument, a))}]"
        if a is None or type(a) in (bool, int):
            return repr(a)
        return constant(tuple(a) if isinstance(a, list) else a)

    def constant(value: Any) -> str:
        name = f"c{len(space)}"
        space[name] = value
        return name

    words = [argument(a) for a in step.args] + [f"{k}={argument(v)}" for k, v in step.kwargs.items()]
    call = step.func._op if largest > SMALL else step.call
    if call is None:
        kwargs = {k: concrete(v) for k, v in step.kwargs.items()}
        call = step.call = direct(step.func, concrete(step.args), kwargs, largest)
    names = ["_" if made is None else made for made in step.made]
    returns = step.func._schema.returns
    alone = len(returns) == 1 and not isinstance(returns[0].type, torch.ListType)  # not a list of one
    if not returns:
        return f"{constant(call)}({', '.join(words)})"
    target = names[0] if alone else f"[{', '.join(names)}]"
    return f"{target} = {constant(call)}({', '.join(words)})"
