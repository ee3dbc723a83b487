"""Why a derivative is wrong: lost values, wrong rules, overwritten values, and at last cancellation."""

from __future__ import annotations

import contextlib
import inspect
import os
from typing import Any

import torch

from .differences import STEP, Differences, base_step, gap
from .graph import Place, first_forward, first_reverse
from .local import LocalCheck, Suspect
from .losses import losses
from .report import Finding
from .subject import Subject, inner, real_vector

Tensor = torch.Tensor
CANCELS = 1e8


class Evidence:
    """What is known of one disagreement."""

    def __init__(
        self,
        subject: Subject,
        direction: list[Tensor],
        cotangents: list[Tensor],
        referee: Differences,
        origin: list[Tensor] | None,
    ) -> None:
        self.subject, self.direction, self.cotangents = subject, direction, cotangents
        self.referee, self.origin = referee, origin
        self.tangent: list[Tensor] | None = None
        self.pulled: list[Tensor] | None = None
        self.wrong: dict[str, float] = {}  # by mode, relative
        self.errors: dict[str, BaseException] = {}

    def disagrees(self, referee: Differences) -> dict[str, float]:
        """The modes that disagree with a referee, and by how much."""
        found = {}
        if self.tangent is not None:
            agrees, off, _ = gap(self.tangent, referee)
            if not agrees:
                found["forward"] = off
        if self.pulled is not None:
            off = self.reverse_gap(referee)
            if off:
                found["reverse"] = off
        return found

    def reverse_gap(self, referee: Differences) -> float:
        """|⟨Jᵀu, v⟩ − ⟨u, D⟩| relative to the size of the products; 0 when within the bounds."""
        assert self.pulled is not None
        got = inner(self.pulled, self.direction)
        expected, size, noise = 0.0, 0.0, 0.0
        for u, d, t in zip(self.cotangents, referee.values, referee.tolerances(0.0), strict=True):
            w = real_vector(u)
            expected += float(torch.dot(w, d))
            size += float((w * d).abs().sum())
            noise += float((w * t).norm())
        reached = sum(
            float((real_vector(g) * real_vector(v)).abs().sum())
            for g, v in zip(self.pulled, self.direction, strict=True)
        )
        off, scale = abs(got - expected), max(size, abs(got), 1e-300)
        if off != off:
            return float("inf")
        agrees = off <= 1e-7 * scale + 1e-13 * reached + 4 * noise
        return 0.0 if agrees else off / scale


def causes(evidence: Evidence) -> list[Finding]:
    """The findings that explain a disagreement."""
    findings: list[Finding] = []
    subject, direction = evidence.subject, evidence.direction
    modes = dict(evidence.wrong)
    referee = evidence.referee
    lost = losses(subject, direction, referee.step if referee.side == 0 else referee.step / 2, evidence.origin)
    if lost is not None and lost.blamed:
        concerned = tuple(sorted(set(modes) | set(evidence.errors)))
        findings += [lost_finding(e, concerned) for e in lost.blamed]
        modes = evidence.disagrees(lost.held)
        referee = lost.held
    if not modes:
        return findings + failures(evidence, findings)
    local = LocalCheck(reverse="reverse" in modes)
    patched: list[Tensor] | None = None
    with contextlib.suppress(RuntimeError):  # forward mode itself may fail on the way
        patched = subject.push(direction, local, evidence.origin)
    for s in local.suspects[:4]:
        concerned = [
            m for m, off in (("forward", s.forward), ("reverse", s.reverse)) if off and (m in modes or s.whole)
        ]
        if concerned:
            findings.append(rule_finding(s, tuple(concerned)))
    left = dict(modes)
    if local.suspects and patched is not None and gap(patched, referee)[0]:
        left.pop("forward", None)
        if any(s.reverse for s in local.suspects):
            left.pop("reverse", None)
    if any(f.kind == "wrong-rule" for f in findings):
        return findings + failures(evidence, findings)
    if "forward" in left:
        place = first_forward(subject, direction, referee.step, evidence.origin)
        if place is not None:
            if all(f.source != place.source for f in findings):
                findings.append(hidden_finding(place, tuple(sorted(modes))))
            return findings + failures(evidence, findings)
    if "reverse" in left:
        with contextlib.suppress(RuntimeError):
            step = min(referee.step, STEP * base_step(subject.point, direction))
            place = first_reverse(subject, direction, evidence.cotangents, step, evidence.origin)
            if place is not None:
                findings.append(
                    Finding(
                        "wrong-rule",
                        place.operator,
                        place.source,
                        ("reverse",),
                        place.message + f" (off by {place.relative:.1e})",
                        wrong=True,
                    )
                )
                return findings + failures(evidence, findings)
    if local.cancelled[0] > CANCELS and not findings:
        ratio, operator, source = local.cancelled
        findings.append(
            Finding(
                "rounding",
                operator,
                source,
                tuple(sorted(modes)),
                f"each operator's rule is right, but `{operator}` subtracts values that agree in all but a part of "
                f"1e-{min(len(str(int(min(ratio, 1e30)))) - 1, 16)}: "
                "even in float64 neither differences nor derivatives keep digits here. Rewrite the formula (log1p, "
                "expm1, hypot, sin² for 1 − cos).",
            )
        )
        return findings
    if not findings:
        off = ", ".join(f"{m} by {o:.1e}" for m, o in modes.items())
        findings.append(
            Finding(
                "wrong-rule",
                subject.name,
                "<unknown>",
                tuple(sorted(modes)),
                f"the derivative differs from differences ({off}), while each operator alone agrees: the function "
                "depends on its inputs by a way that "
                "is not seen here.",
                wrong=True,
            )
        )
    return findings + failures(evidence, findings)


def lost_finding(e: Any, modes: tuple[str, ...]) -> Finding:
    """The finding for an event that ends a derivative."""
    if e.kind == "no_grad":
        text = (
            f"`{e.name}` at {e.source} runs under torch.no_grad(): the output depends on it, and no derivative passes."
        )
    elif e.kind == "stop":
        text = (
            f"`{e.name}` at {e.source} stops the derivative, but the output depends on its value: that part "
            "is left out."
        )
    else:
        text = (
            f"`{e.name}` at {e.source} reads a value as a Python number or array: the output depends on it, and no "
            "derivative passes. Stay with tensors."
        )
    if "autograd.grad" in e.name:
        text += " Write create_graph=True, or use pf.grad."
    return Finding("lost-derivative", e.name, e.source, modes or ("forward", "reverse"), text, wrong=True)


def rule_finding(s: Suspect, modes: tuple[str, ...]) -> Finding:
    """The finding for an operator whose own rule is wrong."""
    parts = []
    if "forward" in modes and s.forward:
        parts.append(f"forward mode off by {s.forward:.1e}")
    if "reverse" in modes and s.reverse:
        parts.append(f"reverse mode {'fails: ' + s.failure if s.failure else f'off by {s.reverse:.1e}'}")
    text = f"alone, on inputs of sizes {s.sizes}, against differences of its own value: {', '.join(parts)}."
    if s.whole:
        text = f"{guilty(s, modes)} {text}"
    return Finding(
        "wrong-rule",
        s.operator,
        s.source,
        modes,
        text,
        wrong=True,
        details={"forward": s.forward, "reverse": s.reverse},
    )


def guilty(s: Suspect, modes: tuple[str, ...]) -> str:
    """Which method of a `torch.autograd.Function` is wrong, and where it is."""
    own_jvp = s.function.jvp is not torch.autograd.Function.jvp
    names = []
    if "reverse" in modes or not own_jvp:
        names.append("backward")
    if "forward" in modes and own_jvp:
        names.append("jvp")
    where = []
    for n in names:
        method = getattr(s.function, n)
        with contextlib.suppress(OSError, TypeError):
            where.append(
                f"`{s.operator}.{n}` "
                f"({os.path.basename(inspect.getsourcefile(method) or '?')}:{inspect.getsourcelines(method)[1]})"
            )
    listed = " and ".join(where or [f"`{s.operator}.{n}`" for n in names])
    also = (
        "" if own_jvp or "forward" not in modes else " (forward mode is its transpose: the class has no jvp of its own)"
    )
    return (
        f"{listed} does not belong to `{s.operator}.forward`{also}:"
        if len(names) == 1
        else f"{listed} do not belong to `{s.operator}.forward`:"
    )


def hidden_finding(place: Place, modes: tuple[str, ...]) -> Finding:
    """The finding for a dependence that no operator shows."""
    return Finding(
        "lost-derivative",
        place.operator,
        place.source,
        modes,
        f"`{place.operator}` is the first operator whose value moves with the inputs in a way its tangent does not "
        f"(off by {place.relative:.1e}), though its own "
        "rule is right: something it uses depends on the inputs behind torch's back (numpy memory, a cache, a write "
        "through `.data`).",
        wrong=True,
    )


def failures(evidence: Evidence, findings: list[Finding]) -> list[Finding]:
    """Findings for modes that raised, unless something else explains them."""
    made = []
    for mode, error in evidence.errors.items():
        source = error_line(error)
        if any(f.source == source or (f.kind == "lost-derivative" and f.wrong) for f in findings):
            continue
        made.append(
            Finding(
                "wrong-rule",
                evidence.subject.name,
                source,
                (mode,),
                f"{mode} mode fails: {type(error).__name__}: {str(error).splitlines()[0]}",
                wrong=True,
            )
        )
    return made


def error_line(error: BaseException) -> str:
    """The user's line that an error came from."""
    from ..core.source import is_library_file

    found = "<unknown>"
    frame = error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if not is_library_file(name):
            found = f"{os.path.basename(name)}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found
