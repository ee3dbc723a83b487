"""`pushforward sensitivity TARGET`: what the outputs of a function depend on, measured by its Jacobian."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import measure, picture, report
from .errors import UserError
from .inputs import load_inputs
from .labels import load_labels
from .target import load_target
from .vector import VectorFunction

DESCRIPTION = """\
Computes the Jacobian of a function at one point, in forward or reverse mode, whichever takes fewer passes; compares
it with central differences in float64; prints the outputs most sensitive to each input; writes jacobian.npz and
sensitivity.png.

TARGET is file.py:function or package.module:function. Its inputs come from --at, or from example_inputs() of the
same module. The module's example_labels() may give names and units for the report and the picture."""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "sensitivity",
        help="the Jacobian of a function at one point, checked, as report, file and picture",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="file.py:function or package.module:function")
    parser.add_argument("--at", type=Path, metavar="FILE", help="inputs: .npz, .pt or .csv")
    parser.add_argument("--wrt", action="append", default=[], metavar="INPUT", help="differentiate to this input only")
    parser.add_argument("--mode", choices=("auto", "forward", "reverse"), default="auto", help="default: auto")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--no-picture", action="store_true", help="write jacobian.npz only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do the analysis that the parsed arguments ask for, and return the exit code.

    Raises:
        UserError: the target, its inputs or its outputs do not allow it.
    """
    _require_folder(arguments.out)
    analysis = analyse(arguments.target, arguments.at, arguments.wrt, arguments.mode)
    # The files come first: a reader of the report that goes away (head) must not cost them.
    written = [f"  wrote {_write(analysis, arguments.out)}"]
    if not arguments.no_picture:
        path = arguments.out / "sensitivity.png"
        reason = picture.draw(analysis, path)
        written.append(f"  no picture: {reason}" if reason else f"  wrote {path}")
    print("\n".join([report.render(analysis), "", *written]))
    return 0


def analyse(spec: str, at: Path | None, wanted: list[str], mode: measure.Mode = "auto") -> report.Analysis:
    """Load the target and its inputs, differentiate, time and compare.

    Raises:
        UserError: the target, its inputs or its outputs do not allow it.
    """
    target = load_target(spec)
    inputs = load_inputs(target, at)
    function = VectorFunction(target, inputs, wanted)
    start = time.perf_counter()
    value = function.value()
    first = time.perf_counter() - start
    if first > measure.LONG_SECONDS:
        print(f"one evaluation takes {report.duration(first)}; the report takes many", file=sys.stderr, flush=True)
    repeatable = bool(torch.equal(value, function.value()))
    labels = load_labels(target, value.numel())
    choice = measure.choose_mode(function.point.numel(), value.numel(), mode)
    evaluation = first if first > measure.LONG_SECONDS else measure.median_seconds(lambda: function(function.point))
    start = time.perf_counter()
    jacobian = measure.jacobian(function, choice.mode, value.numel())
    once = time.perf_counter() - start
    # The first call also pays for what is set up once; unless it is long, it is timed again.
    seconds = once
    if once < 10.0:
        seconds = measure.median_seconds(lambda: measure.jacobian(function, choice.mode, value.numel()))
    wide = VectorFunction(target, inputs, wanted, torch.float64)
    comparison = measure.compare(function, wide, jacobian)
    return report.Analysis(
        spec=spec,
        labels=labels,
        input_names=function.input_names,
        output_names=function.output_names,
        point=_at_least_single(function.point),
        value=_at_least_single(value),
        jacobian=_at_least_single(jacobian),
        choice=choice,
        evaluation_seconds=evaluation,
        jacobian_seconds=seconds,
        comparison=comparison,
        repeatable=repeatable,
    )


def _at_least_single(values: torch.Tensor) -> torch.Tensor:
    """Numpy has no bfloat16, and half precision has no place in a file or a picture."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _require_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from error


def _write(analysis: report.Analysis, folder: Path) -> Path:
    """Write `jacobian.npz`: the Jacobian, the point, the value, the names, the differences."""
    path = folder / "jacobian.npz"
    along = analysis.labels.along
    arrays: dict[str, Any] = {
        "jacobian": analysis.jacobian.numpy(),
        "inputs": analysis.point.numpy(),
        "outputs": analysis.value.numpy(),
        "input_names": np.array(analysis.input_names),
        "output_names": np.array(analysis.output_names),
        "differences": _at_least_single(analysis.comparison.matrix).numpy(),
        "differences_columns": np.array(analysis.comparison.columns),
        "mode": np.array(analysis.choice.mode),
    }
    if along is not None:
        arrays["along"] = along
    try:
        np.savez_compressed(path, **arrays)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path
