"""The operators of a whole call, recorded below all levels, and the function that they are written as."""

from __future__ import annotations

import re
from typing import Any

import torch

from ..batch.lanes import plainly
from ..core import tree
from ..core.level import THREAD
from ..core.opaque import made_opaque
from ..core.torch_private import BelowViews, pop_mode, push_mode, storage_reference, tree_leaves
from ..core.traced import Traced
from ..ops import kinds
from ..ops.table import entry
from .record import Unrecorded
from .steps import Recording, Step, folded, keeps_statistics, line, references
from .write import freed

Tensor = torch.Tensor
LARGEST = 1 << 17  # numbers in a value: operators take longer than the way to them
VARIABLE = re.compile(r"\b[ab]\d+\b")
_FACTORIES = "zeros ones full scalar_tensor arange new_zeros new_ones zeros_like ones_like full_like"
FACTORIES = frozenset(_FACTORIES.split())
HARMLESS = (
    kinds.Elementwise,
    kinds.ElementwiseLinear,
    kinds.ElementwiseBilinear,
    kinds.Reduction,
    kinds.AlongDim,
    kinds.Bilinear,
)
LIKE = {
    torch.ops.aten.ones_like.default: torch.ops.aten.ones.default,
    torch.ops.aten.zeros_like.default: torch.ops.aten.zeros.default,
}
LIFT = torch.ops.aten.lift_fresh.default
# Torch's own derivatives of these (`FunctionsManual.cpp`) look at the numbers, and take other formulas while a mode is on.
BY_MODE = frozenset({"prod", "cumprod", "max.default", "min.default", "median.default", "nanmedian.default"})
PASSING = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


ITEM = torch.ops.aten._local_scalar_dense.default


class Disagreed(Unrecorded):
    """Lanes that were to go one way go two."""

    def __init__(self, groups: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.groups = groups


class CallRecording(Recording):
    """The operators of a whole call; every tensor is one of its own or one of those given.

    `lanes`: how many there are, where lanes that disagree are told apart; else a question about lanes ends the recording,
    and `asked_lanes` says so.
    """

    asked_lanes = False
    asked = 0

    def __init__(self, leaves: list[Tensor], lanes: int | None = None) -> None:
        super().__init__(tuple(leaves))
        self.lanes = lanes
        self.layouts = {f"a{k}": (x.shape, x.stride()) for k, x in enumerate(leaves)}
        self.inputs = len(leaves)
        self.storages: list[Any] = []  # references that keep no numbers: no other tensor gets the identity of a storage
        self.given = {x.untyped_storage()._cdata for x in leaves}
        self.places: dict[Any, str] = {}
        for k, x in enumerate(leaves):
            self.places.setdefault(place(x), f"a{k}")
            self.storages.append(storage_reference(x.untyped_storage()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Traced)]
        if values:  # of a level whose mode is off: its operators on payloads come here again
            push_mode(self)
            try:
                return type(values[0]).__torch_dispatch__(func, types, args, kwargs or {})
            finally:
                pop_mode(None)
        if func is ITEM and args[0].dtype is torch.bool and self.good:
            return self.answered(None, args[0])
        writes = func._schema.is_mutable and self.reaches_given(func, args, kwargs or {})
        if writes or keeps_statistics(func._schema.name, args):
            self.good = False
            raise Unrecorded  # before it is done: it will be done by the run that follows
        if func is LIFT:
            self.constant(args[0])
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if not self.good or (derived_by_mode(func) and args[0].requires_grad):
            self.good = False
            raise Unrecorded  # no need to go on: it runs again as it is
        if func is LIFT:
            self.steps[-1].func = torch.ops.aten.clone.default  # each call has its own
        return out

    def constant(self, x: Tensor) -> None:
        """A tensor made of Python numbers, which the key knows."""
        ref, _ = self.names.get(id(x), (None, ""))
        if ref is None or ref() is not x:
            name = f"k{len(self.constants)}"
            self.constants[name] = x.detach().clone()
            self.name(x, name)
            self.places[place(x)] = name
            self.storages.append(storage_reference(x.untyped_storage()))

    def of(self, x: Tensor) -> str:
        """The variable of a tensor: autograd gives back what it saved as another object over the same memory."""
        ref, name = self.names.get(id(x), (None, ""))
        if ref is not None and ref() is x:
            return name
        found = self.places.get(place(x)) if type(x) in (Tensor, torch.nn.Parameter) and not x.is_neg() else None
        if found is None:
            raise Unrecorded
        self.aliased.add(found)
        return self.name(x, found)

    def keep(self, func: Any, args: Any, kwargs: Any, out: Any, given: Any) -> None:
        """Write down one operator, unless it gave back what it was given."""
        if (
            func is not LIFT
            and not func._schema.is_mutable
            and isinstance(out, Tensor)
            and any([out is a for a in given])
        ):
            return
        before = len(self.steps)
        super().keep(func, args, kwargs, out, given)
        if len(self.steps) == before:
            raise Unrecorded
        made = [r for r in (out if isinstance(out, (tuple, list)) else (out,)) if r is not None]
        for name, r in zip(self.steps[-1].results(), made, strict=True):
            self.places[place(r)] = name
            self.layouts[name] = r.shape, r.stride()
            self.storages.append(storage_reference(r.untyped_storage()))
        if self.largest > LARGEST:
            raise Unrecorded

    def answered(self, level: Any, about: Tensor) -> bool:
        """The answer to a question about a tensor of truth values, one for each lane of `level` if there is one."""
        good, self.good = self.good, False
        ref = self.referred(about)
        if level is not None and (level is not THREAD.levels[0] or about.numel() != self.lanes):
            self.asked_lanes = level is THREAD.levels[0] and self.lanes is None
            raise Unrecorded
        with plainly():
            numbers = about.view(-1)
            yes = numbers.nonzero().view(-1)
            answer = yes.numel() > 0
            if 0 < yes.numel() < numbers.numel():
                raise Disagreed((yes, numbers.logical_not().nonzero().view(-1)))
        self.good = good
        self.asked += 1
        self.steps.append(Step(None, [ref], {"lanes": level is not None}, [], answer))
        return answer

    def reaches_given(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether an operator writes into memory that is not the call's own."""
        for k, a in enumerate(func._schema.arguments):
            if a.alias_info is not None and a.alias_info.is_write:
                target = args[k] if k < len(args) else kwargs.get(a.name)
                for x in target if isinstance(target, (list, tuple)) else (target,):
                    if isinstance(x, Tensor) and x.untyped_storage()._cdata in self.given:
                        return True
        return False


def derived_by_mode(func: Any) -> bool:
    """Whether an operator's derivative is another one while it is recorded."""
    name = func._schema.name.split("::")[1]
    return name in BY_MODE or f"{name}.{func._overloadname}" in BY_MODE


def place(x: Tensor) -> Any:
    """Which numbers of which storage a tensor is."""
    return x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride(), x.dtype


class Replayed:
    """A call as a list of operators; `doubts`: how often it must still give the numbers of a call; `used`: whether it is.

    `views`: whether autograd has to know that results are views of what was given, or of each other.
    """

    __slots__ = ("doubts", "many", "run", "spec", "used", "views")

    def __init__(self, run: Any, spec: Any, many: Any, views: bool) -> None:
        self.run, self.spec, self.many, self.views, self.doubts, self.used = run, spec, many, views, 2, False

    def __call__(self, leaves: list[Tensor]) -> Any:
        """The result for other tensors."""
        self.used = True
        if self.views:
            made = self.run(leaves)
        else:
            with BelowViews():
                made = self.run(leaves)
        if self.many is None:
            return made[0]
        return tuple(made) if self.many is tuple else tree.unflatten(made, self.spec)


def ends_of(recording: CallRecording, outs: list[Any]) -> list[str | None]:
    """The variables that a call returns; None for what is no tensor."""
    ends: list[str | None] = []
    for o in outs:
        if isinstance(o, Tensor):
            if type(o) is not Tensor or o.requires_grad:
                raise Unrecorded
            ref, name = recording.names.get(id(o), (None, ""))
            if ref is None or ref() is not o:
                name = recording.of(o)
                if name[0] == "a":
                    raise Unrecorded
            ends.append(name)
        elif o is None or type(o) in (bool, int, float, str):
            ends.append(None)
        else:
            raise Unrecorded
    return ends


def shared(recording: CallRecording, outs: list[Any]) -> bool:
    """Whether results lie in memory that was given, or in each other's."""
    seen = set(recording.given)
    for o in outs:
        if isinstance(o, Tensor):
            storage = o.untyped_storage()._cdata
            if storage in seen:
                return True
            seen.add(storage)
    return False


def container(out: Any) -> Any:
    """How the tensors that a call returns are handed over: alone (None), in a tuple, or as a pytree (list)."""
    return (
        None if type(out) is Tensor else tuple if type(out) is tuple and all(type(o) is Tensor for o in out) else list
    )


def written(recording: CallRecording, out: Any) -> Replayed:
    """The list of operators that a call came to, as a function of its tensors."""
    outs, spec = tree.flat(out)
    ends = ends_of(recording, outs)
    steps, space = recording.steps, dict[str, Any](recording.constants)
    names = [name for name in ends if name is not None]
    if not recording.in_place:
        steps = wanted(passed(steps), names)
        if all(name in varying(steps) for name in names) and all(step.results() for step in steps):
            with torch.no_grad():
                steps = folded(steps, space)
    lines = [line(step, space, recording.largest) for step in steps]
    space.update((f"e{k}", o) for k, (o, end) in enumerate(zip(outs, ends, strict=True)) if end is None)
    result = f"[{', '.join(end or f'e{k}' for k, end in enumerate(ends))}]"
    body = "".join(f"    {text}\n" for text in freed(lines, " ".join([result, *space]), VARIABLE))
    taken = ", ".join(f"a{k}" for k in range(recording.inputs))
    text = f"def call(tensors):\n    [{taken}] = tensors\n{body}    return {result}\n"
    exec(text, space)
    call = made_opaque(space.pop("call"))
    call.text = text
    return Replayed(call, spec, container(out), shared(recording, outs))


def passed(steps: list[Step]) -> list[Step]:
    """Steps that take the tensor itself where they took an alias of it, which autograd had asked for."""
    stands_for: dict[str, Any] = {}

    def through(a: Any) -> Any:
        if isinstance(a, list):
            return [through(x) for x in a]
        return stands_for.get(getattr(a, "name", ""), a) if isinstance(a, tuple) else a

    made = []
    for step in steps:
        args, kwargs = through(step.args), {k: through(v) for k, v in step.kwargs.items()}
        if step.func in LIKE and contiguous(args[0]) and set(kwargs) <= {"pin_memory", "dtype"}:
            of, like = kwargs.get("dtype") or args[0].dtype, args[0]
            made.append(Step(LIKE[step.func], [list(like.size)], {"dtype": of, "device": like.device}, step.made))
            continue  # it needs no numbers
        if step.func in PASSING and step.made[0] is not None:
            stands_for[step.made[0]] = args[0]
        made.append(step.changed(args, kwargs))
    return made


def contiguous(ref: Any) -> bool:
    """Whether the numbers of a tensor lie one after the other."""
    expected = 1
    for n, stride in zip(reversed(ref.size), reversed(ref.stride), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= max(n, 1)
    return True


def wanted(steps: list[Step], ends: list[str]) -> list[Step]:
    """The steps without those that nobody needs; what may raise an error is needed."""
    read = set(ends)
    kept: list[Step] = []
    for step in reversed(steps):
        if not harmless(step) or not read.isdisjoint(step.results()):
            kept.append(step)
            read.update(step.read())
    return kept[::-1]


def harmless(step: Step) -> bool:
    """Whether an operator raises nothing that depends on numbers, so that it can be left out where nobody needs its result."""
    if step.answer is not None:
        return False
    known = entry(step.func)
    if known.is_view or known.name in FACTORIES:
        return True
    floating = all(ref.dtype.is_floating_point for ref in references([step.args, list(step.kwargs.values())]))
    return floating and known.row is not None and isinstance(known.row.kind, HARMLESS)


def varying(steps: list[Step]) -> set[str]:
    """The names that depend on the tensors given, and these."""
    found: set[str] = set()
    for step in steps:
        reads = step.read()
        found.update(name for name in reads if name[0] == "a")
        if not found.isdisjoint(reads):
            found.update(step.results())
    return found
