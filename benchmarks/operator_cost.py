"""``python -m benchmarks.operator_cost``: what one call and one more tiny operator cost under each transform.

Chains of 1 and of 101 ``sin`` on 8 × 4 numbers, in microseconds of processor time, the least of several rounds; the two
libraries in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import pushforward

LONG = 101
ROUNDS, CALLS = 9, 40
Function = Callable[[torch.Tensor], torch.Tensor]


def chain(length: int) -> Function:
    """The sum of so many sines of sines."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = x.sin()
        return x.sum()

    return f


X = torch.linspace(-1, 1, 32).reshape(8, 4)
TRANSFORMS: dict[str, Callable[[Any, Function], Any]] = {
    "vmap": lambda T, f: T.vmap(f)(X),
    "jvp": lambda T, f: T.jvp(f, (X,), (X,)),
    "grad": lambda T, f: T.grad(f)(X),
    "vmap(grad)": lambda T, f: T.vmap(T.grad(f))(X),
    "vmap(jvp)": lambda T, f: T.vmap(lambda v: T.jvp(f, (X[0],), (v,))[1])(X),
    "jvp(grad)": lambda T, f: T.jvp(T.grad(f), (X,), (X,)),
}


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of processor time a call, for some calls in a row."""
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS * 1e6


def costs(transform: Callable[[Any, Function], Any]) -> list[tuple[float, float]]:
    """For each library: one call of the short chain, and one more operator."""
    calls = [
        (lambda T=T, f=f: transform(T, f)) for T in (pushforward, torch.func) for f in (chain(1), chain(LONG))
    ]
    for call in calls:
        call()
    best = [min(times) for times in zip(*([timed(call) for call in calls] for _ in range(ROUNDS)), strict=True)]
    return [(short, (long - short) / (LONG - 1)) for short, long in (best[:2], best[2:])]


def table() -> str:
    """A Markdown table."""
    lines = [
        "| transform | a call | torch.func | one more operator | torch.func |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, transform in TRANSFORMS.items():
        (call, more), (their_call, their_more) = costs(transform)
        lines.append(f"| `{name}` | {call:.0f} | {their_call:.0f} | {more:.1f} | {their_more:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
