"""A recording written as a Python function.

def plan(leaves, values, levels):
[a0] = leaves
exclude(PYTHON, True)
try:
b1 = k5(a0, (1,))
finally:
exclude(PYTHON, False)
b2 = make(*k6)
b2._payload = b1
b2._level = levels[0]
return b2
"""

from __future__ import annotations

import keyword
import types
from typing import Any

import torch

from ..batch.level import Batched
from ..core.torch_private import (
    PYTHON_KEY,
    NoFunction,
    api_functions,
    make_wrapper,
    no_modes,
    set_key_excluded,
    tree_leaves,
)
from ..core.traced import Traced
from .record import Recorder, Source, Unplanned, level_of, parts_of

Tensor = torch.Tensor
C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)


class Writer:
    """The source of a plan under construction."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.lines: list[str] = []
        self.space: dict[str, Any] = {
            "exclude": set_key_excluded, "PYTHON": PYTHON_KEY, "make": make_wrapper, "look": look, "Batched": Batched,
        }  # fmt: skip
        self.count = 0

    def constant(self, value: Any) -> str:
        """A name for a value that the plan keeps."""
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def fresh(self) -> str:
        """A new variable."""
        self.count += 1
        return f"b{self.count}"

    def argument(self, a: Any) -> str:
        """An argument of an operator as source."""
        if isinstance(a, Tensor):
            return self.source.name(a)
        if isinstance(a, (list, tuple)) and any(isinstance(x, Tensor) for x in a):
            return f"[{', '.join(self.argument(x) for x in a)}]"
        if a is None or type(a) in (bool, int):
            return repr(a)
        if isinstance(a, (torch.Generator, torch.SymInt)):
            raise Unplanned
        return self.constant(tuple(a) if isinstance(a, list) else a)

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """One operator on payloads."""
        words = [self.argument(a) for a in args] + [f"{k}={self.argument(v)}" for k, v in kwargs.items()]
        if any(keyword.iskeyword(k) for k in kwargs):
            raise Unplanned
        call = f"{self.constant(direct(func, args, kwargs))}({', '.join(words)})"
        if isinstance(out, Tensor):
            name = self.fresh()
            self.source.names[id(out)] = name
            self.lines.append(f"{name} = {call}")
            return
        names = []
        for o in out:
            names.append(self.fresh())
            self.source.names[id(o)] = names[-1]
        self.lines.append(f"[{', '.join(names)}] = {call}")

    def result(self, out: Any) -> str:
        """What the plan returns, as source."""
        for k, v in enumerate(self.source.values):
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
                same = next((k for k, v in enumerate(self.source.values) if v is p), None)
                names.append(f"values[{same}]" if same is not None else self.value(p))
            else:
                if p.dtype.is_complex or p.is_neg() or p.layout is not torch.strided:
                    raise Unplanned
                names.append(self.source.name(p))
        made = self.fresh()
        found = None if x._cell is None else self.source.base_of(x)
        if found is not None:
            base, steps = found
            third = repr(x._mapped) if type(x) is Batched else names[1]
            self.lines.append(
                f"{made} = look(levels[{place}], values[{base}], {self.constant(steps)}, {names[0]}, {third})"
            )
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
        self.lines.append(f"{made}._level = levels[{place}]")
        return made


def direct(func: Any, args: Any, kwargs: Any) -> Any:
    """The cheapest way to call an operator with such arguments: a function of the Python API that comes to just that, if any.

    Those parse their arguments in less time than an operator called by its schema takes.
    """
    name = func._schema.name.split("::")[1]
    for place in (api_functions, Tensor):
        candidate = getattr(place, name, None)
        if isinstance(candidate, C_FUNCTIONS):
            probe = Recorder()
            try:
                with no_modes(), probe, torch.no_grad():
                    candidate(*args, **kwargs)
            except (TypeError, RuntimeError):
                continue
            if len(probe.calls) == 1 and probe.calls[0][0] is func and agree(probe.calls[0][1:3], (args, kwargs)):
                return candidate
    return func._op


def agree(a: Any, b: Any) -> bool:
    """Whether arguments are the same, tensors by identity."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(agree(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def written(calls: list[Any], out: Any, leaves: list[Tensor], values: list[Any]) -> Any:
    """A recording as a function of the tensors, the values and the levels of a call."""
    if not isinstance(out, (Traced, tuple, list)):
        raise Unplanned
    writer = Writer(Source(leaves, values))
    for func, args, kwargs, made in calls:
        writer.operator(func, args, kwargs, made)
    operators, writer.lines = writer.lines, []
    result = writer.result(out)
    head = f"    [{', '.join(f'a{k}' for k in range(len(leaves)))}] = leaves\n"
    body = (
        "    exclude(PYTHON, True)\n    try:\n" + "".join(f"        {line}\n" for line in operators)
        + "    finally:\n        exclude(PYTHON, False)\n" if operators else ""
    )  # fmt: skip
    text = f"def plan(leaves, values, levels):\n{head}{body}" + "".join(f"    {line}\n" for line in writer.lines)
    exec(text + f"    return {result}\n", writer.space)
    plan = writer.space["plan"]
    plan.largest = max((o.numel() for _, _, _, made in calls for o in tree_leaves(made)), default=0)
    return plan


def look(level: Any, base: Any, steps: tuple[Any, ...], first: Tensor, second: Any) -> Any:
    """A view of `base` by several view operators."""
    made = level.wrap_view(base, steps[-1], first, second)
    if len(steps) > 1:
        path = base._path
        for step in steps:
            path = (path, step)
        made._path = path
    return made
