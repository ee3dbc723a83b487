"""``python -m conformance``: sweep, compare with what is recorded, say what is wrong, slow or beyond torch itself."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from . import records
from .database import operators
from .names import BAD, STATUSES, TRANSFORMS
from .page import write_page
from .records import Record, Settings
from .sweep import run

DTYPES = {"float64": torch.float64, "float32": torch.float32, "complex128": torch.complex128}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./run conformance", description=__doc__)
    parser.add_argument("--only", metavar="REGEX", default="", help="operators whose name matches")
    parser.add_argument("--transforms", metavar="A,B", default=",".join(TRANSFORMS), help="compositions (default: all)")
    parser.add_argument("--dtype", choices=DTYPES, default="float64")
    parser.add_argument("--samples", type=int, default=8, help="sample calls an operator (default 8)")
    parser.add_argument("--library", default="pushforward", help="under test; several by commas, e.g. with torch.func")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--record", action="store_true", help="keep the result, and make the page from it")
    parser.add_argument("--folder", type=Path, default=records.RECORDED, help="where the records are")
    parser.add_argument("--page", action="store_true", help="only make docs/coverage.md from the records")
    parser.add_argument("--verbose", action="store_true", help="print whatever does not pass, as it comes")
    return parser.parse_args(argv)


def swept(ops: list[Any], settings: Settings, jobs: int, verbose: bool) -> dict[str, Record]:
    """Run it, with progress on standard error."""
    made: dict[str, Record] = {}
    began = time.monotonic()
    for done, (k, record) in enumerate(run(ops, settings, jobs), 1):
        name = ops[k].formatted_name
        made[name] = record
        for library, by_transform in record.items():
            for transform, r in by_transform.items():
                if r["status"] in BAD or (verbose and r["status"] in ("slow", "torch fails")):
                    print(f"{library} {transform:12} {name}: {r['status']}: {r['detail']}", flush=True)
        if done % 20 == 0 or done == len(ops):
            print(f"[{done}/{len(ops)}] {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return made


def told(library: str, found: records.Operators) -> None:
    """A library's summary."""
    print(f"\n{library}\n{'':14}" + "".join(f"{s:>13}" for s in STATUSES))
    for transform, counts in records.summary(found).items():
        print(f"{transform:14}" + "".join(f"{counts[s]:13}" for s in STATUSES))
    loops = records.lane_loops(found)
    print(f"{len(loops)} operators by a loop over lanes" + (": " if loops else "") + ", ".join(loops))


def main(argv: list[str] | None = None) -> int:
    """The exit code is 1 where something is worse than recorded, 2 for a bad command line."""
    options = arguments(argv)
    if options.page:
        write_page()
        return 0
    transforms = tuple(options.transforms.split(","))
    unknown = set(transforms) - set(TRANSFORMS)
    if unknown:
        print(f"no such transform: {', '.join(sorted(unknown))}; there are {', '.join(TRANSFORMS)}", file=sys.stderr)
        return 2
    libraries = tuple(options.library.split(","))
    settings = Settings(libraries, transforms, DTYPES[options.dtype], options.samples)
    ops = operators(options.only)
    print(f"{len(ops)} operators, {options.dtype}, up to {options.samples} samples", file=sys.stderr)
    made = swept(ops, settings, options.jobs, options.verbose)
    failed = False
    for library in libraries:
        found = records.of_library(made, library)
        told(library, found)
        path = records.path_of(library, settings.dtype, options.folder)
        old = records.load(path)["operators"]
        if options.record:
            records.save(path, settings, records.merged(old, found))
            continue
        worse = records.regressions(old, found)
        failed = failed or bool(worse)
        print("\nWorse than recorded:\n" + "\n".join(worse) if worse else "\nNothing is worse than recorded.")
    ours = records.of_library(made, libraries[0])
    beyond = records.reasons(ours, ("torch fails",))
    if beyond:
        print("\nTorch's own loop or autograd fails:")
        for reason, where in sorted(beyond.items()):
            print(f"  {reason} ({', '.join(where)})")
    if options.record and settings.dtype is torch.float64 and options.folder == records.RECORDED:
        write_page()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
