"""The measurements behind a sensitivity report: the Jacobian, its mode and time, and what differences say of it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

import pushforward as pf

from .differences import central_differences
from .errors import UserError, guarded
from .progress import track
from .vector import VectorFunction

T = TypeVar("T")
Mode = Literal["auto", "forward", "reverse"]

DIRECTIONS_AT_ONCE = 32
COLUMNS_CHECKED = 200
LONG_SECONDS = 1.0
AGREEMENT = {torch.float64: 1e-5, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3}


@dataclass(frozen=True)
class Choice:
    """The mode of a Jacobian and the reason for it."""

    mode: Literal["forward", "reverse"]
    reason: str


@dataclass(frozen=True)
class Comparison:
    """A Jacobian against central differences.

    Attributes:
        columns: the inputs compared.
        matrix: the differences [m, len(columns)].
        dtype: the coarser type of the two.
        largest: largest difference of an entry, relative to the largest entry of its column.
        output: row of that entry.
        column: input of that entry.
        note: why it was not float64, else empty.
    """

    columns: list[int]
    matrix: Tensor
    dtype: torch.dtype
    largest: float
    output: int
    column: int
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the two are as close as the type allows."""
        return self.largest <= AGREEMENT[self.dtype]


def choose_mode(n: int, m: int, asked: Mode = "auto") -> Choice:
    """Forward mode takes a pass for each of n inputs, reverse mode one for each of m outputs: take the fewer.

    >>> choose_mode(3, 5000)
    Choice(mode='forward', reason='3 forward passes against 5000 reverse passes')
    >>> choose_mode(30, 1)
    Choice(mode='reverse', reason='1 reverse pass against 30 forward passes')
    """
    forward, reverse = f"{n} forward pass{'es' * (n != 1)}", f"{m} reverse pass{'es' * (m != 1)}"
    if asked != "auto":
        return Choice(asked, f"as asked; {forward}, {reverse}")
    if n <= m:
        return Choice("forward", f"{forward} against {reverse}")
    return Choice("reverse", f"{reverse} against {forward}")


def jacobian(function: VectorFunction, mode: Literal["forward", "reverse"], m: int) -> Tensor:
    """The Jacobian [m, n] of `function` at its point, in batches of directions so that progress shows.

    Raises:
        UserError: the function cannot be transformed, or its Jacobian does not fit into memory.
    """
    point = function.point
    n = point.numel()
    _require_memory(m, n, point.element_size())
    if mode == "forward":
        basis = torch.eye(n, dtype=point.dtype)

        def product(seed: Tensor) -> Tensor:
            return pf.jvp(function, (point,), (seed,))[1]

    else:
        output, pull = _guarded(lambda: pf.vjp(function, point)[:2], function)
        basis = torch.eye(m, dtype=output.dtype)

        def product(seed: Tensor) -> Tensor:
            return pull(seed)[0]

    seeds = basis.split(DIRECTIONS_AT_ONCE)
    # A function that draws random numbers draws them once for all directions: they are of one and the same function.
    mapped = pf.vmap(product, randomness="same")
    parts = [
        _guarded(lambda chunk=chunk: mapped(chunk).detach(), function)
        for chunk in track(seeds, f"Jacobian, {mode} mode", len(basis), DIRECTIONS_AT_ONCE)
    ]
    rows = torch.cat(parts)
    return rows.T.contiguous() if mode == "forward" else rows


def compare(function: VectorFunction, wide: VectorFunction, found: Tensor) -> Comparison:
    """Compare `found` [m, n] with central differences, in float64 where the function allows it.

    Args:
        function: the function in its own types.
        wide: the same in float64.
        found: its Jacobian.
    """
    n = found.shape[1]
    columns = list(range(n)) if n <= COLUMNS_CHECKED else torch.linspace(0, n - 1, COLUMNS_CHECKED).long().tolist()
    note, used = "", found.dtype
    try:
        used, referee = wide(wide.point).dtype, wide
    except Exception:
        # Weights captured in float32 refuse float64 inputs; a coarser check is better than none.
        referee, note = function, "the function does not take float64"
    if not note and used is not referee.point.dtype:
        note = f"the function computes in {str(used).removeprefix('torch.')}"  # of captured tensors, whatever the inputs
    places = [leaf.place for leaf in referee.leaves]
    matrix = _guarded(lambda: central_differences(referee, referee.point, places, columns, used), function)
    dtype = min(referee.point.dtype, found.dtype, used, key=lambda dtype: -torch.finfo(dtype).eps)
    error = (found[:, columns].double() - matrix.double()).abs()
    largest = matrix.double().abs().amax(dim=0)
    # A column of zeros is compared with the largest entry of all.
    scale = torch.where(largest > 0, largest, largest.max().clamp(min=1e-300))
    relative = torch.nan_to_num(error / scale, nan=float("inf"))
    worst = int(relative.argmax())
    row, column = divmod(worst, len(columns))
    return Comparison(columns, matrix, dtype, float(relative.reshape(-1)[worst]), row, columns[column], note)


def median_seconds(call: Callable[[], object], seconds: float = 0.5, most: int = 20) -> float:
    """Median time of a call, over as many calls as fit into `seconds` (one at least)."""
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < most):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _guarded(call: Callable[[], T], function: VectorFunction) -> T:
    return guarded(call, f"differentiating {function.target.name}", function.target.source)


def _require_memory(m: int, n: int, itemsize: int) -> None:
    try:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return
    needed = m * n * itemsize
    # The parts and their concatenation, and the same for the differences.
    if 3 * needed > available:
        raise UserError(
            f"a Jacobian of {m} outputs x {n} inputs takes {needed / 2**30:.1f} GiB, too much for "
            f"{available / 2**30:.1f} GiB of free memory: choose fewer inputs with --wrt"
        )
