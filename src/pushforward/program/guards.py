"""The code in front of a compiled program: does it fit this call, and with what inputs?

A guard is one generated Python function: it takes the arguments apart, reads captured tensors from where the user's
function keeps them, checks Python values by identity, and leaves the check of all tensors to one compiled call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.level import is_grad_enabled
from .program import Program
from .torch_private import global_state_guard, mode_count, size_check, tensor_guards

Tensor = torch.Tensor
MISS = object()  # what an entry returns where it does not fit
ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, NameError)


class Writer:
    """Generated code and the objects it speaks of."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"MISS": MISS, "ERRORS": ERRORS, "Tensor": Tensor}
        self.count = 0

    def name(self, value: Any, prefix: str = "k") -> str:
        self.count += 1
        name = f"{prefix}{self.count}"
        self.scope[name] = value
        return name

    def local(self, prefix: str = "a") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def add(self, line: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + line)

    def require(self, condition: str) -> None:
        self.add(f"if not ({condition}): return MISS", 2)


def take_apart(w: Writer, value: Any, expression: str, found: list[str]) -> None:
    """Code that checks the structure of `value` and names its leaves, in the order of pytrees."""
    kind = type(value)
    if isinstance(value, Tensor):
        found.append(expression)
        return
    if kind in (list, tuple):
        w.require(f"type({expression}) is {kind.__name__} and len({expression}) == {len(value)}")
        if value:
            names = [w.local() for _ in value]
            w.add(f"{', '.join(names)}, = {expression}", 2)
            for name, child in zip(names, value, strict=True):
                take_apart(w, child, name, found)
        return
    if kind is dict and all(isinstance(k, (str, int)) for k in value):
        w.require(f"type({expression}) is dict and tuple({expression}) == {tuple(value)!r}")
        for key, child in value.items():
            name = w.local()
            w.add(f"{name} = {expression}[{key!r}]", 2)
            take_apart(w, child, name, found)
        return
    from ..core import tree

    leaves, spec = tree.flat(value)
    if len(leaves) == 1 and leaves[0] is value:
        found.append(expression)
        check_leaf(w, value, expression)
        return
    flat, its = w.local(), w.local()
    w.add(f"{flat}, {its} = {w.name(tree.flat)}({expression})", 2)
    w.require(f"{its} == {w.name(spec)}")
    for k, leaf in enumerate(leaves):
        found.append(f"{flat}[{k}]")
        if not isinstance(leaf, Tensor):
            check_leaf(w, leaf, f"{flat}[{k}]")


def check_leaf(w: Writer, value: Any, expression: str) -> None:
    """A Python leaf has the same value, and the same type (1 and True are different programs)."""
    if value is None or isinstance(value, bool):
        w.require(f"{expression} is {value!r}")
    elif isinstance(value, (int, float, complex, str, bytes)):
        held = w.name(value)
        w.require(f"{expression} is {held} or (type({expression}) is {w.name(type(value))} and {expression} == {held})")
    else:
        w.require(f"{expression} is {w.name(value)}")


def guard(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any, run: Callable[..., Any], holds: Any
) -> Any:
    """The entry of a program: `entry(args, kwargs)` returns its result, or MISS."""
    w = Writer()
    w.lines.append("def entry(args, kwargs):")
    w.add("try:")
    if kwargs:
        w.require(f"tuple(kwargs) == {tuple(kwargs)!r}")
    else:
        w.require("not kwargs")
    w.require(f"len(args) == {len(args)}")
    leaves: list[str] = []
    if args:
        names = [w.local() for _ in args]
        w.add(f"{', '.join(names)}, = args", 2)
        for name, value in zip(names, args, strict=True):
            take_apart(w, value, name, leaves)
    for key, value in kwargs.items():
        name = w.local()
        w.add(f"{name} = kwargs[{key!r}]", 2)
        take_apart(w, value, name, leaves)
    homes = program.homes
    w.scope.update(homes.names)
    for condition in homes.conditions:
        w.require(condition)
    flat = [leaves[k] for k in program.places]
    given = given_tensors(program, args, kwargs)
    inputs, examples = [], []
    for expression, example in zip(flat, given, strict=True):
        inputs.append(local_for(w, expression))
        examples.append(example)
    for c in program.captured:
        if c.homes:
            inputs.append(local_for(w, c.homes[0].expression))
            for other in c.homes[1:]:
                w.require(f"{other.expression} is {inputs[-1]}")
        else:
            inputs.append(local_for(w, w.name(c.example)))
        examples.append(c.example)
    state, modes = w.name(global_state_guard().check), w.name(mode_count)
    conditions = [f"{state}()", f"{modes}() == 0"]
    conditions += tensor_conditions(w, inputs, examples, dynamic)
    w.add(f"if not ({' and '.join(conditions)}): return MISS", 2)
    for line in size_conditions(w, program, inputs, dynamic):
        w.require(line)
    w.add("except ERRORS: return MISS  # a place that is gone, or an argument of another kind")
    listed = f"[{', '.join(inputs)}]"
    if holds is not None:
        w.add(f"if not {w.name(holds)}({listed}): return MISS")
    result(w, program, f"{w.name(run)}({listed})")
    exec(compile("\n".join(w.lines), f"<pushforward guard of {program.name}>", "exec"), w.scope)
    entry = w.scope["entry"]
    entry.code = "\n".join(w.lines)
    return entry


def local_for(w: Writer, expression: str) -> str:
    """A local variable for an expression."""
    if expression.isidentifier():
        return expression
    name = w.local("x")
    w.add(f"{name} = {expression}", 2)
    return name


def given_tensors(program: Program, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors of a call, in the order of the program's inputs."""
    from ..core import tree

    leaves, _ = tree.flat((args, kwargs))
    return [leaves[k] for k in program.places]


def tensor_conditions(w: Writer, inputs: list[str], examples: list[Tensor], dynamic: Any) -> list[str]:
    """One compiled check of all tensors; those given twice are checked once, and for being the same."""
    own: list[int] = []
    conditions: list[str] = []
    for k, x in enumerate(examples):
        twin = next((j for j in own if examples[j] is x), None)
        if twin is None:
            own.append(k)
        else:
            conditions.append(f"{inputs[k]} is {inputs[twin]}")
    if not own:
        return conditions
    tensors = [examples[k] for k in own]
    sizes = strides = None
    if dynamic is not None:
        open_dims = [dynamic[k] if k < len(dynamic) else () for k in own]
        sizes = [
            [None if d in dims else n for d, n in enumerate(x.shape)]
            for x, dims in zip(tensors, open_dims, strict=True)
        ]
        strides = [
            [None if any(o > d for o in dims) else s for d, s in enumerate(x.stride())]
            for x, dims in zip(tensors, open_dims, strict=True)
        ]
        conditions += [f"{inputs[k]}.is_contiguous()" for k, dims in zip(own, open_dims, strict=True) if dims]
    check = w.name(tensor_guards(tensors, sizes, strides).check)
    return [*conditions, f"{check}({', '.join(inputs[k] for k in own)})"]


def size_conditions(w: Writer, program: Program, inputs: list[str], dynamic: Any) -> list[str]:
    """For symbolic sizes: what the program was recorded under (no dimension became 1, two stayed equal, …)."""
    if dynamic is None:
        return []
    check = size_check(program.mode, program.examples)
    if check is None:
        return []
    pairs = ", ".join(f"'t{k}': {name}" for k, name in enumerate(inputs))
    return [f"{w.name(check)}({{{pairs}}})"]


def result(w: Writer, program: Program, call: str) -> None:
    """Code that puts the flat results into the structure that the function returns."""
    from ..core import tree

    spec, leaves, places = program.out_spec, program.out_leaves, program.out_places
    whole = tree.unflatten(list(range(len(leaves))), spec)
    if whole == 0 and type(whole) is int and places == [0]:
        w.add(f"return {call}[0]")
        return
    w.add(f"outs = {call}")
    expression = built(w, whole, {leaf: k for k, leaf in enumerate(places)}, leaves)
    if expression is not None:
        w.add(f"return {expression}")
        return
    w.add(f"return {w.name(program.assembled)}(outs)")


def built(w: Writer, tree_of_indices: Any, order: dict[int, int], leaves: list[Any]) -> str | None:
    """An expression that rebuilds a structure of lists, tuples and dicts; None for other kinds."""
    kind = type(tree_of_indices)
    if kind is int:
        return f"outs[{order[tree_of_indices]}]" if tree_of_indices in order else w.name(leaves[tree_of_indices])
    if tree_of_indices is None:
        return "None"
    if kind in (list, tuple):
        parts = [built(w, v, order, leaves) for v in tree_of_indices]
        if any(p is None for p in parts):
            return None
        inner = "".join(f"{p}, " for p in parts)
        return f"[{inner}]" if kind is list else f"({inner})"
    if kind is dict and all(isinstance(k, (str, int)) for k in tree_of_indices):
        parts = [(k, built(w, v, order, leaves)) for k, v in tree_of_indices.items()]
        if any(p is None for _, p in parts):
            return None
        return "{" + ", ".join(f"{k!r}: {p}" for k, p in parts) + "}"
    return None


__all__ = ["MISS", "guard", "is_grad_enabled"]
