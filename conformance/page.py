"""`docs/coverage.md`: the operator table, and the recorded sweeps of this library and of torch.func side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import pushforward as pf

from . import records
from .compare import TOLERANCES
from .names import KINK, REFUSED, TRANSFORMS, WRONG_IN_TORCH

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
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
    swept = summaries(ours, theirs) + other_precisions() + tolerances() + differences(ours, theirs)
    swept += failures(ours) + loops(ours) + families() + attention()
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


def tolerances() -> str:
    """What counts as equal."""
    rows = []
    for dtype, by_source in TOLERANCES.items():
        found = [f"{t.relative:g}, {t.absolute:g}" for t in by_source.values()]
        rows.append([str(dtype).removeprefix("torch."), *found])
    head = ["precision", "a loop, torch.autograd", "central differences", "second differences"]
    return f"""
## Tolerances

Relative, and absolute as a share of the largest number expected (of 1 where that is smaller), by what the expected value
comes from. Where a derivative is not that of torch.autograd, central differences in double precision (for reverse mode
torch.autograd in double precision) decide: a value that agrees with them is right, and where the two references
themselves disagree the sample lies on a kink. Batched arguments are also given with gaps between the lanes in memory.

{table(head, rows)}"""


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
        text += f"\n## {title}\n\n" + listed(records.reasons(ours["operators"], statuses))
    text += "\n## What torch.autograd gets wrong\n\n"
    text += "Reverse mode here is PyTorch's engine, and gives the same; forward mode is right.\n\n"
    text += "".join(f"- `{name}`: {why}\n" for name, why in WRONG_IN_TORCH.items())
    told = records.reasons(ours["operators"], ("pass", "none"))
    for title, what, beginning in (
        ("What is refused", "Samples without a right answer: here the call must raise, and does.", REFUSED),
        ("Samples on a kink", "Both values are one-sided; [Conventions at kinks](kinks.md) says which is taken.", KINK),
    ):
        some = {r: where for r, where in told.items() if f": {beginning}" in r or f"; {beginning}" in r}
        text += f"\n## {title}\n\n{what}\n\n{listed(some)}"
    return text


def listed(found: dict[str, list[str]]) -> str:
    """Operators with reasons, a line each."""
    lines = []
    for reason, where in sorted(found.items()):
        name, why = reason.split(" | ", 1)
        why = why.removeprefix("pass: ").removeprefix("none: ")
        lines.append(f"- `{name}`: {why} ({', '.join(NAMES[t] for t in where)})\n")
    return "".join(lines) or "Nothing.\n"


def loops(ours: dict[str, Any]) -> str:
    """What runs lane by lane under `vmap`: measured, and by the table."""
    slow = records.lane_loops(ours["operators"])
    rows = pf.coverage()
    by_size = [f"`{r.operator}`" for r in rows if r.vmap.startswith("lane by lane")]
    elsewhere = [f"`{r.operator}`" for r in rows if r.vmap == "lane loop"]
    return f"""
## Lane by lane

Operators of the database that warned of a loop over lanes in any transform: {len(slow)}{": " if slow else ""}\
{", ".join(f"`{name}`" for name in slow)}.

Their results differ in size from lane to lane, so that each lane runs by itself: {", ".join(by_size)}. No rule have, and
no dense call on the CPU reaches: {", ".join(elsewhere)}.
"""


def families() -> str:
    """Batching rules beside the loop, as recorded."""
    record = json.loads((BENCHMARKS / "families.json").read_text())
    rows = [
        [f["family"], f["rows"], f"{f['mean']:.1f}", f"{f['least']:.1f}", f["least of"].replace(" | ", ", ")]
        for f in record["families"]
    ]
    beside = [
        f"{t['name'].split(' | ', 1)[1].replace(' | ', ', ')} {t['speedups']['torch.func']['median']:.2f}"
        for t in record["timings"]
        if "torch.func" in t["speedups"]
    ]
    machine = record["machine"]
    head = ["family", "rows", "geometric mean", "least", "of"]
    return f"""
## Batching rules beside the loop

How many times faster `vmap` (and `vmap(grad)`) is than the stacked Python loop over {record["batch"]} examples in plain
PyTorch, by family of operators (torch {machine["torch"]}, {machine["processor"]}, one thread, {record["clock"]} time,
in one process in turn; `./run bench --families --record` measures again). How many times faster than `torch.func.vmap`,
where that was measured too: {"; ".join(beside)}.

{table(head, rows)}"""


def operator_table() -> str:
    """`pf.coverage()`."""
    rows = [[f"`{r.operator}`", r.kind, r.vmap, r.jvp, r.vjp, r.vjp_vjp] for r in pf.coverage()]
    return table(["ATen operator", "kind", "vmap", "jvp", "vjp", "vjp of vjp"], rows)


def attention() -> str:
    """The peak memory of forward mode through fused attention, as recorded."""
    record = json.loads((BENCHMARKS / "attention_memory.json").read_text())
    modes = [key for key, value in record["rows"][-1].items() if key != "length" and isinstance(value, int)]
    size = lambda row, key: f"{row[key] / 2**20:.0f}" if key in row else ""
    columns = [name for m in modes for name in (m, f"{m}, written out") if not m.endswith("written out")]
    rows = []
    for row in record["rows"]:
        worst = [row[key] for key in row if key.endswith("difference")]
        rows.append([row["length"], *(size(row, c) for c in columns), f"{max(worst):.0e}" if worst else ""])
    head = ["length", *columns, "largest difference"]
    return f"""
## Memory of attention

MiB of tensors alive at once above the arguments, for `scaled_dot_product_attention` with {record["heads"]} heads of width
{record["width"]} in float32, and for the same formula with its matrix of weights; the difference is relative
(`python -m benchmarks.attention_memory --record` measures again).

{table(head, rows)}"""
