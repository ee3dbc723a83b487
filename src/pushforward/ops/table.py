"""The table itself: rows by name, and what the schema of each overload says.

    row("sin", Elementwise((lambda out, x: x.cos(),)))

A row covers every overload of the name, its in-place and its `out=` variants. Rules that a kind cannot give are attached to
the row by the interpreter's name:

    row("sort", AlongDim(dim=1), tangent=sort_tangent)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.torch_private import COMPOSITE
from .kinds import Elementwise, ElementwiseBilinear, ElementwiseLinear, Kind, Special

OpOverload = torch._ops.OpOverload


@dataclass
class Row:
    """One operator: its kind and the hand-written rules by interpreter."""

    name: str
    kind: Kind
    rules: dict[str, Callable[..., Any]] = field(default_factory=dict)
    stated: bool = True  # False while only rules were attached and no kind has been given


ROWS: dict[str, Row] = {}
UNTAGGED_RANDOM = frozenset(
    {"random", "binomial", "_sample_dirichlet"}
)  # they draw, and torch does not say so by a tag


def row(names: str, kind: Kind, **rules: Callable[..., Any]) -> None:
    """Add a row for each of the space-separated `names` (`sin`, or `mul.Scalar` for one overload only)."""
    for name in names.split():
        known = ROWS.get(name)
        if known is not None and (known.stated or not known.rules.keys().isdisjoint(rules)):
            msg = f"operator {name!r} already has a row"
            raise ValueError(msg)
        ROWS[name] = Row(name, kind, {**(known.rules if known is not None else {}), **rules})


def attach(interpreter: str, names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the rule of `interpreter` for rows that exist, or for new rows of kind `Special`."""

    def keep(rule: Callable[..., Any]) -> Callable[..., Any]:
        for name in names.split():
            entry_row = ROWS.setdefault(name, Row(name, Special(), stated=False))
            if interpreter in entry_row.rules:
                msg = f"{name!r} already has a {interpreter} rule"
                raise ValueError(msg)
            entry_row.rules[interpreter] = rule
        return rule

    return keep


class Entry:
    """What is known of one overload: its row, and from its schema what it writes and whether it returns views."""

    __slots__ = (
        "cache",
        "call",
        "complex",
        "composite",
        "dynamic",
        "functional",
        "is_view",
        "name",
        "op",
        "out_names",
        "plans",
        "pointwise",
        "random",
        "row",
        "strided",
        "writes",
        "writes_metadata",
    )

    def __init__(self, op: Any) -> None:
        schema = op._schema
        self.op = op
        base = schema.name.split("::")
        self.name = base[1] if base[0] in ("aten", "prims") else schema.name
        overload = schema.overload_name or "default"
        self.writes: tuple[int, ...] = ()
        self.out_names: tuple[str, ...] = ()
        writes, outs = [], []
        for k, arg in enumerate(schema.arguments):
            if arg.alias_info is not None and arg.alias_info.is_write:
                if arg.kwarg_only:
                    outs.append(arg.name)
                else:
                    writes.append(k)
        self.writes, self.out_names = tuple(writes), tuple(outs)
        self.is_view = not (writes or outs) and any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        tags = op.tags
        self.dynamic = torch.Tag.dynamic_output_shape in tags
        self.random = torch.Tag.nondeterministic_seeded in tags or self.name.rstrip("_") in UNTAGGED_RANDOM
        # Reached whole where autograd's keys are off: torch's own decomposition is then run on traced values.
        self.composite = op.namespace != "prim" and op.has_kernel_for_dispatch_key(COMPOSITE)
        self.complex = self.name.lstrip("_").startswith(("fft", "linalg_eig", "complex", "polar", "view_as_complex"))
        self.strided = self.name in ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter")
        self.writes_metadata = torch.Tag.inplace_view in tags
        self.functional = _functional(op) if writes or outs else None
        key = self.functional_name() if writes or outs else self.name
        self.row = ROWS.get(f"{key}.{overload}") or ROWS.get(key)
        self.call = op._op  # past the wrapper in Python, which costs as much as a small operator
        self.pointwise = (
            not (writes or outs or self.is_view or self.random)
            and self.row is not None
            and isinstance(self.row.kind, (Elementwise, ElementwiseLinear, ElementwiseBilinear))
            and "batch" not in self.row.rules
        )
        self.cache: dict[str, Any] = {}
        # what calls of it did before, see `plans`; False where that is of no use
        self.plans: Any = False if self.writes or self.out_names or self.random or self.dynamic else None

    def functional_name(self) -> str:
        """The name of the operator this one is a variant of."""
        if self.functional is not None:
            return self.functional._schema.name.split("::")[1]
        return self.name[:-1] if self.name.endswith("_") else self.name

    def rule(self, interpreter: str) -> Callable[..., Any] | None:
        """The hand-written rule of `interpreter`, if the row has one."""
        return self.row.rules.get(interpreter) if self.row is not None else None


def _functional(op: Any) -> Any:
    """The functional overload of an in-place or `out=` one, found by its schema; None if torch has none."""
    schema = op._schema
    namespace, name = schema.name.split("::")
    space = getattr(torch.ops, namespace)
    candidates = []
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if name in ("__ilshift__", "__irshift__", "__iand__", "__ior__", "__ixor__"):
        plain = "__" + name[3:]
    for base in dict.fromkeys((plain, name, name + "_functional", plain + "_functional")):
        packet = getattr(space, base, None)
        if packet is None:
            continue
        candidates += [getattr(packet, o) for o in packet.overloads()]
    want = [(a.name, str(a.type)) for a in schema.arguments if not (a.kwarg_only and a.alias_info is not None)]
    best = None
    for c in candidates:
        cs = c._schema
        if any(a.alias_info is not None and a.alias_info.is_write for a in cs.arguments) or not cs.returns:
            continue
        have = [(a.name, str(a.type)) for a in cs.arguments]
        if have == want or [t for _, t in have] == [t for _, t in want]:
            return c
        if have[: len(want)] == want and best is None:
            best = c
    return best


ZEROS_WITHOUT_DATA = torch.ops.aten._efficientzerotensor.default
ENTRIES: dict[Any, Entry] = {}


def entry(op: Any) -> Entry:
    """The entry of an overload, made at its first use."""
    found = ENTRIES.get(op)
    if op is ZEROS_WITHOUT_DATA:  # handlers run below the key that knows such zeros: others would read their data
        found = ENTRIES[op] = op._pushforward = entry(torch.ops.aten.zeros.default)
    elif found is None:
        found = ENTRIES[op] = Entry(op)
        op._pushforward = found  # an attribute is found faster than a key: torch hashes operators in Python
    return found
