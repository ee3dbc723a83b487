"""What each operator has under each transform, read from the operator table and the rules by which it is dispatched.

Under `vmap` an own rule, a decomposition, or a loop over lanes; under `jvp` an own rule, a decomposition, a tangent derived
from the reverse formula, no derivative, or a refusal; under `vjp` PyTorch's formula, which `vjp` of `vjp` replaces by a
decomposition where it cannot be differentiated again, or not rightly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .batch import kinds as batching
from .forward import kinds as forward
from .ops import families as _families  # noqa: F401  (fills the table)
from .ops import kinds
from .ops.safe import SAFE
from .ops.table import ROWS, Row, entry

PYTORCH = "PyTorch's formula"


@dataclass(frozen=True)
class OperatorCoverage:
    """One operator: its kind in the table, and under each transform where its rule comes from."""

    operator: str
    kind: str
    vmap: str
    jvp: str
    vjp: str
    vjp_vjp: str


def coverage() -> list[OperatorCoverage]:
    """What each operator of the table has under each transform.

    Returns:
        One row an operator, by name. `vmap` and `jvp` are one of "own rule", "decomposition", "derived" (the tangent from
        the reverse formula), "lane loop", "no derivative", or "refused (why)".

    Example:
        >>> import pushforward as pf
        >>> next(row for row in pf.coverage() if row.operator == "sin")
        OperatorCoverage(operator='sin', kind='Elementwise', vmap='own rule', jvp='own rule', vjp="PyTorch's formula", \
vjp_vjp="PyTorch's formula")
    """
    replaced = {getattr(function, "__name__", "") for function in SAFE}
    made = []
    for name, row in sorted(ROWS.items()):
        op = operator_of(name)
        if op is not None:
            made.append(of_row(name, row, op, replaced))
    return made


def of_row(name: str, row: Row, op: Any, replaced: set[str]) -> OperatorCoverage:
    """The coverage of one row."""
    e = entry(op)
    jvp, rule = forward.chosen(e)
    jvp = refusal(row, rule) or jvp
    if isinstance(row.kind, kinds.Elementwise) and not row.kind.derivatives and jvp == kinds.OWN and "tangent" not in row.rules:
        jvp = kinds.CONSTANT
    vmap = kinds.OWN if isinstance(row.kind, (kinds.Random, kinds.Constant)) else batching.chosen(e)[0]
    vjp = nested = kinds.CONSTANT if jvp == kinds.CONSTANT else PYTORCH
    if vjp == PYTORCH and public_name(name) in replaced:
        nested = kinds.DECOMPOSITION
    return OperatorCoverage(name, type(row.kind).__name__, vmap, jvp, vjp, nested)


def refusal(row: Row, rule: Any) -> str | None:
    """That a derivative is refused, and why, where the rule or one of the factors says so."""
    factors = row.kind.derivatives if isinstance(row.kind, kinds.Elementwise) else ()
    reasons = [getattr(f, "refused", None) for f in (rule, *factors)]
    said = "; ".join(dict.fromkeys(r for r in reasons if r))
    return f"{kinds.REFUSED} ({said})" if said else None


def public_name(name: str) -> str:
    """The name by which the Python API calls an operator."""
    plain = name.split(".")[0].lstrip("_")
    for ending in ("_forward", "_for_cpu"):
        plain = plain.removesuffix(ending)
    return plain.replace("flash_", "")


def operator_of(name: str) -> Any:
    """The overload that a row is read for: the one it names, or the first that takes a tensor; None where torch has none."""
    base, _, which = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return None
    if which:
        return getattr(packet, which, None)
    overloads = [getattr(packet, o) for o in packet.overloads()]
    functional = [op for op in overloads if not any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments)]
    of_tensors = [op for op in functional if any("Tensor" in str(a.type) for a in op._schema.arguments)]
    return (of_tensors or functional or [None])[0]
