"""`pushforward explain TARGET`: how the Jacobian of a function would be computed, and why."""

from __future__ import annotations

import argparse

from ..jacobian.explain import table
from .planning import add_options, picture, planned

DESCRIPTION = """\
Prints what the Jacobian of a function at one point would cost: passes, time in evaluations of the function and peak
memory for each mode, with and without the sparsity pattern; what would be chosen and why; the pattern as a picture.

TARGET is file.py:function or package.module:function. Its inputs come from --at, or from example_inputs() of the
same module."""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "explain",
        help="how a Jacobian would be computed, at what cost, and why",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan and return the exit code.

    Raises:
        UserError: the target, its inputs or the options do not allow it.
    """
    _, _, made = planned(arguments)
    print("\n".join([table(made), *picture(made)]))
    return 0
