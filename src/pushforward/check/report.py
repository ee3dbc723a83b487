"""What a check found, as data and as a page to act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.errors import TransformError

FindingKind = Literal["wrong-rule", "kink", "rounding", "lost-derivative", "nondeterministic", "state", "nan"]


class WrongDerivativeError(TransformError, AssertionError):
    """A derivative is wrong, and `check(...).raise_if_wrong()` was asked to say so.

    Failing:

    >>> import torch, pushforward as pf
    >>> pf.check(lambda x: x * x.detach(), (torch.ones(2),)).raise_if_wrong()  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.check.report.WrongDerivativeError: ...

    Fixed:

    >>> pf.check(lambda x: x * x, (torch.ones(2),)).raise_if_wrong().ok
    True
    """


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Attributes:
        kind: what it is.
        operator: the operator, or the class of a `torch.autograd.Function`, where it arises.
        source: `file.py:line` of the user's call of it.
        modes: which modes of differentiation it concerns.
        message: a sentence or two for a person.
        wrong: whether it makes the derivative wrong; a kink or rounding explains a difference and is not.
        details: numbers behind the message.
    """

    kind: FindingKind
    operator: str
    source: str
    modes: tuple[str, ...]
    message: str
    wrong: bool = False
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One comparison: what, with what, how far off (relative to the largest entry), and whether that is agreement."""

    what: str
    against: str
    difference: float | None
    agrees: bool | None
    note: str = ""


@dataclass
class CheckReport:
    """The result of `pf.check`: `ok`, `findings`, the comparisons made, and `str()` for a person.

    Example:
        >>> import torch, pushforward as pf
        >>> report = pf.check(torch.sin, (torch.ones(3),))
        >>> report.ok, report.findings
        (True, [])
    """

    name: str
    inputs: str
    findings: list[Finding] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    evaluations: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the derivatives of the function."""
        return not any(f.wrong for f in self.findings)

    def raise_if_wrong(self) -> CheckReport:
        """Raise `WrongDerivativeError` with the whole report unless `ok`; give the report back otherwise."""
        if not self.ok:
            raise WrongDerivativeError(str(self))
        return self

    def __str__(self) -> str:
        verdict = "derivatives are right" if self.ok else "DERIVATIVES ARE WRONG"
        lines = [f"check of {self.name}({self.inputs}): {verdict}", ""]
        if self.rows:
            width = max(len(r.what) for r in self.rows)
            other = max(len(r.against) for r in self.rows)
            for r in self.rows:
                number = "       " if r.difference is None else f"{r.difference:7.1e}"
                mark = {True: "agrees", False: "DIFFERS", None: ""}[r.agrees]
                lines.append(f"  {r.what:<{width}}  against {r.against:<{other}}  {number}  {mark} {r.note}".rstrip())
            lines.append("")
        for f in sorted(self.findings, key=lambda f: not f.wrong):
            head = f"  {'WRONG' if f.wrong else 'note '} {f.kind}: `{f.operator}` at {f.source}"
            lines.append(head + (f" ({' and '.join(f.modes)})" if f.modes else ""))
            lines += [f"        {line}" for line in wrapped(f.message)]
        if not self.findings:
            lines.append("  nothing to report")
        lines += ["", *[f"  {n}" for n in self.notes]]
        lines.append(f"  {self.evaluations} evaluations of the function, {self.seconds:.2g} s")
        return "\n".join(lines)


def wrapped(text: str, width: int = 108) -> list[str]:
    """Lines of at most `width` characters."""
    lines: list[str] = []
    for part in text.split("\n"):
        line = ""
        for word in part.split(" "):
            if line and len(line) + 1 + len(word) > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return lines
