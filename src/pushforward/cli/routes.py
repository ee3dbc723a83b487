"""`pushforward routes TARGET`: the ways to a Jacobian-vector product of a function, measured side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..check.routes import ROUNDS
from ..check.routes import routes as measure_routes
from .check import positional, save
from .errors import UserError, guarded, one_line
from .inputs import load_inputs
from .target import load_target

WRONG = 1
AGREEMENT = 1e-2
DESCRIPTION = """\
Measures the routes to J v of a function at one point: dual numbers, double backward, torch.func, differences with
several steps. Prints time, memory and error of each; writes routes.png, and the numbers with --json.

TARGET is file.py:function or package.module:function. Its inputs come from --at, or from example_inputs() of the
same module. Exit code 1 when pf.jvp is refused or far from the float64 reference."""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "routes",
        help="time, memory and error of the ways to a Jacobian-vector product",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="file.py:function or package.module:function")
    parser.add_argument("--at", type=Path, metavar="FILE", help="inputs: .npz, .pt or .csv")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help=f"timings of each route (default: {ROUNDS})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, too")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--no-picture", action="store_true", help="no routes.png")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure the routes of the target and return the exit code.

    Raises:
        UserError: the target or its inputs do not allow it.
    """
    if arguments.rounds < 1:
        raise UserError(f"--rounds is {arguments.rounds}: it must be at least 1")
    target = load_target(arguments.target)
    function, primals = positional(target, load_inputs(target, arguments.at))
    report = guarded(
        lambda: measure_routes(function, primals, rounds=arguments.rounds), f"measuring {target.name}", target.source
    )
    written = "" if arguments.no_picture else save(report, arguments.out / "routes.png")
    if arguments.json is not None:
        try:
            arguments.json.write_text(json.dumps(report.to_dict(), indent=1))
        except OSError as error:
            raise UserError(f"cannot write {arguments.json}: {one_line(error.strerror or error)}") from error
        written += f"\n  wrote {arguments.json}"
    print(f"{report}{written}")
    own = report["pf.jvp"]
    return WRONG if own.refused or not own.error <= AGREEMENT else 0
