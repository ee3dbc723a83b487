"""`pushforward jacobian TARGET`: plan, compute and write the Jacobian of a function at one point."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..jacobian.compress import to_scipy
from ..jacobian.explain import plotted, table
from ..jacobian.jacobian_plan import JacobianPlan
from ..jacobian.memory import in_words
from .errors import UserError, guarded
from .planning import add_options, picture, planned, told
from .report import duration
from .target import Target
from .vector import VectorFunction

DESCRIPTION = """\
Computes the Jacobian of a function at one point in the mode that is fastest within the memory allowed, using its
sparsity pattern where that pays. Prints the plan and what it took against what was predicted; writes jacobian.npz
(a scipy sparse matrix where it is sparse) and pattern.png.

TARGET is file.py:function or package.module:function. Its inputs come from --at, or from example_inputs() of the
same module."""


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "jacobian",
        help="the Jacobian of a function at one point, planned within a memory budget, as a file",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--no-picture", action="store_true", help="write jacobian.npz only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compute the Jacobian that the parsed arguments ask for, and return the exit code.

    Raises:
        UserError: the target, its inputs, the options or the folder do not allow it.
    """
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write into {arguments.out}: {error.strerror}") from error
    target, function, made = planned(arguments)
    matrix, seconds = computed(target, function, made)
    written = [f"  wrote {write(matrix, function, arguments.out / 'jacobian.npz')}"]
    if not arguments.no_picture:
        try:
            plotted(made, arguments.out / "pattern.png")
            written.append(f"  wrote {arguments.out / 'pattern.png'}")
        except ImportError:
            written.append("  no picture: matplotlib is not installed (pip install 'pushforward[plot]')")
    print("\n".join([table(made), *picture(made), "", *took(target, function, made, seconds), *written]))
    return 0


def computed(target: Target, function: VectorFunction, made: JacobianPlan) -> tuple[torch.Tensor, float]:
    """The matrix, and the seconds of one run (the second one, unless the first was long)."""
    start = time.perf_counter()
    matrix = told(lambda: guarded(lambda: made(function.point), f"differentiating {target.name}", target.source))
    seconds = time.perf_counter() - start
    if seconds < 2.0:
        start = time.perf_counter()
        made(function.point)
        seconds = time.perf_counter() - start
    return matrix.detach(), seconds


def took(target: Target, function: VectorFunction, made: JacobianPlan, seconds: float) -> list[str]:
    """Time and peak against the prediction."""
    del target
    evaluation = made.cost.seconds
    lines = [
        f"took {duration(seconds)}, {seconds / max(evaluation, 1e-9):.3g} evaluations of the function "
        f"({made.candidate.evaluations:.3g} predicted)"
    ]
    if seconds < 20.0:
        peak = allocator_peak(lambda: made(function.point))
        predicted = made.predicted_bytes
        lines.append(
            f"peak {in_words(peak)} of tensors alive at once"
            + ("" if predicted is None else f" ({in_words(predicted)} predicted)")
        )
    return lines


def write(matrix: torch.Tensor, function: VectorFunction, path: Path) -> Path:
    """The matrix as a file: scipy's sparse format where it is sparse, else arrays with names."""
    try:
        if matrix.layout is torch.strided:
            names: Any = {"input_names": np.array(function.input_names), "output_names": np.array(function.output_names)}
            np.savez_compressed(
                path, jacobian=matrix.to(torch.promote_types(matrix.dtype, torch.float32)).numpy(), **names
            )
        else:
            try:
                from scipy.sparse import save_npz
            except ImportError as error:
                raise UserError(
                    "the Jacobian is sparse, and writing it needs scipy (pip install 'pushforward[sparse]')"
                ) from error
            save_npz(path, to_scipy(matrix))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


def allocator_peak(call: Callable[[], Any]) -> int:
    """The most bytes of tensors alive at once during a call, as PyTorch's allocator tells its profiler."""
    from torch.profiler import ProfilerActivity, profile

    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    alive = peak = 0
    trace: Any = getattr(profiler.profiler, "kineto_results")  # noqa: B009  (typed as optional)
    events: list[Any] = [e for e in trace.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The profiler's own messages are written past Python, so the descriptor itself is turned away."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
