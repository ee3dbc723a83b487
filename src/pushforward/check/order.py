"""One order of a check: derivatives, the referee, and the reasons where they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .casts import lost_in_casts
from .diagnose import Evidence, causes, error_line
from .differences import STEP, Differences, base_step, best, central, gap, quality
from .kinks import Kink, beside, both_sides, crosses, kinks, settle
from .local import LocalCheck
from .nans import NanError, debug_nans
from .report import CheckReport, Finding, Row
from .subject import Subject, inner, real_vector
from .survey import Survey

Tensor = torch.Tensor
HARMLESS = 1e-5  # relative difference that a crossed kink may leave unmentioned
COARSE, BLUNT = 1e-5, 1e-3  # relative bounds of differences: try other steps; judge operators one by one


class Order:
    """A subject, a direction and weights; what is found goes into the report."""

    def __init__(
        self,
        subject: Subject,
        direction: list[Tensor],
        cotangents: list[Tensor],
        order: int,
        modes: tuple[str, ...],
        report: CheckReport,
    ) -> None:
        self.subject, self.direction, self.cotangents = subject, direction, cotangents
        self.order, self.modes, self.report = order, modes, report
        self.step = STEP * base_step(subject.point, direction)

    def examine(self) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Compare, and explain what differs; gives Jv and Jᵀu where they exist."""
        subject, report = self.subject, self.report
        base = Survey()
        subject.values(subject.point, base)
        referee = central(subject, self.direction, self.step)
        evidence = self.derivatives(referee, None)
        if evidence is None:
            return None, None
        tangent, pulled = evidence.tangent, evidence.pulled
        judged = self.near_kinks if crosses(base, referee) else self.smooth
        evidence.wrong = wrong = judged(base, referee, evidence)
        if wrong or evidence.errors:
            report.findings += causes(evidence)
        elif self.order == 1:
            report.findings += lost_in_casts(subject, self.direction, base, tangent, self.step)
        if self.order > 1 and not wrong and tangent is not None:
            self.symmetric(tangent)
        return tangent, pulled

    def derivatives(self, referee: Differences, origin: list[Tensor] | None) -> Evidence | None:
        """Forward and reverse mode at a point; None, with a finding, where they are not finite."""
        subject = self.subject
        evidence = Evidence(subject, self.direction, self.cotangents, referee, origin)
        for mode in self.modes:
            try:
                if mode == "forward":
                    evidence.tangent = found = subject.push(self.direction, None, origin)
                else:
                    evidence.pulled = found = subject.pull(self.cotangents, None, origin)
            except Exception as error:
                evidence.errors[mode] = error
                continue
            if not all(bool(torch.isfinite(t).all()) for t in found):
                role, run = ("tangent", lambda: subject.push(self.direction, None, origin))
                if mode == "reverse":
                    role, run = ("cotangent", lambda: subject.pull(self.cotangents, None, origin))
                self.report.rows.append(Row(self.label(mode), "differences", float("inf"), False))
                self.report.findings.append(not_finite(subject.name, run, role, (mode,)))
                return None
        return evidence

    def smooth(self, base: Survey, referee: Differences, evidence: Evidence) -> dict[str, float]:
        """No step crossed a kink: the modes that are wrong, by how much."""
        wrong = evidence.disagrees(referee)
        if wrong or quality(referee) > COARSE:
            # The usual step may suit a function badly: one that changes fast, or one with rounding inside.
            others = [central(self.subject, self.direction, self.step * k) for k in (30.0, 600.0, 1 / 30)]
            referee = evidence.referee = best([referee, *[d for d in others if not crosses(base, d)]])
            wrong = evidence.disagrees(referee)
        if wrong and self.unseen_kink(evidence):
            self.compare(evidence, referee, wrong, "(a kink at x)", judged=False)
            return {}
        self.compare(evidence, referee, wrong, "")
        if not wrong and quality(referee) > BLUNT:
            wrong = self.wrong_alone(evidence)
            self.report.notes.append(
                f"differences are good to {quality(referee):.0e} only (rounding inside the function, or a derivative "
                f"that changes fast); each operator was compared alone: {'wrong' if wrong else 'all are right'}"
            )
        return wrong

    def unseen_kink(self, evidence: Evidence) -> bool:
        """Whether all is explained by a kink of an operator whose decisions are not known: a finding, if so.

        The slopes on both sides of x differ, the modes lie between them, and beside x all agree.
        """
        left, right = both_sides(self.subject, self.direction, self.step / 30)
        sizes = [max(float(a.abs().max()), float(b.abs().max())) for a, b in zip(left, right, strict=True) if a.numel()]
        jumps = [float((a - b).abs().max()) for a, b in zip(left, right, strict=True) if a.numel()]
        if all(j <= 1e-3 * s for j, s in zip(jumps, sizes, strict=True)):
            return False
        if evidence.tangent is not None:
            for t, a, b in zip(evidence.tangent, left, right, strict=True):
                low, high = torch.minimum(a, b), torch.maximum(a, b)
                slack = 1e-3 * (high - low) + 1e-5 * a.abs().max() if a.numel() else 0.0
                if bool(((real_vector(t) < low - slack) | (real_vector(t) > high + slack)).any()):
                    return False
        origin = beside(self.subject.point, 1e-3, 5)
        referee = central(self.subject, self.direction, self.step / 30, observe=False, origin=origin)
        there = self.derivatives(referee, origin)
        if there is None or there.errors or there.disagrees(referee):
            return False
        local = LocalCheck(reverse=False)
        if "forward" not in evidence.errors:
            self.subject.push(self.direction, local)
        name, source = local.kinked[0] if local.kinked else (self.subject.name, "<unknown>")
        text = f"`{name}` has a kink at x. {self.sides()} Beside x, moved by 1e-03 of the inputs' size, all agree."
        self.report.findings.append(Finding("kink", name, source, self.modes, text))
        return True

    def near_kinks(self, base: Survey, referee: Differences, evidence: Evidence) -> dict[str, float]:
        """Steps crossed a kink: look closer. Gives the modes that are wrong all the same."""
        wrong = evidence.disagrees(referee)
        found = kinks(self.subject, self.direction, base, referee)
        exact = [k for k in found if k.reach == 0.0]
        if not wrong and self.largest_gap(evidence, referee) < HARMLESS:
            self.compare(evidence, referee, wrong, "")
            text = self.sides() if exact else ""
            if text:
                self.kink_findings(exact, text)
            return {}
        settled = settle(self.subject, self.direction, base, found, self.step)
        name = found[0].operator if found else "a decision"
        self.compare(evidence, referee, wrong, f"(the step crosses the kink of `{name}`)", judged=False)
        if settled is None:
            text = "No step and no point nearby avoids it; each operator alone was compared instead."
            self.kink_findings(exact or found, text)
            return self.wrong_alone(evidence)
        if settled.origin is not None:
            moved = self.derivatives(settled.differences, settled.origin)
            if moved is None:
                return {}
            evidence.origin, evidence.errors = settled.origin, moved.errors
            evidence.tangent, evidence.pulled = moved.tangent, moved.pulled
        evidence.referee = settled.differences
        left = evidence.disagrees(settled.differences)
        self.compare(evidence, settled.differences, left, f"({settled.how})")
        how = f"Compared again {settled.how}, they {'still differ' if left else 'agree'}."
        if exact:
            how = f"{self.sides()} {how}".strip()
        self.kink_findings(exact or found, how)
        return left

    def wrong_alone(self, evidence: Evidence) -> dict[str, float]:
        """The modes in which some operator's own rule is wrong, where differences of the whole cannot tell."""
        if "forward" in evidence.errors:
            return {}
        local = LocalCheck(reverse="reverse" in self.modes)
        self.subject.push(self.direction, local, evidence.origin)
        found = {
            "forward": max((s.forward for s in local.suspects), default=0.0),
            "reverse": max((s.reverse for s in local.suspects), default=0.0),
        }
        return {m: off for m, off in found.items() if off and m in self.modes}

    def largest_gap(self, evidence: Evidence, referee: Differences) -> float:
        """The largest relative difference of a mode from differences, whatever their bounds."""
        off = 0.0 if evidence.tangent is None else gap(evidence.tangent, referee)[1]
        return max(off, 0.0 if evidence.pulled is None else self.plain_gap(evidence, referee))

    def sides(self) -> str:
        """The one-sided derivatives at x, weighted by u, and what each mode gives; empty where they are equal."""
        left, right = both_sides(self.subject, self.direction, self.step / 30)
        pairs = list(zip(left, right, strict=True))
        if all(not a.numel() or float((a - b).abs().max()) <= 1e-5 * float(a.abs().max()) for a, b in pairs):
            return ""
        weights = [real_vector(u) for u in self.cotangents]
        low, high = weighted(weights, left), weighted(weights, right)
        parts = [f"from the left {low:.6g}, from the right {high:.6g}"]
        for mode in self.modes:
            if mode == "forward":
                got = weighted(weights, [real_vector(t) for t in self.subject.push(self.direction)])
            else:
                got = inner(self.subject.pull(self.cotangents), self.direction)
            parts.append(f"{mode} mode gives {got:.6g} ({which(got, low, high)})")
        return f"⟨u, Jv⟩ is {'; '.join(parts)}."

    def kink_findings(self, found: list[Kink], how: str) -> None:
        """A finding for each operator whose kink lies within the step."""
        by_line: dict[tuple[str, str], Kink] = {}
        for k in found:
            by_line.setdefault((k.operator, k.source), k)
        for k in list(by_line.values())[:4]:
            details = {"elements": k.elements, "margin": k.margin, "reach": k.reach}
            text = f"{k.sentence(self.step)}. {how}"
            self.report.findings.append(Finding("kink", k.operator, k.source, self.modes, text, details=details))

    def compare(
        self, evidence: Evidence, referee: Differences, wrong: dict[str, float], note: str, *, judged: bool = True
    ) -> None:
        """Rows of the report: each mode against differences, and against each other."""
        rows = self.report.rows
        against = f"differences (step {referee.step:.1e}, good to {quality(referee):.0e})"
        if evidence.tangent is not None:
            off = gap(evidence.tangent, referee)[1]
            rows.append(Row(self.label("forward"), against, off, "forward" not in wrong if judged else None, note))
        if evidence.pulled is not None:
            off = self.plain_gap(evidence, referee)
            rows.append(Row(self.label("reverse"), against, off, "reverse" not in wrong if judged else None, note))
        if evidence.tangent is not None and evidence.pulled is not None and judged:
            a, b = inner(evidence.cotangents, evidence.tangent), inner(evidence.pulled, evidence.direction)
            size = magnitude(evidence.cotangents, evidence.tangent)
            off = abs(a - b) / max(size, 1e-300)
            # Where differences show that digits are lost inside, the two modes lose them differently.
            lost = min(max(1e-9, 0.1 * quality(referee)), 1e-4)
            agrees = abs(a - b) <= lost * (size + magnitude(evidence.pulled, evidence.direction))
            rows.append(Row(f"⟨u, Jv⟩{self.suffix()}", "⟨Jᵀu, v⟩", off, agrees))
            if not agrees and not wrong:
                wrong["reverse"] = off

    def plain_gap(self, evidence: Evidence, referee: Differences) -> float:
        """The relative difference of reverse mode's inner product from that of differences."""
        assert evidence.pulled is not None
        weights = [real_vector(u) for u in evidence.cotangents]
        size = sum(float((w * d).abs().sum()) for w, d in zip(weights, referee.values, strict=True))
        off = inner(evidence.pulled, evidence.direction) - weighted(weights, referee.values)
        return abs(off) / max(size, 1e-300)

    def symmetric(self, pushed: list[Tensor]) -> None:
        """⟨w, Hv⟩ = ⟨v, Hw⟩ for the derivative of a gradient; the weights are directions, too."""
        other = self.subject.push(self.cotangents)
        a, b = inner(self.cotangents, pushed), inner(self.direction, other)
        size = max(magnitude(self.cotangents, pushed) + magnitude(self.direction, other), 1e-300)
        agrees = abs(a - b) <= 1e-9 * size
        self.report.rows.append(Row(f"⟨w, Hv⟩{self.suffix()}", "⟨v, Hw⟩", abs(a - b) / size, agrees))
        if not agrees:
            text = f"the derivative of order {self.order} is not symmetric: off by {abs(a - b) / size:.1e}"
            finding = Finding("wrong-rule", self.subject.name, "<unknown>", self.modes, text, wrong=True)
            self.report.findings.append(finding)

    def label(self, mode: str) -> str:
        """Words for a derivative."""
        return f"{mode} mode" if self.order == 1 else f"{mode} over reverse{self.suffix()}"

    def suffix(self) -> str:
        """The order, where it is not the first."""
        return "" if self.order == 1 else f", order {self.order}"


def weighted(weights: list[Tensor], values: list[Tensor]) -> float:
    """⟨u, D⟩ of float64 vectors."""
    return sum(float(torch.dot(w, d)) for w, d in zip(weights, values, strict=True))


def magnitude(a: list[Tensor], b: list[Tensor]) -> float:
    """Σ |aᵢ bᵢ|: the size of the terms of an inner product."""
    return sum(float((real_vector(x) * real_vector(y)).abs().sum()) for x, y in zip(a, b, strict=True))


def which(got: float, low: float, high: float) -> str:
    """Which of two one-sided derivatives a value is."""
    size = max(abs(low), abs(high), 1e-300)
    for value, name in ((low, "the left one"), (high, "the right one"), ((low + high) / 2, "their mean")):
        if abs(got - value) <= 1e-4 * size:
            return name
    return "between them" if min(low, high) < got < max(low, high) else "neither"


def not_finite(name: str, run: Callable[[], Any], role: str, modes: tuple[str, ...]) -> Finding:
    """The finding for a NaN or an infinity: the first operator that makes one."""
    try:
        with debug_nans():
            run()
    except NanError as error:
        return Finding("nan", error.operator, error.source, modes, str(error), wrong=True)
    except Exception as error:
        text = f"the {role} is not finite: {error}"
        return Finding("nan", name, error_line(error), modes, text, wrong=True)
    return Finding("nan", name, "<unknown>", modes, f"the {role} is not finite, and was so from the start", wrong=True)
