"""The command line: one module a subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import check, explain, jacobian, routes, sensitivity
from .errors import UserError, one_line

SUBCOMMANDS = (sensitivity, jacobian, explain, check, routes)

USER_ERROR = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Says a bad command line in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} ('{self.prog} --help' tells more)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: the arguments after the command's name; None takes those of the process.

    Returns:
        0 when done, 1 when a check finds something wrong, 2 after an error that the user can put right (one line on standard
        error), 130 when interrupted.
    """
    try:
        arguments = _parser().parse_args(argv)
        return arguments.run(arguments)
    except UserError as error:
        print(f"pushforward: error: {one_line(error)}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("pushforward: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) went away: nothing is left to say, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pushforward", description="Derivatives of a PyTorch function of yours, from the terminal.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for module in SUBCOMMANDS:
        module.register(subparsers)
    return parser
