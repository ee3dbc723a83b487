"""``python -m benchmarks.operator_cost``: what one call and one more tiny operator cost under each transform.

Chains of 1 and of 101 ``sin`` on 8 × 4 numbers, in microseconds of processor time, the least of several rounds; the two
libraries in turn. And the least that an operator on a wrapper can cost, by a class that does nothing but what any must:
be called by torch, run the operator below dispatch, and make the wrapper of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import pushforward
from pushforward.core.torch_private import NoDispatch, make_wrapper

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


class Least(torch.Tensor):
    """A wrapper that checks nothing, records nothing and knows no operators."""

    __slots__ = ("how", "payload")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0]
        guard = NoDispatch()
        out = func(x.payload)
        del guard
        made = make_wrapper(*x.how)
        made.payload, made.how = out, x.how
        return made


def least() -> str:
    """One more operator on plain tensors, on the least wrapper, and under either `vmap`."""
    x = torch.randn(64, 16)
    wrapper: Any = make_wrapper(Least, x.shape[1:], (1,), None, None, x.dtype, torch.strided, x.device)
    wrapper.payload, wrapper.how = x, (Least, x.shape[1:], (1,), None, None, x.dtype, torch.strided, x.device)

    def sines(v: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            v = torch.sin(v)
        return v

    calls = (
        lambda: sines(x),
        lambda: sines(wrapper),
        lambda: pushforward.vmap(sines)(x),
        lambda: torch.func.vmap(sines)(x),
    )
    plain, floor, ours, theirs = (
        min(times) / 100 for times in zip(*([timed(call) for call in calls] for _ in range(ROUNDS)), strict=True)
    )
    return (
        f"\nA chain of 100 `torch.sin` on 64 × 16 numbers, an operator: plain {plain:.1f}, the least wrapper in Python {floor:.1f}, "
        f"`pf.vmap` {ours:.1f}, `torch.func.vmap` {theirs:.1f} (µs)."
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
    print(least())
