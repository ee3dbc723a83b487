"""What `jacobian` and `explain` share: the options, and the plan of a target."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..core.errors import TransformError
from ..jacobian.explain import braille
from ..jacobian.jacobian_plan import JacobianPlan
from ..jacobian.planner import plan
from ..sparsity.detect import NoPatternError
from .errors import UserError, guarded, one_line
from .inputs import load_inputs
from .target import Target, load_target
from .vector import VectorFunction


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of both commands."""
    parser.add_argument("target", metavar="TARGET", help="file.py:function or package.module:function")
    parser.add_argument("--at", type=Path, metavar="FILE", help="inputs: .npz, .pt or .csv")
    parser.add_argument("--wrt", action="append", default=[], metavar="INPUT", help="differentiate to this input only")
    parser.add_argument("--mode", choices=("auto", "forward", "reverse", "both"), default="auto", help="default: auto")
    parser.add_argument(
        "--sparsity", choices=("none", "auto", "global", "local"), default="auto", help="default: auto, where it pays"
    )
    parser.add_argument("--memory", metavar="SIZE", help="such as 2GiB, or 0.5 of what is free (default: 0.5)")
    parser.add_argument("--chunk-size", type=int, metavar="N", help="at most so many passes at a time")


def planned(arguments: argparse.Namespace) -> tuple[Target, VectorFunction, JacobianPlan]:
    """The target as a function of a vector, and the plan of its Jacobian.

    Raises:
        UserError: the target, its inputs or the options do not allow it.
    """
    target = load_target(arguments.target)
    function = VectorFunction(target, load_inputs(target, arguments.at), arguments.wrt)
    guarded(lambda: function(function.point), f"calling {target.name}", target.source)
    made = told(
        lambda: plan(
            function,
            function.point,
            mode=arguments.mode,
            sparsity=None if arguments.sparsity == "none" else arguments.sparsity,
            memory=budget(arguments.memory),
            chunk_size=arguments.chunk_size,
            progress=True,
        )
    )
    made.title = target.name
    return target, function, made


def told(call: Any) -> Any:
    """What the library says of its arguments, as an error of the user's."""
    try:
        return call()
    except (TransformError, NoPatternError) as error:
        raise UserError(one_line(error)) from error


def budget(text: str | None) -> Any:
    """A size as typed: a fraction below 1 is a number, the rest is text."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if number < 1 else int(number)


def picture(made: JacobianPlan) -> list[str]:
    """The pattern in braille, indented, if there is one."""
    if made.pattern is None or not made.pattern.nnz:
        return []
    return ["", *("  " + line for line in braille(made.pattern, 36, 18).split("\n"))]
