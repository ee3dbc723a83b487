"""``python -m benchmarks.record [ARGS]``: run the benchmarks and put the numbers where people read them.

Writes `benchmarks/recorded.json`, `docs/benchmarks.md` and its picture, and fills the marked places of README.md and
docs/architecture.md. ARGS go to ``python -m benchmarks`` (``--quick``, ``--no-memory``).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from .__main__ import main
from .operator_cost import table as operator_costs

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "benchmarks" / "recorded.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "benchmarks.png"


def filled(path: Path, name: str, text: str) -> None:
    """Replace what stands between the marks ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text()
    if begin not in page or end not in page:
        msg = f"{path} has no marks for {name!r}"
        raise ValueError(msg)
    path.write_text(re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL))


def summary(results: dict) -> str:
    """The mean speed-ups as a table, and what it was measured on."""
    machine = results["machine"]
    lines = [
        "Time of torch.func over ours, in one process, alternately; above 1, ours is faster.",
        "",
        "| workloads by transform | how many | geometric mean |",
        "|---|---:|---:|",
    ]
    shown = [m for m in results["means"] if m["of"] != "all" and "workloads" not in m["of"]]  # means over linearize mislead
    lines += [f"| {m['of']} | {m['rows']} | {m['speedup']:.2f} |" for m in shown]
    lines += [
        "",
        f"torch {machine['torch']}, {machine['processor']}, one thread; {machine.get('load', 'load unknown')}.",
        "[Every row](docs/benchmarks.md) with its quartiles; `python -m benchmarks.record --quick` measures again.",
    ]
    return "\n".join(lines)


def record(argv: list[str]) -> int:
    """Measure, write, fill; the exit code is that of the benchmarks."""
    code = main([*argv, "--json", str(RECORDED), "--markdown", str(PAGE), "--plot", str(PICTURE)])
    PAGE.write_text(PAGE.read_text().replace("\n\n", "\n\n![Speed-ups by row](benchmarks.png)\n\n", 1))
    filled(ROOT / "README.md", "measured", summary(json.loads(RECORDED.read_text())))
    filled(ROOT / "docs" / "architecture.md", "operator cost", operator_costs())
    return code


if __name__ == "__main__":
    sys.exit(record(sys.argv[1:]))
