"""What the code of a function is read to do: the same on every version of Python, and never less than it does."""

from __future__ import annotations

import ast
import bisect
import colorsys
import difflib
import fractions
import heapq
import inspect
import random
import statistics
import symtable
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional

import pushforward as pf
from pushforward.plans import known, pure, whole

D = torch.float64
c = 2.0
ON: Any = None
PAIR = {"beta": 2.0}
holder = types.SimpleNamespace(data=torch.ones(3, dtype=D), T=torch.ones(3, dtype=D))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def scaled(x: torch.Tensor, by: float = 1.0, *more: float, shift: float = 0.0) -> torch.Tensor:
    return x * by + shift + sum(more)


def replayed(f: Any) -> bool:
    found = whole.CALLS.get(id(f.__code__))
    return bool(found and found[1] and any(type(p) is whole.Replayed and not p.doubts for p in found[1].values()))


# -- what is computed: each takes `c` by instructions that not all versions have ------------------------------------


def none_or(x: torch.Tensor) -> torch.Tensor:
    y = None if c is None else x * c
    if y is not None and ON is None:
        y = y + c
    return y.sum()


ASSERTED = """
def asserted(x):
    assert c and x.dim() == 1, f"{x.dim():3d} {c!r} {c:>5.1f}"
    return scaled(x, c if x.dim() else 1.0).sum()
"""
asserted: Any = None
exec(ASSERTED)  # a statement that pytest writes anew where it sees it


def by_name(x: torch.Tensor) -> torch.Tensor:
    parts = [x * c, x]
    first, *rest = parts
    named = {"shift": c, **{"by": +c}}
    return (scaled(*parts[:1], **named) + scaled(first, c, *[c, c], shift=c)).sum() + rest[0].sum()


def inside(x: torch.Tensor) -> torch.Tensor:
    k = 3.0
    scales = [k * c for k in range(1, 4)]
    table = {k: v * c for k, v in zip(range(3), scales, strict=True)}
    return torch.stack([x[j] * table[j] for j in range(3)]).sum() * k + sum(x[j] * c for j in range(2))


def captured(x: torch.Tensor) -> torch.Tensor:
    makers = [lambda y, k=k: y**k * c for k in range(1, 4)]
    late = [(lambda y: y * k + c)(x) for k in range(3)]
    return sum(make(x).sum() for make in makers) + sum(late).sum()


def made(x: torch.Tensor) -> torch.Tensor:
    total = x

    def inner(y: torch.Tensor, a: float = c, *, b: float = 1.5) -> torch.Tensor:
        return total * y * a + (y[1:] * b).sum()

    a, b = x, inner(x)
    a, b = b, a
    for _ in range(2):
        total = total + b
    del b
    return (inner(a, b=c) + inner(a, c)).sum()


def chained(x: torch.Tensor) -> torch.Tensor:
    n = len(PAIR) or 1
    ok = 0 < n <= 3 and not (n == 5 or n != 1) and "beta" in PAIR and n in (1, 2)
    while n < 3:
        n = n + 1
    return (x ** (n if ok else 7)).sum() * PAIR["beta"] * c


COMPUTE = [none_or, asserted, by_name, inside, captured, made, chained]


@pytest.mark.parametrize("f", COMPUTE, ids=lambda f: f.__name__)
def test_functions_that_compute_are_replayed_and_see_what_changes(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (True, "c", ()) in pure.Reading(f.__code__).paths
    module = sys.modules[__name__]
    for call in (pf.grad(f), lambda x: pf.vmap(f)(torch.stack([x, 2 * x])), lambda x: pf.jvp(f, (x,), (x * x,))):
        for k in range(7):
            if k == 5:
                monkeypatch.setattr(module, "c", c + 1)
            if k == 6:
                monkeypatch.setitem(PAIR, "beta", PAIR["beta"] + 3)
            x = normal(3, seed=k)
            got = call(x)
            with pf.no_replay():
                torch.testing.assert_close(got, call(x))
            assert k != 4 or replayed(f)


# -- what does more -------------------------------------------------------------------------------------------------


MORE = """
def f(x): global g; g = x; return x
def f(x): return [g := v for v in x] and (lambda: globals())()
def f(x): return x.mul(2).__class__
def f(x): return super().f(x)
def f(x): x[1:2] = 0; return x
def f(x): x[0] += 1; return x
def f(x): del x[0]; return x
def f(x): x.y = 1; return x
def f(x): return print(x)
def f(x): import math; return x
def f(x): from math import pi; return x * pi
def f(x):
    with x: return x
def f(x):
    try: return x
    except ValueError: return 2 * x
def f(x):
    try: return x
    finally: holder.count()
def f(x):
    try: return x
    except* ValueError: pass
def f(x):
    class A: y = x
    return A
def f(x):
    match x:
        case [a, b]: return a
    return x
def f(x):
    match x:
        case {"a": a}: return a
    return x
def f(x):
    def set():
        nonlocal x
        x = 2 * x
    set(); return x
def f(x):
    async def later(): return await x
    return later
def f(x):
    def some(): yield from x
    return list(some())
def f(x): return {v for v in x}
def f(x): return {1, *x}
def f(x): return eval("x")
def f(x): return (x if x.dim() else holder).data
def f(x): return (holder if x.dim() else x).data
"""
NEWER = """
def f(x): type A = int; return x
def f[T](x): return (lambda y: y.__value__)(T)
def f(x):
    def g[T](y: T) -> T: return y
    return g(x)
"""


def functions(text: str) -> list[str]:
    """The sources of functions, one after another."""
    return [f"def f{part}" for part in text.split("\ndef f")[1:]]


@pytest.mark.parametrize("source", functions(MORE) + (functions(NEWER) if sys.version_info >= (3, 12) else []))
def test_functions_that_do_more_are_not_read(source: str) -> None:
    space: dict[str, Any] = {"torch": torch, "holder": holder}
    exec(source, space)
    with pytest.raises((pure.Impure, pure.NotNow)):
        pure.Described().function(space["f"])


@pytest.mark.parametrize("op", ["LOAD_SPECIAL", "STORE_SLICE", "LOAD_SUPER_ATTR", "BUILD_TEMPLATE", "INSTRUMENTED_CALL"])
def test_instructions_that_are_not_known_are_not_read(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [types.SimpleNamespace(opname=op, argval=None, argrepr="", is_jump_target=False)]
    monkeypatch.setattr(pure.dis, "get_instructions", lambda code: lines)
    with pytest.raises(pure.Impure, match=op):
        pure.Reading((lambda x: x).__code__)


@pytest.mark.parametrize("f", [lambda x: x.sin(), lambda x: torch.sin(x), lambda x, t=D: (lambda: normal)()])
def test_a_name_that_no_instruction_explains_is_not_passed_by(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(code: types.CodeType) -> Iterator[Any]:
        """As a version of Python would be read in which names were loaded by what is taken for something else."""
        for i in lines(code):
            yield i._replace(opname="NOP") if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF") else i

    lines = pure.dis.get_instructions
    monkeypatch.setattr(pure.dis, "get_instructions", renamed)
    with pytest.raises(pure.Impure):
        pure.Reading(f.__code__)


def test_a_variable_around_that_no_instruction_explains_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    k = 2.0
    f = lambda x: x * k
    assert list(pure.Reading(f.__code__).paths) == [(False, "k", ())]
    lines = pure.dis.get_instructions
    monkeypatch.setattr(
        pure.dis, "get_instructions", lambda code: [i for i in lines(code) if i.opname != "LOAD_DEREF"]
    )
    with pytest.raises(pure.Impure):
        pure.Reading(f.__code__)


def test_variables_of_comprehensions_do_not_hide_those_around() -> None:
    """From Python 3.12 on a comprehension is a part of its function, and its variables are cells of it."""

    def around(n: Any) -> Any:
        return lambda x: sum([(lambda: n * x)() for n in range(3)]) * n, lambda x: sum([n * x for n in range(3)]) * n

    for f in around(2.0):
        try:
            seen = (False, "n", ()) in pure.Reading(f.__code__).paths
        except pure.Impure:
            seen = True
        assert seen
    for k in range(8):
        _, f = around(2.0 + k // 5)
        x = normal(2, 3, seed=k)
        torch.testing.assert_close(pf.vmap(f)(x), 3 * x * (2.0 + k // 5))


def test_a_list_from_outside_is_sorted_in_every_call() -> None:
    numbers: list[float] = []

    def sorts(x: torch.Tensor) -> torch.Tensor:
        numbers.sort()
        return x * numbers[0]

    def by_another_name(x: torch.Tensor) -> torch.Tensor:
        same = numbers
        same.sort()
        return x * numbers[0]

    for f in (sorts, by_another_name):
        for _ in range(6):
            numbers[:] = [3.0, 2.0]
            assert pf.vmap(f)(torch.ones(2)).tolist() == [2, 2]
            assert numbers == [2, 3]


# -- the source as a second opinion ---------------------------------------------------------------------------------

MODULES = [bisect, colorsys, difflib, fractions, heapq, random, statistics, textwrap, torch.functional, torch.nn.functional]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes(inner)


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from tables(inner)


def from_outside(table: symtable.Function) -> set[str]:
    """Names that a function, with those inside, takes from outside and uses."""
    found: set[str] = set()
    for inner in tables(table):
        if isinstance(inner, symtable.Function):
            found.update(n for n in inner.get_globals() if inner.lookup(n).is_referenced())
    return found | set(table.get_frees())


def attributes(node: ast.AST) -> set[str]:
    """Attributes that the statements of a function take; annotations of variables are not computed."""
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign):
            part.annotation = ast.Constant(None)
    return {part.attr for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Attribute)}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_all_names_in_the_source_are_seen(module: Any) -> None:
    text = inspect.getsource(module)
    parsed = ast.parse(text)
    nodes = {(n.name, n.lineno): n for n in ast.walk(parsed) if isinstance(n, ast.FunctionDef) and not n.decorator_list}
    found = {(t.get_name(), t.get_lineno()): t for t in tables(symtable.symtable(text, "text", "exec"))}
    count = 0
    for code in codes(compile(text, "text", "exec", dont_inherit=True)):
        place = code.co_name, code.co_firstlineno
        if place not in nodes:
            continue
        try:
            reading = pure.Reading(code)
        except pure.Impure:
            continue
        count += 1
        assert {name for _, name, _ in reading.paths} >= from_outside(found[place]), place
        seen = known.ATTRIBUTES | known.CHANGING | {a for _, _, chain in reading.paths for a in chain}
        assert attributes(nodes[place]) <= seen, place
    assert count >= {"bisect": 0, "heapq": 0, "random": 0, "textwrap": 0, "torch.functional": 1}.get(module.__name__, 2)


# -- who listens ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.11 has no `sys.monitoring`")
@pytest.mark.parametrize("tool", range(6))
def test_tools_of_sys_monitoring_are_not_passed_by(tool: int) -> None:
    f = lambda x: (x.sin() * x).sum()
    x, call, started = normal(3), pf.grad(f), []
    for _ in range(5):
        call(x)
    assert replayed(f)
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    monitoring.use_tool_id(tool, "a tool")
    try:
        monitoring.register_callback(tool, monitoring.events.PY_START, lambda code, _: started.append(code))
        monitoring.set_local_events(tool, f.__code__, monitoring.events.PY_START)
        call(x)
    finally:
        monitoring.set_local_events(tool, f.__code__, 0)
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)
    assert f.__code__ in started
