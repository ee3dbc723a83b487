"""How much of a difference is rounding: the function in its own type beside its copy in float64."""

from __future__ import annotations

from typing import Any

import torch

from ..forward.level import Dual
from .decisions import moving_kind
from .differences import base_step, central, evaluate
from .graph import Keyed, tangent_of
from .kinks import kinks
from .observe import Call, innermost_jvp, tensors
from .report import Finding, Row
from .subject import Subject, inner, real_vector
from .survey import Survey

Tensor = torch.Tensor

DIGITS = 0.01  # relative difference of differences in the function's own type that is worth a word


class Pairs(Keyed):
    """Primals and tangents of operators' results, and where their inputs came from."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        self.inputs: dict[Any, list[Any]] = {}
        self.maker: dict[int, Any] = {}

    def operator(self, call: Call) -> Any:
        """Run and keep."""
        key = self.key(call)
        used = [self.maker.get(place(t)) for t in tensors([*call.args, *call.kwargs.values()])]
        out = call.run()
        results = [o for o in tensors(out) if moving_kind(o)]
        if results and self.wants(sum(o.numel() * 16 for o in results)):
            self.inputs[key] = [u for u in used if u is not None]
            level = innermost_jvp()
            with self.aside():
                self.found[key] = [
                    (
                        real_vector(o._primal if type(o) is Dual else o).clone(),
                        real_vector(tangent_of(o, level)).clone(),
                    )
                    for o in results
                ]
            for o in results:
                self.maker[place(o)] = key
        return out


def place(t: Tensor) -> int:
    """What identifies the memory of a value."""
    while type(t) is Dual:
        t = t._primal
    try:
        return t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass without memory of its own
        return id(t)


def threshold(dtype: torch.dtype) -> float:
    """The relative difference from float64 that is worth a word."""
    return min(max(1e-3, 100 * torch.finfo(dtype).eps), 0.3)


def relative(found: list[Tensor], reference: list[Tensor]) -> float:
    """The largest difference, relative to the largest entry of its leaf."""
    worst = 0.0
    for a, b in zip(found, reference, strict=True):
        x, y = real_vector(a), real_vector(b)
        if x.numel():
            size = float(y.abs().max())
            off = float(torch.nan_to_num((x - y).abs(), nan=float("inf")).max())
            worst = max(worst, off / size if size > 0 else (0.0 if off == 0 else float("inf")))
    return worst


def narrow_type(subject: Subject, kinds: set[torch.dtype]) -> torch.dtype | None:
    """The narrowest floating-point type of inputs or results; None where all is float64."""
    found = {x.dtype for x in subject.point} | kinds
    found = {torch.float32 if k is torch.complex64 else k for k in found}
    narrow = [k for k in found if k in (torch.float32, torch.float16, torch.bfloat16)]
    return max(narrow, key=lambda k: torch.finfo(k).eps) if narrow else None


def rounding(
    narrow: Subject,
    wide: Subject,
    direction: list[Tensor],
    tangent: list[Tensor] | None,
    pulled: list[Tensor] | None,
    cotangents: list[Tensor],
    dtype: torch.dtype,
) -> tuple[list[Row], list[Finding]]:
    """The derivatives of the function in its own type against those in float64."""
    name = str(dtype).removeprefix("torch.")
    rows: list[Row] = []
    findings: list[Finding] = []
    limit = threshold(dtype)
    own = [t.to(x.dtype) for t, x in zip(direction, narrow.point, strict=True)]
    worst, modes = 0.0, []
    if tangent is not None:
        off = relative(narrow.push(own), tangent)
        rows.append(Row(f"forward mode in {name}", "float64", off, off <= limit))
        worst, modes = max(worst, off), modes + (["forward"] if off > limit else [])
    if pulled is not None:
        seeds = [c.to(o.dtype) for c, o in zip(cotangents, narrow.values(narrow.point), strict=True)]
        mine = narrow.pull(seeds)
        size = max((float(inner([a.abs()], [b.abs()])) for a, b in zip(pulled, direction, strict=True)), default=0.0)
        off = abs(inner(mine, direction) - inner(pulled, direction)) / size if size else 0.0
        rows.append(Row(f"reverse mode in {name}", "float64", off, off <= limit))
        worst, modes = max(worst, off), modes + (["reverse"] if off > limit else [])
    if tangent is not None:
        step = torch.finfo(dtype).eps ** (1 / 3) * base_step(narrow.point, own)
        above, _ = evaluate(narrow, own, step, False)
        below, _ = evaluate(narrow, own, -step, False)
        off = relative([(a - b) / (2 * step) for a, b in zip(above, below, strict=True)], tangent)
        exact, _ = evaluate(wide, direction, step, False)
        slope = max((float(t.abs().max()) for t in tangent if t.numel()), default=0.0)
        error = max((float((a - b).abs().max()) for a, b in zip(above, exact, strict=True) if a.numel()), default=0.0)
        noise = error / (step * slope) if slope else 0.0
        rows.append(
            Row(
                f"differences in {name}",
                "forward mode in float64",
                off,
                None,
                f"(step {step:.1e}; rounding makes {min(noise, off):.0e} of it)",
            )
        )
        if off > DIGITS and noise < off / 2:
            findings += crossed_by(wide, direction, step, off, name)
        if noise > DIGITS and off > DIGITS and worst <= limit:
            operator, source, amount = amplifier(narrow, wide, own, direction)
            findings.append(
                Finding(
                    "rounding",
                    operator,
                    source,
                    (),
                    f"differences in {name} are off by {off:.1e}, the derivative is not: rounding of the values, "
                    f"divided by the step. `{operator}` loses most: its "
                    f"relative error is {amount:.0e} times that of its inputs. Compare in float64.",
                    details={"relative": off},
                )
            )
    if worst > limit:
        operator, source, amount = amplifier(narrow, wide, own, direction)
        findings.append(
            Finding(
                "rounding",
                operator,
                source,
                tuple(modes),
                f"in {name} the derivative is off by {worst:.1e} from the same function in float64: rounding, not a "
                f"wrong rule. `{operator}` "
                f"makes the largest loss: its relative error is {amount:.0e} times that of its inputs (terms that "
                "cancel, or a result too small for the type).",
                details={"relative": worst},
            )
        )
    return rows, findings


def crossed_by(wide: Subject, direction: list[Tensor], step: float, off: float, name: str) -> list[Finding]:
    """The kinks that the large step of a narrow type crosses."""
    base = Survey()
    wide.values(wide.point, base)
    found = kinks(wide, direction, base, central(wide, direction, step))[:2]
    text = f"differences in {name} need a large step and are off by {off:.1e}, the derivative is not"
    return [
        Finding(
            "kink",
            k.operator,
            k.source,
            (),
            f"{text}: {k.sentence(step)}. Compare in float64, where a step can be small.",
            details={"elements": k.elements, "margin": k.margin, "reach": k.reach},
        )
        for k in found
    ]


def amplifier(narrow: Subject, wide: Subject, own: list[Tensor], direction: list[Tensor]) -> tuple[str, str, float]:
    """The operator whose result loses most digits, compared with its inputs."""
    a, b = Pairs(), Pairs()
    narrow.push(own, a)
    wide.push(direction, b)
    eps = max(torch.finfo(x.dtype).eps for x in narrow.point if x.is_floating_point()) if narrow.point else 1e-7
    eps = max(eps, 1e-8)
    errors: dict[Any, float] = {}
    best: tuple[float, str, str] = (0.0, "the function", "<unknown>")
    for key in b.order:
        if key not in a.found or key not in b.found:
            continue
        error = 0.0
        for (x, dx), (y, dy) in zip(a.found[key], b.found[key], strict=False):
            if x.shape == y.shape:
                error = max(error, relative([x], [y]), relative([dx], [dy]) if bool((dy != 0).any()) else 0.0)
        errors[key] = error
        came = max((errors.get(k, 0.0) for k in b.inputs.get(key, [])), default=0.0)
        ratio = min(error, 1e6) / max(came, eps)
        if ratio > best[0] and error > 1e-4:
            best = ratio, key[0], key[1]
    return best[1], best[2], best[0]
