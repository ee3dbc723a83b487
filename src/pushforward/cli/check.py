"""`pushforward check TARGET`: are the derivatives of a function right, and if not, which operator on which line."""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..check.check import MODES, Examination
from ..core import tree
from .errors import UserError, guarded, one_line
from .inputs import Inputs, load_inputs
from .target import Target, load_target

WRONG = 1
DESCRIPTION = """\
Compares forward mode, reverse mode and differences of a function at one point, in float64 beside its own type. Says
which operator on which line is wrong, lost, random or not a number, and tells kinks and rounding from errors.

TARGET is file.py:function or package.module:function. Its inputs come from --at, or from example_inputs() of the
same module. Exit code 0: right; 1: wrong; 2: the target or its inputs cannot be used."""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "check",
        help="whether the derivatives of a function are right, and if not, why",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="file.py:function or package.module:function")
    parser.add_argument("--at", type=Path, metavar="FILE", help="inputs: .npz, .pt or .csv")
    parser.add_argument(
        "--order", type=int, default=1, metavar="N", help="the highest derivative to check (default: 1)"
    )
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both", help="default: both")
    parser.add_argument("--seed", type=int, default=0, help="for the random directions (default: 0)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--no-picture", action="store_true", help="write nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the target and return the exit code.

    Raises:
        UserError: the target or its inputs do not allow it.
    """
    if arguments.order < 1:
        raise UserError(f"--order is {arguments.order}: it must be at least 1")
    target = load_target(arguments.target)
    function, primals = positional(target, load_inputs(target, arguments.at))
    modes = MODES if arguments.mode == "both" else (arguments.mode,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examination = guarded(
            lambda: Examination(function, primals, None, None, modes, arguments.seed), "checking", target.source
        )
        report = examination.run(arguments.order)
    written = "" if arguments.no_picture else draw(examination, arguments.out / "check.png")
    print(f"{report}{written}")
    return 0 if report.ok else WRONG


def draw(examination: Examination, path: Path) -> str:
    """Write the picture, and say so, or why there is none."""
    made = examination.curve()
    if made is None:
        return ""
    return save(made, path)


def save(made: Any, path: Path) -> str:
    """Save a plot of `made`; a line that says where, or why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.plot(path)
    except ImportError:
        return "\n  no picture: matplotlib is not installed (pip install 'pushforward[plot]')"
    except OSError as error:
        raise UserError(f"cannot write {path}: {one_line(error.strerror or error)}") from error
    return f"\n  wrote {path}"


def positional(target: Target, inputs: Inputs) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The target as a function of positional arguments, with Python floats as tensors, so that they are inputs too."""
    names = tuple(inputs.kwargs)
    values = tuple(
        torch.tensor(v, dtype=torch.float64) if isinstance(v, float) else v
        for v in (*inputs.args, *inputs.kwargs.values())
    )
    if not any(isinstance(v, torch.Tensor) for v in tree.leaves(values)):
        raise UserError(f"{inputs.source or 'the inputs'}: no tensor to differentiate by")
    function = target.function
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        order = tuple(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        order = ()
    if order[len(inputs.args) : len(values)] == names:
        return function, values
    count = len(inputs.args)

    def by_name(*given: Any) -> Any:
        return function(*given[:count], **dict(zip(names, given[count:], strict=True)))

    by_name.__name__ = target.name
    return by_name, values
