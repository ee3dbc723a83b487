"""The same call twice: random numbers, buffers that change, Python state.

A  world as given          B  straight after A          C  buffers put back          D  buffers and random numbers put
back A = B: repeatable.   A ≠ B, A = C: state.   A ≠ C, A = D: random numbers.   A ≠ D: something outside of torch.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .report import Finding
from .subject import Subject, widened
from .survey import Survey

Tensor = torch.Tensor


def generators() -> tuple[Any, ...]:
    """The states of the random numbers of torch, numpy and Python."""
    import numpy as np

    return torch.get_rng_state().clone(), np.random.get_state(), random.getstate()


def set_generators(states: tuple[Any, ...]) -> None:
    """Put them back."""
    import numpy as np

    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def raw(subject: Subject) -> tuple[list[Tensor], Survey]:
    """One call as the user would make it, nothing put back, and its survey."""
    survey = Survey(results=True)
    with widened() if subject.wide_mode else contextlib.nullcontext(), torch.enable_grad():
        inputs = [x.detach().clone() for x in subject.point]
        with survey.watching():
            outs = subject.outputs(inputs)
    return [o.detach().clone() for o in outs], survey


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether all bits are equal (NaN equals NaN)."""
    return len(a) == len(b) and all(
        x.shape == y.shape and bool(((x == y) | (torch.isnan(x) & torch.isnan(y))).all())
        for x, y in zip(a, b, strict=True)
    )


def repeated(subject: Subject, state: Callable[[], dict[str, Any]]) -> tuple[list[Tensor], Survey, list[Finding], bool]:
    """Value, survey, findings, and whether the function can be made repeatable at all.

    Args:
        subject: the function.
        state: gives the Python state of the function, by name.
    """
    start, python = generators(), state()
    findings: list[Finding] = []
    first, survey = raw(subject)
    changed = survey.changed()
    after = state()
    second, again = raw(subject)
    equal = same(first, second)

    def put_back() -> None:
        survey.restore()

    put_back()
    repeatable = True
    if not equal:
        set_generators(start)
        third, _ = raw(subject)
        put_back()
        if not same(first, third):
            repeatable = False
            findings.append(hidden(survey, again, python, after))
        else:
            middle = generators()
            fourth, other = raw(subject)
            put_back()
            if not same(first, fourth):
                findings.append(drawn(survey, other))
            elif changed:
                findings.append(written(changed, wrong=True))
            del middle
    set_generators(start)
    if not any(f.kind == "state" for f in findings) and changed:
        findings.append(written(changed, wrong=False))
    subject.before = put_back
    return first, survey, findings, repeatable


def drawn(survey: Survey, other: Survey) -> Finding:
    """The finding for random numbers."""
    k = differing(survey, other)
    place = survey.random[0] if survey.random else (k if k is not None else 0)
    name, source = at(survey, place)
    by = f"`{name}` draws random numbers" if survey.random else "numbers drawn outside of torch enter here"
    return Finding(
        "nondeterministic",
        name,
        source,
        (),
        f"two calls with the same inputs differ: {by}. The comparisons below were made with the "
        "generators put back before each call; dropout needs .eval(), other draws a fixed generator or an argument.",
        wrong=True,
    )


def written(changed: list[tuple[str, str, Tensor]], *, wrong: bool) -> Finding:
    """The finding for tensors outside that a call changes."""
    # A counter (of batches, of calls) says less than a statistic.
    name, source, target = max(changed, key=lambda c: c[2].is_floating_point())
    what = f"a tensor of shape {list(target.shape)} that was made outside of the function"
    effect = (
        "the next call with the same inputs gives another result. Derivatives are of one call; call .eval(), or pass "
        "the buffer in and return it."
        if wrong
        else "the result does not depend on it in this call, but a call of the function is not without effect "
        "(.eval() freezes statistics)."
    )
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return Finding("state", name, source, (), f"`{name}` writes into {what}{more}: {effect}", wrong=wrong)


def hidden(survey: Survey, other: Survey, before: dict[str, Any], after: dict[str, Any]) -> Finding:
    """The finding for a function that differs though everything known was put back."""
    k = differing(survey, other)
    name, source = at(survey, k if k is not None else 0)
    moved = [n for n in after if before.get(n) != after[n]]
    if moved:
        n = moved[0]
        return Finding(
            "state",
            name,
            source,
            (),
            f"a call changes `{n}` (from {before.get(n)!r} to {after[n]!r}), and the next call gives another result, "
            f"first at `{name}`. No derivative can be compared.",
            wrong=True,
        )
    return Finding(
        "nondeterministic",
        name,
        source,
        (),
        f"calls with the same inputs and the same random numbers differ, first at `{name}`: it depends on "
        "something outside of torch (a generator of its own, time, a cache). No derivative can be compared.",
        wrong=True,
    )


def differing(a: Survey, b: Survey) -> int | None:
    """The first operator with another name, line or result."""
    for k, (x, y) in enumerate(zip(a.places(), b.places(), strict=False)):
        if x != y or (a.results is not None and b.results is not None and a.results[k] != b.results[k]):
            return k
    return None


def at(survey: Survey, k: int) -> tuple[str, str]:
    """Name and line of an operator."""
    if not survey.names:
        return "the function", "<unknown>"
    k = min(k, len(survey.names) - 1)
    return survey.names[k], survey.sources[k]


def python_state(func: Any) -> dict[str, Any]:
    """Numbers, strings and lengths of containers that a function can reach: attributes, closure, globals it names."""
    found: dict[str, Any] = {}
    for name, value in reachable(func):
        if isinstance(value, (int, float, complex, str, bool)):
            found[name] = value
        elif isinstance(value, (list, dict, set)) and not name.startswith("_"):
            found[f"len({name})"] = len(value)
            if len(value) <= 16:
                found[name] = str([v for v in value if isinstance(v, (int, float, str))])
    return found


def reachable(func: Any) -> Iterator[tuple[str, Any]]:
    """Names and values one step away from a function, a module or an object with methods."""
    if isinstance(func, torch.nn.Module):
        for prefix, module in func.named_modules():
            for name, value in vars(module).items():
                if not name.startswith("_") and name != "training":
                    yield f"{prefix + '.' if prefix else ''}{name}", value
        return
    bound = getattr(func, "__self__", None)
    if bound is not None and hasattr(bound, "__dict__"):
        for name, value in vars(bound).items():
            yield f"self.{name}", value
    code, inner = getattr(func, "__code__", None), getattr(func, "__func__", func)
    if code is None:
        code = getattr(inner, "__code__", None)
    if code is None:
        if hasattr(func, "__dict__"):
            for name, value in vars(func).items():
                yield f"self.{name}", value
        return
    cells = getattr(inner, "__closure__", None) or ()
    pairs = []
    for name, cell in zip(code.co_freevars, cells, strict=False):
        with contextlib.suppress(ValueError):
            pairs.append((name, cell.cell_contents))
    pairs += [(n, inner.__globals__[n]) for n in code.co_names if n in getattr(inner, "__globals__", {})]
    for name, value in pairs:
        yield name, value
        if (hasattr(value, "__dict__") and not callable(value)) or isinstance(value, torch.nn.Module):
            for n, v in vars(value).items():
                if not n.startswith("_"):
                    yield f"{name}.{n}", v
