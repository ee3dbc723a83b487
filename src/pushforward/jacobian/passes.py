"""Forward and reverse passes over seeds, chunk by chunk.

A forward pass takes a direction in the n inputs to J v, a reverse pass a direction in the m outputs to Jᵀ u; the
passes of one chunk run as one mapped call. Results are written into a matrix made once, so that chunks cost no memory
beyond their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..batch.repeat import OneDraw
from ..batch.rows import alone, pulled_rows
from ..batch.vmap import vmap
from ..batch.work import FIRST
from ..core.torch_private import NoFunction
from ..forward.jvp import jvp
from ..reverse import recorded_vjp
from .complex import row_puller
from .problem import Problem

Tensor = torch.Tensor
Seeds = Callable[[int, int], list[Tensor]]
Progress = Callable[[int, int], None]


def one_hot(colours: Tensor | None, leaves: list[Tensor], start: int, stop: int) -> list[Tensor]:
    """Seeds `start` to `stop`: 1 where an element has the seed's colour (None: every element a colour of its own)."""
    out, offset = [], 0
    with NoFunction():
        for x in leaves:
            k = x.numel()
            seeds = torch.zeros(stop - start, k, dtype=x.dtype, device=x.device)
            if colours is None:
                low, high = max(start, offset), min(stop, offset + k)
                if high > low:
                    seeds[low - start : high - start, low - offset : high - offset].diagonal().fill_(1)
            elif k:
                own = colours[offset : offset + k]
                inside = ((own >= start) & (own < stop)).nonzero().squeeze(1)
                seeds[own[inside] - start, inside] = 1
            out.append(seeds.view(stop - start, *x.shape))
            offset += k
    return out


class Passes:
    """Runs the passes of one problem; the value and the aux are kept from the first."""

    def __init__(self, problem: Problem, progress: Progress | None = None) -> None:
        self.problem = problem
        # A random function is one and the same function in all passes.
        self.draws = OneDraw(problem.leaves[0].device, problem.generators)
        self.progress = progress
        self.values: list[Tensor] | None = None
        self.aux: Any = None
        self.done = 0
        self.most_chunks: int | None = None  # a prediction of memory runs two chunks, for the others are like them

    def forward(self, seeds: Seeds, count: int, chunk: int | None, *, turned: bool) -> Tensor:
        """J times `count` seeds: `[count, m]`, or `[m, count]` if `turned`."""
        problem = self.problem

        def push(*directions: Tensor) -> Any:
            values, moved, aux = jvp(problem.of_inputs, tuple(problem.leaves), directions, has_aux=True)
            smooth = [t for o, t in zip(values, moved, strict=True) if o.is_floating_point() or o.is_complex()]
            return smooth, values, aux

        def run(start: int, stop: int) -> Tensor:
            given = seeds(start, stop)
            with self.draws:
                moved, values, aux = vmap(push, out_dims=(0, FIRST, FIRST), randomness="same")(*given)
            self.keep(values, aux)
            flat = [t.reshape(stop - start, math.prod(t.shape[1:])) for t in moved]
            return flat[0] if len(flat) == 1 else torch.cat(flat, 1)

        return self.chunked(run, count, chunk, turned=turned)

    def reverse(self, seeds: Seeds, count: int, chunk: int | None) -> Tensor:
        """`count` seeds times J: `[count, n]`."""
        problem = self.problem
        with self.draws:
            outs, pull, aux, kept = recorded_vjp(problem.of_inputs, tuple(problem.leaves), True)
        self.keep(outs, aux)
        quiet = not kept and alone()

        def pulled(*cotangents: Tensor) -> Any:
            given = iter(cotangents)
            full = [next(given) if o.is_floating_point() or o.is_complex() else torch.zeros_like(o) for o in outs]
            return pull(full)

        pull_rows = row_puller(pulled, [o for o in outs if o.is_floating_point() or o.is_complex()], problem.leaves)

        def run(start: int, stop: int) -> Tensor:
            given = seeds(start, stop)
            rows = pulled_rows(pull_rows, given) if quiet else None
            if rows is None:
                rows = vmap(pull_rows, randomness="same")(*given)
            flat = [t.reshape(stop - start, math.prod(t.shape[1:])) for t in rows]
            return flat[0] if len(flat) == 1 else torch.cat(flat, 1)

        return self.chunked(run, count, chunk, turned=False)

    def keep(self, values: list[Tensor], aux: Any) -> None:
        """The function's value, and the shapes of its outputs."""
        if self.values is None:
            self.values, self.aux = list(values), aux
            self.problem.outs = list(values)

    def chunked(self, run: Callable[[int, int], Tensor], count: int, chunk: int | None, *, turned: bool) -> Tensor:
        """All seeds, `chunk` at a time, into one matrix."""
        if chunk is None or chunk >= count:
            whole = run(0, count)
            self.tell(count)
            return whole.T if turned else whole
        first = run(0, chunk)
        width = first.shape[1]
        made = torch.empty((width, count) if turned else (count, width), dtype=first.dtype, device=first.device)
        for number, start in enumerate(range(0, count, chunk)):
            if number == self.most_chunks:
                break
            stop = min(start + chunk, count)
            part = first if start == 0 else run(start, stop)
            if turned:
                made[:, start:stop] = part.T
            else:
                made[start:stop] = part
            del part
            if start == 0:
                first = made[:0]  # the next chunk needs the room
            self.tell(stop - start)
        return made

    def tell(self, passes: int) -> None:
        """Report progress."""
        self.done += passes
        if self.progress is not None:
            self.progress(self.done, passes)
