"""A recording written as a Python function.

def plan(leaves, values, levels):
[a0] = leaves
guard = NoDispatch()
try:
b1 = k5(a0, (1,))
finally:
del guard
b2 = make(*k6)
b2._payload = b1
b2._level = levels[0]
return b2
"""

from __future__ import annotations

import keyword
import math
import re
import sys
import types
from typing import Any

import torch

from ..batch.level import Batched
from ..core.cell import Cell
from ..core.level import THREAD
from ..core.opaque import made_opaque
from ..core.torch_private import (
    BelowViews,
    NoDispatch,
    NoFunction,
    api_functions,
    make_wrapper,
    no_modes,
)
from ..core.traced import Traced
from ..core.warned import kept_back
from .describe import form_of
from .record import Names, Recorder, Ref, Unplanned, Views, level_of, parts_of

Tensor = torch.Tensor
STRIDED = torch.strided
SMALL = 1 << 12  # numbers, on which any operator takes less time and memory than a recording
COMPILER = "torch._dynamo"
_VARIABLE = re.compile(r"\bb\d+\b")
C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)


class Writer:
    """The source of a plan under construction."""

    def __init__(self, names: Names, values: list[Any], largest: int) -> None:
        self.names = names
        self.largest = largest  # elements of a value
        self.values = values
        self.views = Views(values)
        self.lines: list[str] = []
        self.space: dict[str, Any] = {
            "NoDispatch": NoDispatch,
            "make": make_wrapper,
            "look": look,
            "look_known": look_known,
        }
        self.count = 0

    def constant(self, value: Any) -> str:
        """A name for a value that the plan keeps."""
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def fresh(self) -> str:
        """A new variable for a value."""
        self.count += 1
        return f"c{self.count}"

    def argument(self, a: Any) -> str:
        """An argument of an operator as source."""
        if isinstance(a, Ref):
            return a.name
        if isinstance(a, list) and any(isinstance(x, Ref) for x in a):
            return f"[{', '.join(self.argument(x) for x in a)}]"
        if a is None or type(a) in (bool, int):
            return repr(a)
        if isinstance(a, (torch.Generator, torch.SymInt)):
            raise Unplanned
        return self.constant(tuple(a) if isinstance(a, list) else a)

    def operator(self, func: Any, args: list[Any], kwargs: dict[str, Any], made: Any) -> None:
        """One operator on payloads."""
        if any(keyword.iskeyword(k) for k in kwargs):
            raise Unplanned
        words = [self.argument(a) for a in args] + [f"{k}={self.argument(v)}" for k, v in kwargs.items()]
        target = made if isinstance(made, str) else f"[{', '.join(made)}]"
        self.lines.append(f"{target} = {self.constant(direct(func, args, kwargs, self.largest))}({', '.join(words)})")

    def result(self, out: Any) -> str:
        """What the plan returns, as source."""
        for k, v in enumerate(self.values):
            if out is v:
                return f"values[{k}]"
        if isinstance(out, Traced):
            return self.value(out)
        if isinstance(out, (tuple, list)):
            kind = type(out)
            listed = f"[{', '.join(self.result(o) for o in out)}]"
            return listed if kind is list else f"{'tuple' if kind is tuple else self.constant(kind)}({listed})"
        if out is None:
            return "None"
        raise Unplanned

    def value(self, x: Any) -> str:
        """A traced value over what was computed."""
        place = level_of(x)
        names = []
        for p in parts_of(x):
            if p is None:
                names.append("None")
            elif isinstance(p, Traced):
                same = next((k for k, v in enumerate(self.values) if v is p), None)
                names.append(f"values[{same}]" if same is not None else self.value(p))
            else:
                if p.dtype.is_complex or p.is_neg() or p.layout is not torch.strided:
                    raise Unplanned
                names.append(self.names.of(p))
        made = self.fresh()
        found = None if x._cell is None else self.views.base_of(x)
        if found is not None:
            base, steps = found
            if not steps:
                raise Unplanned
            third = repr(x._mapped) if type(x) is Batched else names[1]
            call = f"levels[{place}], values[{base}], {self.constant(steps)}, {names[0]}, {third}"
            with NoFunction():
                how = (x.shape, x.stride(), x.dtype, x.device)
            simple = type(x) is Batched and x._mapped and len(steps) == 1
            self.lines.append(
                f"{made} = look_known({call}, {self.constant(how)})" if simple else f"{made} = look({call})"
            )
            self.lines.append(f"{made}._form = {self.form(x)}")
            return made
        with NoFunction():
            if x.storage_offset() != 0:
                raise Unplanned
            how = (type(x), x.shape, x.stride(), None, None, x.dtype, torch.strided, x.device)
        self.lines.append(f"{made} = make(*{self.constant(how)})")
        if type(x) is Batched:
            self.lines.append(f"{made}._payload = {names[0]}")
            if not x._mapped:
                self.lines.append(f"{made}._mapped = False")
        else:
            self.lines.append(f"{made}._primal = {names[0]}; {made}._tangent = {names[1]}")
        self.lines.append(f"{made}._level = levels[{place}]; {made}._meta = None; {made}._form = {self.form(x)}")
        return made

    def form(self, x: Any) -> str:
        """What later calls know a result by, as source."""
        form = form_of(x, [], [], THREAD.levels)
        return "None" if form is None else self.constant(form)


def direct(func: Any, args: list[Any], kwargs: dict[str, Any], largest: int) -> Any:
    """The cheapest way to call an operator with such arguments: a function of the Python API that comes to just that, if any.

    `largest`: how many elements a result has at most. Those parse their arguments in less time than an operator called by its
    schema takes. They are tried on small tensors of zeros, or on tensors without memory: for these torch may have to import its
    compiler first, which no large operator gains back.
    """
    name = func._schema.name.split("::")[1]
    candidates = [f for f in (getattr(place, name, None) for place in (api_functions, Tensor)) if isinstance(f, C_FUNCTIONS)]
    if not candidates:
        return func._op
    small = max(largest, elements([*args, *kwargs.values()])) <= SMALL
    if not small and COMPILER not in sys.modules:
        return func._op
    with no_modes(), torch.no_grad(), kept_back():
        stand_ins: list[Tensor] = []
        tried = stood_in(args, stand_ins, small)
        named = {k: stood_in(v, stand_ins, small) for k, v in kwargs.items()}
        for candidate in candidates:
            probe = Recorder(Names(stand_ins))
            expected = (
                [probe.names.referred(a) for a in tried], {k: probe.names.referred(v) for k, v in named.items()},
            )  # fmt: skip
            try:
                with probe:
                    candidate(*tried, **named)
            except (TypeError, RuntimeError, IndexError, Warning):
                continue
            if len(probe.calls) == 1 and probe.calls[0][0] is func and agree(probe.calls[0][1:3], expected):
                return candidate
    return func._op


def elements(a: Any) -> float:
    """How many numbers the tensors among some arguments have; without end if not all are in memory of the CPU."""
    if isinstance(a, Ref):
        return math.prod(a.size) if a.device.type == "cpu" else math.inf
    return sum(elements(x) for x in a) if isinstance(a, (list, tuple)) else 0


def stood_in(a: Any, made: list[Tensor], small: bool) -> Any:
    """An argument with tensors of zeros, or without memory, in place of what was there."""
    if isinstance(a, Ref):
        x = torch.empty_strided(a.size, a.stride, dtype=a.dtype, device="cpu" if small else "meta")
        made.append(x.zero_() if small else x)
        return made[-1]
    return [stood_in(x, made, small) for x in a] if isinstance(a, list) else a


def agree(a: Any, b: Any) -> bool:
    """Whether arguments are the same, to the type of numbers."""
    if isinstance(a, Ref) or isinstance(b, Ref):
        return isinstance(a, Ref) and isinstance(b, Ref) and a.name == b.name
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(agree(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def freed(operators: list[str], later: str, variable: re.Pattern[str] = _VARIABLE) -> list[str]:
    """The lines of operators, with what none of the following lines needs let go, as the long way does."""
    kept = set(variable.findall(later))
    lines: list[str] = []
    for line in reversed(operators):
        unused = [name for name in dict.fromkeys(variable.findall(line)) if name not in kept]
        if unused:
            lines.append(f"del {', '.join(unused)}")
        kept.update(unused)
        lines.append(line)
    return lines[::-1]


def written(recorder: Recorder, out: Any, leaves: list[Tensor], values: list[Any]) -> Any:
    """A recording as a function of the tensors, the values and the levels of a call."""
    if not isinstance(out, (Traced, tuple, list)):
        raise Unplanned
    writer = Writer(recorder.names, values, recorder.largest)
    for call in recorder.calls:
        writer.operator(*call)
    operators, writer.lines = writer.lines, []
    result = writer.result(out)
    operators = freed(operators, " ".join(writer.lines))
    head = f"    [{', '.join(f'a{k}' for k in range(len(leaves)))}] = leaves\n"
    if not any(x.requires_grad for x in leaves) and any(r.alias_info for op, *_ in recorder.calls for r in op._schema.returns):
        writer.space["BelowViews"] = BelowViews  # a handler's results are no views to autograd
        operators = ["with BelowViews():", *[f"    {line}" for line in operators]]
    lines = "".join(f"        {line}\n" for line in operators)
    body = f"    guard = NoDispatch()\n    try:\n{lines}    finally:\n        del guard\n" if operators else ""
    text = f"def plan(leaves, values, levels):\n{head}{body}" + "".join(f"    {line}\n" for line in writer.lines)
    exec(text + f"    return {result}\n", writer.space)
    plan = made_opaque(writer.space["plan"])
    plan.largest, plan.hidden = recorder.largest, recorder.hidden
    return plan


def look_known(level: Any, base: Any, steps: Any, payload: Tensor, mapped: bool, how: Any) -> Any:
    """A mapped view of `base` by one view operator, of known sizes, strides, dtype and device."""
    del mapped
    cell = base._cell
    if cell is None:
        cell = base._cell = Cell(base, (base._payload, base._mapped))
    offset = payload.storage_offset() - cell.root[0].storage_offset()
    made: Any = make_wrapper(Batched, how[0], how[1], offset or None, None, how[2], STRIDED, how[3])
    made._payload, made._level, made._meta = payload, level, None
    made._cell, made._path = cell, (base._path, steps[0])
    cell.add(made)
    return made


def look(level: Any, base: Any, steps: tuple[Any, ...], first: Tensor, second: Any) -> Any:
    """A view of `base` by several view operators."""
    made = level.wrap_view(base, steps[-1], first, second)
    if len(steps) > 1:
        path = base._path
        for step in steps:
            path = (path, step)
        made._path = path
    return made
