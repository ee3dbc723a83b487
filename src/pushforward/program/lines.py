"""The user's source: the line an operator comes from, and the variable it becomes."""

from __future__ import annotations

import ast
import functools
import linecache
import os

from torch.fx import Graph, Node

from .capture import Origin

# What an operator sign is called at dispatch.
_SIGNS = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div", "reciprocal"),
    ast.Pow: ("pow",),
    ast.MatMult: ("mm", "mv", "bmm", "dot", "addmm"),
    ast.USub: ("neg",),
}
_OTHERS = {"linear": ("addmm", "addmv", "mm"), "softmax": ("softmax",), "matmul": ("mm", "mv", "bmm", "dot")}


def describe(origin: Origin) -> str:
    """`file.py:12: y = torch.sin(x)`."""
    text = text_of(origin)
    where = f"{os.path.basename(origin.code.co_filename)}:{origin.line}"
    return f"{where}: {text}" if text else where


def has_text(origin: Origin) -> bool:
    """Whether the line can be shown."""
    return bool(text_of(origin))


def text_of(origin: Origin) -> str:
    """The user's line, empty where it is not known."""
    return linecache.getline(origin.code.co_filename, origin.line).strip() if is_one(origin.code.co_filename) else ""


def is_one(name: str) -> bool:
    """Whether a file's name stands for one text; all that is executed from strings has the name of what `python -c` runs."""
    return name != "<string>"


def variable_name(origin: Origin) -> tuple[str, tuple[str, ...]] | None:
    """The variable that the instruction's value is assigned to, and the operators that may compute it."""
    place = position(origin)
    return assignments(origin.code.co_filename).get(place) if place is not None else None


def position(origin: Origin) -> tuple[int, int] | None:
    """Line and column at which the expression of an instruction ends and begins."""
    for k, (line, end_line, column, end_column) in enumerate(origin.code.co_positions()):
        if 2 * k == origin.instruction:
            if line is None or end_line is None or column is None or end_column is None:
                return None
            return (line, column * 100_000 + end_line * 1_000 + end_column)
    return None


@functools.lru_cache(maxsize=256)
def assignments(filename: str) -> dict[tuple[int, int], tuple[str, tuple[str, ...]]]:
    """For each expression that is assigned to one name as it is: its place, the name, and the operators it may be."""
    text = "".join(linecache.getlines(filename)) if is_one(filename) else ""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign):
            target, value = node.target, node.value
        else:
            continue
        if (
            isinstance(target, ast.Name)
            and isinstance(value, (ast.Call, ast.BinOp, ast.UnaryOp))
            and value.end_col_offset is not None
        ):
            place = (value.lineno, value.col_offset * 100_000 + (value.end_lineno or 0) * 1_000 + value.end_col_offset)
            found[place] = (target.id, operators(value))
    return found


def name_variables(graph: Graph) -> None:
    """Mark the operators whose value the user's code calls by a name: of one instruction's, the first that fits.

    Done before anything is simplified: where the value itself is not needed and only its tangent is, nothing gets the
    name.
    """
    group: list[Node] = []
    for node in graph.nodes:
        origin = node.meta.get("origin") if node.op == "call_function" else None
        if group and origin != group[0].meta["origin"]:
            name_group(group)
            group = []
        if origin is not None and not origin.backward:
            group.append(node)


def name_group(group: list[Node]) -> None:
    """Find the value of an assignment among the operators it ran."""
    known = variable_name(group[0].meta["origin"])
    if known is None:
        return
    variable, names = known
    fitting = [n for n in group if str(n.target).split(".")[1:2] and str(n.target).split(".")[1].strip("_") in names]
    if fitting or len(group) == 1:
        (fitting or group)[0].meta["variable"] = variable


def operators(value: ast.expr) -> tuple[str, ...]:
    """The names at dispatch of what an expression computes last."""
    if isinstance(value, (ast.BinOp, ast.UnaryOp)):
        return _SIGNS.get(type(value.op), ())
    if isinstance(value, ast.Call):
        name = (
            value.func.attr
            if isinstance(value.func, ast.Attribute)
            else value.func.id
            if isinstance(value.func, ast.Name)
            else ""
        )
        return _OTHERS.get(name, (name,))
    return ()
