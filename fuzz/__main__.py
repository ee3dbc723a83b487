"""Random programs, many of them: every transform must give what the loop over lanes gives.

    ./run fuzz                          2,000 programs
    ./run fuzz --programs 500 --seed 3  fewer, others

Programs that differ are printed, the shortest of each kind, to be added to `COUNTEREXAMPLES` in
`tests/batch/test_programs.py`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.batch.programs import programs
from tests.batch.test_programs import compare


def search(count: int, first_seed: int, depth: int) -> tuple[int, dict[Any, Any]]:
    """How many programs were tried, and the shortest that differs of each kind of difference."""
    found: dict[Any, Any] = {}
    tried = 0

    @seed(first_seed)
    @settings(
        max_examples=count,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(programs(depth), st.integers(0, 1000), st.sampled_from([1, 2, 5]))
    def run(program: Any, data: int, lanes: int) -> None:
        nonlocal tried
        tried += 1
        try:
            compare(program, data, lanes)
        except Exception as error:
            key = type(error).__name__, str(error)[:60]
            if key not in found or len(repr(found[key][0])) > len(repr(program)):
                found[key] = (program, data, lanes)

    run()
    return tried, found


def main() -> int:
    """Run, report, and say by the exit status whether anything differed."""
    parser = argparse.ArgumentParser(
        prog="./run fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=2000, help="how many programs (default 2000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where to begin (default: the time)")
    parser.add_argument("--depth", type=int, default=4, help="how deeply statements are nested (default 4, at most 6)")
    options = parser.parse_args()
    start = time.time()
    print(f"seed {options.seed}, depth {options.depth}", flush=True)
    tried, found = search(options.programs, options.seed, options.depth)
    for (kind, text), (program, data, lanes) in found.items():
        print(f"{kind}: {text}\n    ({program!r}, {data}, {lanes}),")
    print(f"{tried} programs in {time.time() - start:.0f} s, {len(found)} kinds of difference")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
