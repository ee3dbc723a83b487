"""`check`: is this derivative right, and if it looks wrong, why.

One direction v and one weight u, drawn once: forward mode gives Jv, reverse mode Jᵀu, differences along v are the
referee. All in float64; the function's own type is compared with that. Order n repeats it with x ↦ J(x)ᵀu in place of
the function.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.words import check_function, kind, without_derivative
from .curve import Curve, curve
from .diagnose import error_line
from .order import Order, not_finite
from .precision import narrow_type, rounding
from .repeat import python_state, repeated
from .report import CheckReport, Finding
from .subject import Subject, differentiable, subject_of, wide_subject_of

Tensor = torch.Tensor
MODES = ("forward", "reverse")
# Far from the seeds people use: a direction equal to an input drawn by manual_seed(0) would be a special one.
SEED = 982451653


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
        func: a function or module; returns a tensor or a pytree of tensors. Parameters of a module are inputs, too.
        primals: a tuple of inputs (tensors or pytrees of them).
        tangents: the direction, like primals; drawn at random when not given.
        cotangents: the weights of the outputs, like the output; drawn at random when not given.
        order: the highest derivative to check: 1, 2, 3, …
        modes: "forward", "reverse" or both.
        seed: for the random directions.

    Returns:
        A `CheckReport`: `ok` is False only for what is wrong in the function; kinks and rounding that explain a
        difference are findings of an ok report.

    Raises:
        ArgumentError: modes, order or tangents do not fit. What is wrong in the function raises nothing.

    Example:
        >>> import torch, pushforward as pf
        >>> report = pf.check(lambda x: x * x.detach(), (torch.ones(2),))
        >>> report.ok, report.findings[0].kind, report.findings[0].operator
        (False, 'lost-derivative', '.detach()')
    """
    modes = (modes,) if isinstance(modes, str) or not isinstance(modes, Iterable) else tuple(modes)
    unknown = [m for m in modes if m not in MODES]
    if not isinstance(seed, int):
        msg = f"check: seed is {seed!r}; it must be an int"
        raise ArgumentError(msg)
    if unknown or not modes or not isinstance(order, int) or order < 1:
        given = f"modes={list(modes)!r} and order={order!r} were given"
        msg = f"check: modes are among {list(MODES)} and order is a positive int; {given}"
        raise ArgumentError(msg)
    check_function("check", func, "check(f, (x,))")
    primals = primals if isinstance(primals, (tuple, list)) else (primals,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Examination(func, tuple(primals), tangents, cotangents, tuple(modes), seed).run(order)


def without_outputs(subject: Subject) -> Finding:
    """The finding for a function whose output has no derivative: of integers it is zero, of anything else it is lost."""
    text = f"the function returns no floating-point tensor, but {kind(subject.returned)}: there is no derivative to check"
    wrong = not any(isinstance(o, Tensor) for o in tree.leaves(subject.returned))
    return Finding("lost-derivative", subject.name, "its return", (), text, wrong=wrong)


class Examination:
    """One check on its way."""

    def __init__(
        self, func: Any, primals: Any, tangents: Any, cotangents: Any, modes: tuple[str, ...], seed: int
    ) -> None:
        self.func, self.primals, self.modes = func, primals, modes
        self.given = subject_of(func, primals)
        if not self.given.point:
            told = without_derivative(tree.leaves(primals), tree.paths(primals, "primals"))
            msg = f"check({self.given.name}): there is no floating-point input to differentiate by: {told}"
            raise ArgumentError(msg)
        self.generator = torch.Generator().manual_seed(SEED + seed)
        self.tangents, self.cotangents = tangents, cotangents
        self.subjects = [self.given]
        self.known: tuple[Subject, list[Tensor], list[Tensor]] | None = None
        sizes = ", ".join(f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in self.given.point[:4])
        self.report = CheckReport(self.given.name, sizes + (", …" if len(self.given.point) > 4 else ""))

    def run(self, order: int) -> CheckReport:
        """The whole check."""
        start = time.perf_counter()
        try:
            self.orders(order)
        finally:
            for subject in self.subjects:
                subject.before()
        self.report.evaluations = sum(s.calls for s in self.subjects)
        self.report.seconds = time.perf_counter() - start
        return self.report

    def orders(self, order: int) -> None:
        """One order after the other, as long as nothing is wrong."""
        report = self.report
        try:
            _, survey, found, repeatable = repeated(self.given, lambda: python_state(self.func))
        except Exception as error:
            text = f"the function itself fails: {type(error).__name__}: {error}"
            report.findings.append(Finding("wrong-rule", self.given.name, error_line(error), (), text, wrong=True))
            return
        report.findings += found
        if not repeatable:
            return
        dtype = narrow_type(self.given, survey.narrow)
        subject = self.wide() if dtype is not None else self.given
        direction = self.direction(subject)
        value = subject.values(subject.point)
        if not value:
            report.findings.append(without_outputs(subject))
            return
        cotangents = self.weights(value)
        if not all(bool(torch.isfinite(v).all()) for v in value):
            report.findings.append(not_finite(subject.name, lambda: subject.values(subject.point), "value", ()))
            return
        tangent, pulled = Order(subject, direction, cotangents, 1, self.modes, report).examine()
        if tangent is not None:
            self.known = subject, direction, tangent
        if dtype is not None and (tangent is not None or pulled is not None) and subject is not self.given:
            self.own_type(subject, direction, tangent, pulled, cotangents, dtype)
        weights = cotangents
        for k in range(2, order + 1):
            if not report.ok:
                report.notes.append(f"order {k} was not checked: order {k - 1} is wrong")
                break
            subject = subject.gradient(weights)
            weights = [self.normal(x) for x in subject.point]
            Order(subject, direction, weights, k, self.modes, report).examine()

    def own_type(
        self, wide: Subject, direction: list[Tensor], tangent: Any, pulled: Any, cotangents: list[Tensor], dtype: Any
    ) -> None:
        """The function in the type given beside its copy in float64."""
        report = self.report
        try:
            rows, found = rounding(self.given, wide, direction, tangent, pulled, cotangents, dtype)
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else ""
            report.notes.append(f"in {dtype} the derivative fails: {type(error).__name__}: {first}")
            return
        report.rows += rows
        known = {(f.operator, f.source) for f in report.findings if f.kind == "kink"}
        report.findings += [f for f in found if f.kind != "kink" or (f.operator, f.source) not in known]

    def wide(self) -> Subject:
        """The copy in float64; the function as given where that fails."""
        try:
            made = wide_subject_of(self.func, self.primals)
            repeated(made, dict)
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else ""
            self.report.notes.append(
                f"there is no float64 copy ({type(error).__name__}: {first}): compared in the type given"
            )
            return self.given
        self.subjects.append(made)
        return made

    def normal(self, x: Tensor) -> Tensor:
        """Random numbers like a leaf."""
        kind = torch.complex128 if x.is_complex() else torch.float64
        return torch.randn(x.shape, dtype=kind, generator=self.generator).to(device=x.device, dtype=x.dtype)

    def direction(self, subject: Subject) -> list[Tensor]:
        """The tangents given, or random ones of each leaf's own size."""
        made = []
        if self.tangents is None:
            for x in subject.point:
                size = float(x.abs().to(torch.float64).square().mean().sqrt()) if x.numel() else 1.0
                made.append(self.normal(x) * (size or 1.0))
            return made
        tangents = self.tangents if isinstance(self.tangents, (tuple, list)) else (self.tangents,)
        leaves, flat = tree.leaves(tuple(self.primals)), tree.leaves(tuple(tangents))
        if len(flat) != len(leaves):
            msg = f"check({self.given.name}): the tangents have {len(flat)} leaves, the primals {len(leaves)}"
            raise ArgumentError(msg)
        chosen = [t for x, t in zip(leaves, flat, strict=True) if differentiable(x)]
        for x, t, path in zip(subject.point, chosen, subject.names, strict=False):
            if t is not None and not isinstance(t, Tensor):
                msg = f"check({self.given.name}): {path} is {kind(x)}, its tangent {kind(t)}; a tangent is a tensor of that shape"
                raise ArgumentError(msg)
            if t is not None and x.shape != t.shape:
                msg = (
                    f"check({self.given.name}): {path} has shape {list(x.shape)}, its tangent {list(t.shape)}; "
                    "they must agree"
                )
                raise ArgumentError(msg)
            made.append(torch.zeros_like(x) if t is None else t.detach().to(x.dtype))
        return made + [torch.zeros_like(x) for x in subject.point[len(made) :]]

    def weights(self, value: list[Tensor]) -> list[Tensor]:
        """The cotangents given, or random ones."""
        if self.cotangents is None:
            return [self.normal(v) for v in value]
        for c in tree.leaves(self.cotangents):
            if not isinstance(c, Tensor):
                msg = f"check({self.given.name}): among the cotangents is {kind(c)}; they are tensors of the outputs' shapes"
                raise ArgumentError(msg)
        flat = [c for c in tree.leaves(self.cotangents) if differentiable(c)]
        if [c.shape for c in flat] != [v.shape for v in value]:
            shapes = [list(c.shape) for c in flat], [list(v.shape) for v in value]
            msg = f"check({self.given.name}): cotangents of shapes {shapes[0]} for outputs of shapes {shapes[1]}"
            raise ArgumentError(msg)
        return [c.detach().to(v.dtype) for c, v in zip(flat, value, strict=True)]

    def curve(self) -> Curve | None:
        """The error of differences over the step, once the check has run; None where there was no tangent."""
        if self.known is None:
            return None
        subject, direction, tangent = self.known
        subjects = {"float64": subject} if subject is not self.given else {}
        subjects[str(self.given.point[0].dtype).removeprefix("torch.")] = self.given
        kinks = [
            (f.details["reach"], f"{f.operator} at {f.source}")
            for f in self.report.findings
            if f.kind == "kink" and f.details.get("reach") is not None
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return curve(subjects, direction, tangent, kinks)
