"""Programs as PyTorch code: one function, one operator a line, under the user's lines they come from.

Every line is tried on fake tensors before it is printed; an operator that has no form in `torch` of the same result
is printed as `torch.ops.aten…`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from .expressions import FORMS, literal
from .lines import describe, has_text
from .simplify import writes

Tensor = torch.Tensor


def printed(program: Any) -> str:
    """The module text of a program."""
    return Printer(program).text()


class Printer:
    """One program on its way to text."""

    def __init__(self, program: Any) -> None:
        from .program import Names

        self.program = program
        self.nodes = list(program.graph.nodes)
        self.names: dict[Node, str] = {}
        self.pool = Names()
        self.lines: list[str] = []

    def text(self) -> str:
        """The whole text."""
        p = self.program
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        for node, given in zip(placeholders, p.inputs, strict=True):
            self.names[node] = self.pool.new(given.name)
        output = self.nodes[-1]
        results = output.args[0][: len(p.out_places)]
        asked = output.args[0][len(p.out_places) :]
        checks: dict[Node, list[Any]] = {}
        for node, question in zip(asked, p.questions, strict=True):
            checks.setdefault(node, []).append(question)
        said = None
        for node in self.nodes:
            if node.op == "get_attr":
                self.names[node] = self.pool.new("constant")
                self.lines.append(f"{self.names[node]} = {literal(p.constants[node.target])}")
            elif node.op == "call_function":
                said = self.comment(node, said)
                self.statement(node)
            for question in checks.get(node, ()):
                where = (
                    f"  # {describe(question.origin)}"
                    if question.origin is not None and has_text(question.origin)
                    else ""
                )
                self.lines.append(f"assert {self.holds(node, question.answer)}{where}")
        self.lines.append(f"return {self.result(results)}")
        return self.heading(placeholders) + "\n".join("    " + line if line else "" for line in self.lines) + "\n"

    def heading(self, placeholders: list[Node]) -> str:
        """The import, and the signature with the shapes of the inputs."""
        p = self.program
        from .program import Names

        name = Names().new(p.name)
        rows = []
        for node, given in zip(placeholders, p.inputs, strict=True):
            val = node.meta["val"]
            what = f"{str(val.dtype).removeprefix('torch.')}[{', '.join(str(n) for n in val.shape)}]"
            rows.append(f"    {self.names[node]},  # {what}{', captured: ' + given.path if given.captured else ''}\n")
        signature = f"def {name}(\n{''.join(rows)}):\n" if rows else f"def {name}():\n"
        return "import torch\n\n\n" + signature

    def comment(self, node: Node, said: Any) -> Any:
        """The user's line, where it is another than the one said last."""
        origin = node.meta.get("origin")
        if origin is None:
            return said
        text = ("backward of " if origin.backward else "") + describe(origin)
        if text != said and has_text(origin):
            self.lines.append(f"# {text}")
        return text

    def holds(self, node: Node, answer: Any) -> str:
        """The condition that a question still has its answer."""
        name = self.names[node]
        return (
            f"{'' if answer else 'not '}{name}" if isinstance(answer, bool) else f"{name}.tolist() == {literal(answer)}"
        )

    def statement(self, node: Node) -> None:
        """The line of one operator."""
        expression = self.expression(node)
        if writes(node):
            self.lines.append(expression)
            self.names[node] = self.names[node.args[0]]  # type: ignore[index]
            return
        self.names[node] = self.pool.new(node.meta.get("variable") or operator_name(node))
        self.lines.append(f"{self.names[node]} = {expression}")

    def expression(self, node: Node) -> str:
        """An operator as torch code that is known to give the same shape and dtype."""
        if node.target is operator.getitem:
            return f"{self.names[node.args[0]]}[{node.args[1]}]"  # type: ignore[index]
        target: Any = node.target
        schema = getattr(target, "_schema", None)
        if schema is None:
            return f"{node._pretty_print_target(target)}({', '.join(self.argument(a) for a in node.args)})"
        args, kwargs = without_defaults(node)
        for form in (FORMS.get(str(target.overloadpacket).removeprefix("aten.")), as_function, as_method):
            if form is None:
                continue
            text = form(node, [self.argument(a) for a in args], {k: self.argument(v) for k, v in kwargs.items()})
            if text is not None and (writes(node) or self.agrees(node, text)):
                return text
        listed = [self.argument(a) for a in node.args] + [f"{k}={self.argument(v)}" for k, v in node.kwargs.items()]
        return f"torch.ops.{target!s}({', '.join(listed)})"

    def argument(self, a: Any) -> str:
        """An argument as code."""
        if isinstance(a, Node):
            return self.names[a]
        if isinstance(a, (list, tuple)):
            return "[" + ", ".join(self.argument(v) for v in a) + "]"
        return literal(a)

    def agrees(self, node: Node, text: str) -> bool:
        """Whether the text, run on fake tensors, gives what the operator gives."""
        scope = {self.names[n]: n.meta["val"] for n in node.all_input_nodes}
        try:
            with self.program.mode, torch.no_grad():
                made = eval(text, {"torch": torch, **scope})
        except Exception:
            return False
        expected = node.meta["val"]
        if isinstance(expected, Tensor):
            return isinstance(made, Tensor) and made.shape == expected.shape and made.dtype == expected.dtype
        if isinstance(expected, (list, tuple)):
            return isinstance(made, (list, tuple)) and [getattr(m, "shape", None) for m in made] == [
                getattr(e, "shape", None) for e in expected
            ]
        return True

    def result(self, results: Any) -> str:
        """The returned expression, in the structure that the function returns."""
        from ..core import tree

        p = self.program
        order = dict(zip(p.out_places, results, strict=True))
        whole = tree.unflatten(list(range(len(p.out_leaves))), p.out_spec)

        def built(v: Any) -> str | None:
            if v is None:
                return "None"
            if type(v) is int:
                return self.argument(order[v]) if v in order else literal(p.out_leaves[v])
            if type(v) in (list, tuple):
                parts = [built(u) for u in v]
                if any(t is None for t in parts):
                    return None
                inner = ", ".join(parts)  # type: ignore[arg-type]
                return f"[{inner}]" if type(v) is list else f"({inner}{',' if len(v) == 1 else ''})"
            if type(v) is dict:
                parts = [f"{k!r}: {built(u)}" for k, u in v.items()]
                return "{" + ", ".join(parts) + "}"
            return None

        flat = "(" + "".join(self.argument(o) + ", " for o in results) + ")"
        return built(whole) or flat


def operator_name(node: Node) -> str:
    """The operator's name without its overload."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet).split(".")[-1].strip("_") if packet is not None else "item"


def without_defaults(node: Node) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that say something: defaults, the CPU and strided layout left out."""
    schema = node.target._schema  # type: ignore[union-attr]
    args = list(node.args)
    while args and len(args) <= len(schema.arguments):
        parameter = schema.arguments[len(args) - 1]
        if parameter.has_default_value() and same(args[-1], parameter.default_value):
            args.pop()
        else:
            break
    kwargs = {}
    for k, v in node.kwargs.items():
        default = next((a.default_value for a in schema.arguments if a.name == k and a.has_default_value()), None)
        if same(v, default) or (k == "layout" and v is torch.strided) or (k == "pin_memory" and not v):
            continue
        if (k == "device" and v == torch.device("cpu")) or (
            k == "dtype" and v is torch.get_default_dtype() and not node.all_input_nodes
        ):
            continue
        kwargs[k] = v
    return args, kwargs


def same(a: Any, b: Any) -> bool:
    """Equality of arguments."""
    return not isinstance(a, Node) and type(a) is type(b) and a == b


def as_function(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """`torch.name(…)`."""
    name = str(node.target.overloadpacket).split(".")[-1]  # type: ignore[union-attr]
    if not hasattr(torch, name) or name.startswith("_"):
        return None
    return f"torch.{name}({', '.join([*args, *[f'{k}={v}' for k, v in kwargs.items()]])})"


def as_method(node: Node, args: list[str], kwargs: dict[str, str]) -> str | None:
    """`x.name(…)`."""
    name = str(node.target.overloadpacket).split(".")[-1]  # type: ignore[union-attr]
    if (
        not args
        or not node.args
        or not isinstance(node.args[0], Node)
        or not hasattr(Tensor, name)
        or name.startswith("__")
    ):
        return None
    if name.startswith("_"):
        return None
    return f"{args[0]}.{name}({', '.join([*args[1:], *[f'{k}={v}' for k, v in kwargs.items()]])})"
