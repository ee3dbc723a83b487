"""The recorded sweep: what was right, and what is worse now.

{"about": {...}, "operators": {"sin": {"vmap": ["pass", ""], "jvp": ["pass", ""], …}, …}}
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .names import BAD, COMPARED, STATUSES, TRANSFORMS

RECORDED = Path(__file__).parent / "recorded"
Operators = dict[str, dict[str, list[Any]]]
Record = dict[str, dict[str, dict[str, Any]]]  # of one operator, by library and transform


@dataclass(frozen=True)
class Settings:
    """What is swept, and how."""

    libraries: tuple[str, ...]
    transforms: tuple[str, ...]
    dtype: torch.dtype
    samples: int


def path_of(library: str, dtype: torch.dtype, folder: Path = RECORDED) -> Path:
    """Where a library's record lies: double precision has the plain name."""
    precision = "" if dtype is torch.float64 else "_" + str(dtype).removeprefix("torch.")
    return folder / f"{library.replace('.', '_')}{precision}.json"


def load(path: Path) -> dict[str, Any]:
    """A record; an empty one where there is none."""
    return json.loads(path.read_text()) if path.exists() else {"about": {}, "operators": {}}


def save(path: Path, settings: Settings, operators: Operators) -> None:
    """Write a record, one operator a line, so that a change can be read as a difference."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "torch": torch.__version__.split("+")[0],
        "dtype": str(settings.dtype).removeprefix("torch."),
        "samples": settings.samples,
    }
    lines = [f"{json.dumps(name)}: {json.dumps(operators[name])}" for name in sorted(operators)]
    path.write_text('{"about": ' + json.dumps(about) + ',\n"operators": {\n' + ",\n".join(lines) + "\n}}\n")


def of_library(records: dict[str, Record], library: str) -> Operators:
    """One library's part of a run, by operator."""
    return {
        name: {t: [r["status"], r["detail"]] for t, r in record[library].items()} for name, record in records.items()
    }


def merged(old: Operators, new: Operators) -> Operators:
    """A record with the operators and transforms of another run put in."""
    return {name: {**old.get(name, {}), **new.get(name, {})} for name in {**old, **new}}


def summary(operators: Operators) -> dict[str, Counter[str]]:
    """How many operators have which status, by transform."""
    counts: dict[str, Counter[str]] = {t: Counter() for t in TRANSFORMS}
    for by_transform in operators.values():
        for transform, (status, _) in by_transform.items():
            counts[transform][status] += 1
    return {t: c for t, c in counts.items() if c}


def lane_loops(operators: Operators) -> list[str]:
    """Operators that ran by a loop over lanes in some transform."""
    return sorted(name for name, by in operators.items() if any(status == "slow" for status, _ in by.values()))


def regressions(old: Operators, new: Operators) -> list[str]:
    """What is worse than recorded: a worse status, or a comparison that is no longer made."""
    found = []
    for name, by_transform in new.items():
        for transform, (status, detail) in by_transform.items():
            before = old.get(name, {}).get(transform, [None])[0]
            if before is None:
                worse = status in BAD
            elif before in COMPARED:
                worse = status not in COMPARED or STATUSES.index(status) > STATUSES.index(before)
            else:
                worse = status in BAD
            if worse:
                found.append(f"{transform:12} {name}: {status}, recorded {before}: {detail}")
    return found


def reasons(operators: Operators, statuses: tuple[str, ...]) -> dict[str, list[str]]:
    """Operators and transforms by what was said, for some statuses."""
    found: dict[str, list[str]] = {}
    for name, by_transform in operators.items():
        for transform, (status, detail) in by_transform.items():
            if status in statuses:
                found.setdefault(f"{name} | {status}: {detail}", []).append(transform)
    return found
