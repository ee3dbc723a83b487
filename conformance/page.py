"""`docs/coverage.md`: the operator table, and the recorded sweeps of this library and of torch.func side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import pushforward as pf

from . import records
from .names import TRANSFORMS

PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
NAMES = {t: t.replace("_", " of ") if t.count("_") else t for t in TRANSFORMS}
SHORT = {"pass": "yes", "none": "-", "torch fails": "torch fails"}
HEAD = """\
# Coverage

What each operator has under each transform. This page is made by `./run conformance --record`; `pf.coverage()` gives
the last table as data.

The sweep calls every operator of PyTorch's own database (`op_db`, torch {torch}, CPU, {dtype}) with up to {samples} sample
inputs and compares with the stacked loop, torch.autograd and central differences. A pass is a right value, *slow* a right
value by a loop over lanes, *error* a call that raises, *wrong* a wrong value, and *torch fails* an operator for which the plain
loop or torch.autograd raises, so that nothing is there to compare with. A dash: the operator has no derivative, draws
numbers that cannot be repeated, or has no tensor arguments.

"""
TABLE = """
## The operator table

`vmap` and `jvp`: where the rule of an operator comes from. A *decomposition* is a formula in other operators; *derived*
is a tangent from the operator's own reverse formula; *no derivative* is a constant, a draw or a factory. `vjp` is
PyTorch's engine; `vjp of vjp` names the operators that are written out where PyTorch's formula cannot be differentiated
again, or not rightly.

"""


def write_page(path: Path = PAGE) -> None:
    """Make the page from the records and the operator table."""
    ours = records.load(records.path_of("pushforward", torch.float64))
    theirs = records.load(records.path_of("torch.func", torch.float64))
    swept = summaries(ours, theirs) + other_precisions() + differences(ours, theirs) + failures(ours)
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD.format(**ours["about"]) + swept + TABLE + operator_table())


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def summaries(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """How many operators have which status, by transform, for both libraries."""
    kinds = ("pass", "slow", "error", "wrong")
    rows = []
    counts = [records.summary(r["operators"]) for r in (ours, theirs)]
    for transform in TRANSFORMS:
        line: list[Any] = [NAMES[transform]]
        for count in counts:
            got = count.get(transform, {})
            bad = {"wrong": sum(got.get(s, 0) for s in ("wrong", "crash", "timeout"))}
            line += [bad.get(k, got.get(k, 0)) for k in kinds]
        rows.append(line)
    head = ["", *(f"pushforward: {k}" for k in kinds), *(f"torch.func: {k}" for k in kinds)]
    return f"## All operators\n\n{table(head, rows)}"


def other_precisions() -> str:
    """The sweeps in other precisions, where they are recorded."""
    rows = []
    for dtype in (torch.float32, torch.complex128):
        found = records.load(records.path_of("pushforward", dtype))
        if found["operators"]:
            total = records.summary(found["operators"])
            bad = {k: sum(c[k] for c in total.values()) for k in ("pass", "slow", "error", "wrong", "timeout", "crash")}
            rows.append([found["about"]["dtype"], found["about"]["samples"], *bad.values()])
    if not rows:
        return ""
    head = ["precision", "samples", "pass", "slow", "error", "wrong", "timeout", "crash"]
    return f"\n## Other precisions\n\nOperators × transforms of this library.\n\n{table(head, rows)}"


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Every operator that does not pass everywhere in both libraries; the others are right in both."""
    rows, same = [], 0
    for name, by_transform in sorted(ours["operators"].items()):
        other = theirs["operators"].get(name, {})
        cells = []
        for transform in TRANSFORMS:
            a, b = by_transform.get(transform, ["none"])[0], other.get(transform, ["none"])[0]
            cells.append(SHORT.get(a, a) if a == b else f"{SHORT.get(a, a)} / {SHORT.get(b, b)}")
        if all(c in ("yes", "-") for c in cells):
            same += 1
        else:
            rows.append([f"`{name}`", *cells])
    text = (
        "\n## Operator by operator\n\nA cell is this library's state, then torch.func's where it is another. "
        f"The {same} operators that are right in every transform of both are left out.\n\n"
    )
    return text + table(["operator", *(NAMES[t] for t in TRANSFORMS)], rows)


def failures(ours: dict[str, Any]) -> str:
    """What is not right here, and what torch itself cannot do, each with its reason."""
    text = ""
    for title, statuses in (
        ("What is not right here", ("slow", "error", "timeout", "wrong", "crash")),
        ("Where torch's own loop or autograd fails", ("torch fails",)),
    ):
        found = records.reasons(ours["operators"], statuses)
        lines = [f"- {reason} ({', '.join(NAMES[t] for t in where)})\n" for reason, where in sorted(found.items())]
        text += f"\n## {title}\n\n" + ("".join(lines) or "Nothing.\n")
    return text


def operator_table() -> str:
    """`pf.coverage()`."""
    rows = [[f"`{r.operator}`", r.kind, r.vmap, r.jvp, r.vjp, r.vjp_vjp] for r in pf.coverage()]
    return table(["ATen operator", "kind", "vmap", "jvp", "vjp", "vjp of vjp"], rows)
