"""`check`: is this derivative right, and if it looks wrong, why.

One direction v and one weight u, drawn once: forward mode gives Jv, reverse mode Jᵀu, differences along v are the referee. All in
float64; the function's own type is compared with that. Order n repeats it with x ↦ J(x)ᵀu in place of the function.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from .casts import lost_in_casts
from .curve import Curve, curve
from .diagnose import Evidence, causes, error_line
from .differences import STEP, Differences, base_step, best, central, gap, quality
from .kinks import Kink, both_sides, crosses, kinks, settle
from .local import LocalCheck
from .nans import NanError, debug_nans
from .precision import narrow_type, rounding
from .repeat import python_state, repeated
from .report import CheckReport, Finding, Row
from .subject import Subject, differentiable, inner, real_vector, subject_of, wide_subject_of
from .survey import Survey

Tensor = torch.Tensor
MODES = ("forward", "reverse")
HARMLESS = 1e-5  # relative difference that a crossed kink may leave unmentioned
COARSE, BLUNT = 1e-5, 1e-3  # relative bounds of differences: try other steps; judge operators one by one


def check(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any = None,
    cotangents: Any = None,
    *,
    order: int = 1,
    modes: Sequence[str] = MODES,
    seed: int = 0,
) -> CheckReport:
    """Compare forward mode, reverse mode and differences of a function at a point, and explain what differs.

    Args:
        func: a function or module; returns a tensor or a pytree of tensors. Parameters of a module are checked as inputs are.
        primals: a tuple of inputs (tensors or pytrees of them).
        tangents: the direction, like primals; drawn at random when not given.
        cotangents: the weights of the outputs, like the output; drawn at random when not given.
        order: the highest derivative to check: 1, 2, 3, …
        modes: "forward", "reverse" or both.
        seed: for the random directions.

    Returns:
        A `CheckReport`: `ok` is False only for what is wrong in the function; kinks and rounding that explain a difference are
        findings of an ok report.

    Raises:
        ArgumentError: modes, order or tangents do not fit. What is wrong in the function raises nothing.

    Example:
        >>> import torch, pushforward as pf
        >>> report = pf.check(lambda x: x * x.detach(), (torch.ones(2),))
        >>> report.ok, report.findings[0].kind, report.findings[0].operator
        (False, 'lost-derivative', '.detach()')
    """
    unknown = [m for m in modes if m not in MODES]
    if unknown or not modes or not isinstance(order, int) or order < 1:
        msg = f"check: modes are {list(MODES)} and order is a positive int; modes={list(modes)!r} and order={order!r} were given"
        raise ArgumentError(msg)
    primals = primals if isinstance(primals, (tuple, list)) else (primals,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Examination(func, tuple(primals), tangents, cotangents, tuple(modes), seed).run(order)


class Examination:
    """One check on its way."""

    def __init__(self, func: Any, primals: Any, tangents: Any, cotangents: Any, modes: tuple[str, ...], seed: int) -> None:
        self.func, self.primals, self.modes = func, primals, modes
        self.given = subject_of(func, primals)
        if not self.given.point:
            msg = f"check({self.given.name}): there is no floating-point input to differentiate by"
            raise ArgumentError(msg)
        # Far from the seeds people use: a direction equal to an input drawn by manual_seed(0) would be a special one.
        self.generator = torch.Generator().manual_seed(982451653 + seed)
        self.tangents, self.cotangents = tangents, cotangents
        self.subjects = [self.given]
        self.known: tuple[Subject, list[Tensor], list[Tensor]] | None = None
        sizes = ", ".join(f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in self.given.point[:4])
        self.report = CheckReport(self.given.name, sizes + (", …" if len(self.given.point) > 4 else ""))

    def run(self, order: int) -> CheckReport:
        """The whole check."""
        start = time.perf_counter()
        self.orders(order)
        self.report.evaluations = sum(s.calls for s in self.subjects)
        self.report.seconds = time.perf_counter() - start
        return self.report

    def orders(self, order: int) -> None:
        """One order after the other, as long as nothing is wrong."""
        report = self.report
        try:
            _, survey, found, repeatable = repeated(self.given, lambda: python_state(self.func))
        except Exception as error:
            report.findings.append(
                Finding("wrong-rule", self.given.name, error_line(error), (), f"the function itself fails: {type(error).__name__}: {error}", wrong=True)
            )
            return
        report.findings += found
        if not repeatable:
            return
        dtype = narrow_type(self.given, survey.narrow)
        subject = self.wide() if dtype is not None else self.given
        direction = self.direction(subject)
        value = subject.values(subject.point)
        cotangents = self.weights(value)
        if not all(bool(torch.isfinite(v).all()) for v in value):
            report.findings.append(self.nan(lambda: subject.values(subject.point), "value", ()))
            return
        tangent, pulled = self.examine(subject, direction, cotangents, 1)
        if tangent is not None:
            self.known = subject, direction, tangent
        if dtype is not None and (tangent is not None or pulled is not None) and subject is not self.given:
            try:
                rows, more = rounding(self.given, subject, direction, tangent, pulled, cotangents, dtype)
                report.rows += rows
                known = {(f.operator, f.source) for f in report.findings if f.kind == "kink"}
                report.findings += [f for f in more if f.kind != "kink" or (f.operator, f.source) not in known]
            except Exception as error:
                report.notes.append(f"in {dtype} the derivative fails: {type(error).__name__}: {str(error).splitlines()[0]}")
        weights = cotangents
        for k in range(2, order + 1):
            if not report.ok:
                report.notes.append(f"order {k} was not checked: order {k - 1} is wrong")
                break
            subject = subject.gradient(weights)
            self.subjects.append(subject)
            weights = [self.normal(x) for x in subject.point]
            self.examine(subject, direction, weights, k)

    def wide(self) -> Subject:
        """The copy in float64; the function as given where that fails."""
        try:
            made = wide_subject_of(self.func, self.primals)
            _, survey, _, _ = repeated(made, dict)
        except Exception as error:
            self.report.notes.append(f"no float64 copy ({type(error).__name__}: {str(error).splitlines()[0]}): compared in the type given")
            return self.given
        del survey
        self.subjects.append(made)
        return made

    def normal(self, x: Tensor) -> Tensor:
        """Random numbers like a leaf."""
        kind = torch.complex128 if x.is_complex() else torch.float64
        return torch.randn(x.shape, dtype=kind, generator=self.generator).to(device=x.device, dtype=x.dtype)

    def direction(self, subject: Subject) -> list[Tensor]:
        """The tangents given, or random ones of each leaf's own size."""
        if self.tangents is None:
            made = []
            for x in subject.point:
                size = float(x.abs().to(torch.float64).square().mean().sqrt()) if x.numel() else 1.0
                made.append(self.normal(x) * (size or 1.0))
            return made
        tangents = self.tangents if isinstance(self.tangents, (tuple, list)) else (self.tangents,)
        leaves = tree.leaves(tuple(self.primals))
        flat = tree.leaves(tuple(tangents))
        if len(flat) != len(leaves):
            msg = f"check({self.given.name}): the tangents have {len(flat)} leaves, the primals {len(leaves)}"
            raise ArgumentError(msg)
        chosen = [t for x, t in zip(leaves, flat, strict=True) if differentiable(x)]
        made = [
            torch.zeros_like(x) if t is None else t.detach().to(x.dtype) for x, t in zip(subject.point, chosen, strict=False)
        ]
        for x, t in zip(subject.point, made, strict=False):
            if x.shape != t.shape:
                msg = f"check({self.given.name}): a tangent of shape {list(t.shape)} for a primal of shape {list(x.shape)}"
                raise ArgumentError(msg)
        return made + [torch.zeros_like(x) for x in subject.point[len(made) :]]

    def weights(self, value: list[Tensor]) -> list[Tensor]:
        """The cotangents given, or random ones."""
        if self.cotangents is None:
            return [self.normal(v) for v in value]
        flat = [c for c in tree.leaves(self.cotangents) if differentiable(c)]
        if len(flat) != len(value) or any(c.shape != v.shape for c, v in zip(flat, value, strict=True)):
            msg = f"check({self.given.name}): cotangents {[list(c.shape) for c in flat]} for outputs {[list(v.shape) for v in value]}"
            raise ArgumentError(msg)
        return [c.detach().to(v.dtype) for c, v in zip(flat, value, strict=True)]

    def examine(
        self, subject: Subject, direction: list[Tensor], cotangents: list[Tensor], order: int
    ) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """One order: derivatives, differences, and the reasons where they differ."""
        report = self.report
        base = Survey()
        subject.values(subject.point, base)
        step = STEP * base_step(subject.point, direction)
        referee = central(subject, direction, step)
        evidence = self.derivatives(subject, direction, cotangents, referee, None, order)
        if evidence is None:
            return None, None
        tangent, pulled = evidence.tangent, evidence.pulled
        crossed = crosses(base, referee)
        wrong = evidence.disagrees(referee)
        if crossed:
            wrong = self.near_kinks(subject, direction, cotangents, base, referee, evidence, wrong, step, order)
        else:
            if wrong or quality(referee) > COARSE:
                referee = best([referee, *self.ladder(subject, direction, base, step)])
                evidence.referee = referee
                wrong = evidence.disagrees(referee)
            self.compare(evidence, referee, wrong, order, "")
            if not wrong and quality(referee) > BLUNT:
                wrong = self.wrong_alone(evidence)
                report.notes.append(
                    f"differences are good to {quality(referee):.0e} only (rounding inside the function, or a derivative that changes fast); each operator was "
                    f"compared alone: {'wrong' if wrong else 'all are right'}"
                )
        evidence.wrong = wrong
        if wrong or evidence.errors:
            report.findings += causes(evidence)
        elif order == 1:
            report.findings += lost_in_casts(subject, direction, base, tangent, step)
        if order > 1 and not wrong and tangent is not None:
            self.symmetric(subject, direction, cotangents, tangent, order)
        return tangent, pulled

    def derivatives(
        self, subject: Subject, direction: list[Tensor], cotangents: list[Tensor], referee: Differences, origin: Any, order: int
    ) -> Evidence | None:
        """Forward and reverse mode at a point; None, with a finding, where they are not finite."""
        evidence = Evidence(subject, direction, cotangents, referee, origin)
        for mode in self.modes:
            try:
                if mode == "forward":
                    evidence.tangent = found = subject.push(direction, None, origin)
                else:
                    evidence.pulled = found = subject.pull(cotangents, None, origin)
            except Exception as error:
                evidence.errors[mode] = error
                continue
            if not all(bool(torch.isfinite(t).all()) for t in found):
                what = "tangent" if mode == "forward" else "cotangent"
                run = (lambda: subject.push(direction)) if mode == "forward" else (lambda: subject.pull(cotangents))
                self.report.findings.append(self.nan(run, what, (mode,)))
                self.report.rows.append(Row(label(mode, order), "differences", float("inf"), False))
                return None
        return evidence

    def ladder(self, subject: Subject, direction: list[Tensor], base: Survey, step: float) -> list[Differences]:
        """Differences with larger and smaller steps, those that cross no kink."""
        made = [central(subject, direction, step * factor) for factor in (30.0, 600.0, 1 / 30)]
        return [d for d in made if not crosses(base, d)]

    def near_kinks(
        self, subject: Subject, direction: list[Tensor], cotangents: list[Tensor], base: Survey, referee: Differences,
        evidence: Evidence, wrong: dict[str, float], step: float, order: int,
    ) -> dict[str, float]:
        """Steps cross a kink: look closer. Gives the modes that are wrong all the same."""
        report = self.report
        found = kinks(subject, direction, base, referee)
        exact = [k for k in found if k.reach == 0.0]
        if not wrong and self.largest_gap(evidence, referee) < HARMLESS:
            self.compare(evidence, referee, wrong, order, "")
            text = self.sides(subject, direction, cotangents, step) if exact else ""
            if text:
                self.kink_findings(found, step, text, exact)
            return {}
        settled = settle(subject, direction, base, referee, found, step)
        name = found[0].operator if found else "a decision"
        self.compare(evidence, referee, wrong, order, f"(the step crosses the kink of `{name}`)", judged=False)
        if settled is None:
            self.kink_findings(found, step, "No step and no point nearby avoids it; each operator alone was compared instead.", exact)
            return self.wrong_alone(evidence)
        if settled.origin is not None:
            moved = self.derivatives(subject, direction, cotangents, settled.differences, settled.origin, order)
            if moved is None:
                return {}
            evidence.origin, evidence.tangent, evidence.pulled, evidence.errors = (
                settled.origin, moved.tangent, moved.pulled, moved.errors,
            )
        evidence.referee = settled.differences
        left = evidence.disagrees(settled.differences)
        self.compare(evidence, settled.differences, left, order, f"({settled.how})")
        how = f"Compared again {settled.how}, they {'still differ' if left else 'agree'}."
        if exact:
            how = f"{self.sides(subject, direction, cotangents, step)} {how}".strip()
        self.kink_findings(found, step, how, exact)
        return left

    def wrong_alone(self, evidence: Evidence) -> dict[str, float]:
        """The modes in which some operator's own rule is wrong, where differences of the whole function cannot tell."""
        if "forward" in evidence.errors:
            return {}
        local = LocalCheck(reverse="reverse" in self.modes)
        evidence.subject.push(evidence.direction, local, evidence.origin)
        found = {"forward": max((s.forward for s in local.suspects), default=0.0), "reverse": max((s.reverse for s in local.suspects), default=0.0)}
        return {m: off for m, off in found.items() if off and m in self.modes}

    def largest_gap(self, evidence: Evidence, referee: Differences) -> float:
        """The largest relative difference of a mode from differences, whatever their bounds."""
        off = 0.0 if evidence.tangent is None else gap(evidence.tangent, referee)[1]
        return max(off, 0.0 if evidence.pulled is None else self.plain_gap(evidence, referee))

    def sides(self, subject: Subject, direction: list[Tensor], cotangents: list[Tensor], step: float) -> str:
        """The one-sided derivatives at a kink, weighted by u, and what each mode gives; empty where they are equal."""
        left, right = both_sides(subject, direction, step / 30)
        weights = [real_vector(u) for u in cotangents]
        low = sum(float(torch.dot(w, d)) for w, d in zip(weights, left, strict=True))
        high = sum(float(torch.dot(w, d)) for w, d in zip(weights, right, strict=True))
        if all(torch.allclose(a, b, rtol=1e-5, atol=1e-9 * float(a.abs().max() if a.numel() else 0)) for a, b in zip(left, right, strict=True)):
            return ""
        parts = [f"from the left {low:.6g}, from the right {high:.6g}"]
        for mode in self.modes:
            if mode == "forward":
                got = sum(float(torch.dot(w, real_vector(t))) for w, t in zip(weights, subject.push(direction), strict=True))
            else:
                got = inner(subject.pull(cotangents), direction)
            parts.append(f"{mode} mode gives {got:.6g} ({which(got, low, high)})")
        return f"⟨u, Jv⟩ is {'; '.join(parts)}."

    def kink_findings(self, found: list[Kink], step: float, how: str, exact: list[Kink]) -> None:
        """A finding for each operator whose kink lies within the step."""
        shown = {(k.operator, k.source): k for k in reversed(exact or found)}
        for k in list(shown.values())[::-1][:4]:
            self.report.findings.append(
                Finding(
                    "kink", k.operator, k.source, self.modes, f"{k.sentence(step)}. {how}",
                    details={"elements": k.elements, "margin": k.margin, "reach": k.reach},
                )
            )

    def compare(self, evidence: Evidence, referee: Differences, wrong: dict[str, float], order: int, note: str, *, judged: bool = True) -> None:
        """Rows of the report: each mode against differences, and against each other."""
        report = self.report
        against = f"differences (step {referee.step:.1e}, good to {quality(referee):.0e})"
        if evidence.tangent is not None:
            off = gap(evidence.tangent, referee)[1]
            report.rows.append(Row(label("forward", order), against, off, "forward" not in wrong if judged else None, note))
        if evidence.pulled is not None:
            off = self.plain_gap(evidence, referee)
            report.rows.append(Row(label("reverse", order), against, off, "reverse" not in wrong if judged else None, note))
        if evidence.tangent is not None and evidence.pulled is not None and judged:
            a, b = inner(evidence.cotangents, evidence.tangent), inner(evidence.pulled, evidence.direction)
            size = sum(float((real_vector(u) * real_vector(t)).abs().sum()) for u, t in zip(evidence.cotangents, evidence.tangent, strict=True))
            off = abs(a - b) / max(size, 1e-300) if a != b else 0.0
            reached = sum(float((real_vector(g) * real_vector(v)).abs().sum()) for g, v in zip(evidence.pulled, evidence.direction, strict=True))
            agrees = abs(a - b) <= 1e-9 * (size + reached)
            report.rows.append(Row(f"⟨u, Jv⟩{' order ' + str(order) if order > 1 else ''}", "⟨Jᵀu, v⟩", off, agrees))
            if not agrees and not wrong:
                wrong["reverse"] = off

    def plain_gap(self, evidence: Evidence, referee: Differences) -> float:
        """The relative difference of reverse mode's inner product from that of differences."""
        assert evidence.pulled is not None
        weights = [real_vector(u) for u in evidence.cotangents]
        expected = sum(float(torch.dot(w, d)) for w, d in zip(weights, referee.values, strict=True))
        size = sum(float((w * d).abs().sum()) for w, d in zip(weights, referee.values, strict=True))
        return abs(inner(evidence.pulled, evidence.direction) - expected) / max(size, 1e-300)

    def symmetric(self, subject: Subject, direction: list[Tensor], weights: list[Tensor], pushed: list[Tensor], order: int) -> None:
        """⟨w, Hv⟩ = ⟨v, Hw⟩ for the derivative of a gradient."""
        other = subject.push(weights)
        a, b = inner(weights, pushed), inner(direction, other)
        size = sum(float((real_vector(w) * real_vector(t)).abs().sum()) for w, t in zip(weights, pushed, strict=True))
        size += sum(float((real_vector(w) * real_vector(t)).abs().sum()) for w, t in zip(direction, other, strict=True))
        agrees = abs(a - b) <= 1e-9 * size
        self.report.rows.append(Row(f"⟨w, Hv⟩ order {order}", "⟨v, Hw⟩", abs(a - b) / max(size, 1e-300), agrees))
        if not agrees:
            self.report.findings.append(
                Finding("wrong-rule", subject.name, "<unknown>", self.modes, f"the derivative of order {order} is not symmetric: off by {abs(a - b) / size:.1e}", wrong=True)
            )

    def curve(self) -> Curve | None:
        """The error of differences over the step, once the check has run; None where there was no tangent."""
        if self.known is None:
            return None
        subject, direction, tangent = self.known
        subjects = {"float64": subject} if subject is not self.given else {}
        subjects[str(self.given.point[0].dtype).removeprefix("torch.")] = self.given
        kinks = [
            (f.details["reach"], f"{f.operator} at {f.source}") for f in self.report.findings if f.kind == "kink" and f.details.get("reach") is not None
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return curve(subjects, direction, tangent, kinks)

    def nan(self, run: Callable[[], Any], role: str, modes: tuple[str, ...]) -> Finding:
        """The finding for a NaN or an infinity: the first operator that makes one."""
        try:
            with debug_nans():
                run()
        except NanError as error:
            return Finding("nan", error.operator, error.source, modes, str(error), wrong=True)
        except Exception as error:
            return Finding("nan", self.given.name, error_line(error), modes, f"the {role} is not finite: {error}", wrong=True)
        return Finding("nan", self.given.name, "<unknown>", modes, f"the {role} is not finite, and was so from the start", wrong=True)


def which(got: float, low: float, high: float) -> str:
    """Which of two one-sided derivatives a value is."""
    size = max(abs(low), abs(high), 1e-300)
    for value, name in ((low, "the left one"), (high, "the right one"), ((low + high) / 2, "their mean")):
        if abs(got - value) <= 1e-4 * size:
            return name
    return "between them" if min(low, high) < got < max(low, high) else "neither"


def label(mode: str, order: int) -> str:
    """Words for a derivative."""
    if order == 1:
        return f"{mode} mode"
    return f"{mode} over reverse, order {order}"
