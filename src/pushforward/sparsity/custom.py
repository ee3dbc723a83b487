"""`torch.autograd.Function` under the interpreter: what counts is the class's own `backward`, not its body.

The pattern of J follows from the pattern of g ↦ Jᵀ g, found by interpreting `backward` with every saved value taken
as varying.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import CheckpointFunction

from .interpreter import PatternLevel, has_labels

Tensor = torch.Tensor


@contextlib.contextmanager
def functions_followed(level: PatternLevel) -> Iterator[None]:
    """Catch `Function.apply` while the interpreter runs."""
    before = torch.autograd.Function.__dict__.get("apply")
    plain = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = [a for a in args if isinstance(a, Tensor)]
        if not any(level.read_any(t) for t in inputs) or cls is CheckpointFunction:
            return plain(cls, *args, **kwargs)
        return by_backward(level, cls, plain, args, kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        if before is None:
            del torch.autograd.Function.apply
        else:
            torch.autograd.Function.apply = before


def by_backward(level: PatternLevel, cls: Any, plain: Any, args: Any, kwargs: Any) -> Any:
    """Run the class, and give its outputs the labels that its backward formula moves."""
    out = plain(cls, *args, **kwargs)
    outs = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if has_labels(o)]
    known = [a for a in args if has_labels(a) and level.read_any(a)]
    found = [level.read(a) for a in known]
    given = [labels.reshape(-1) for labels in found if labels is not None]
    transposed = None
    with contextlib.suppress(Exception), torch.enable_grad(), suspended(level):
        transposed = backward_pattern(level, cls, plain, args, kwargs)
    if transposed is None:
        level.dense[cls.__name__] = level.dense.get(cls.__name__, 0) + 1
        label = level.sets.all_of(*given)
        for o in outs:
            level.write(o, np.full(tuple(o.shape), label), True)
        return out
    inputs = np.concatenate(given)
    made = level.sets.joined(transposed.indices, inputs[transposed.rows], sum(o.numel() for o in outs))
    start = 0
    for o in outs:
        level.write(o, made[start : start + o.numel()].reshape(tuple(o.shape)), True)
        start += o.numel()
    return out


@contextlib.contextmanager
def suspended(level: PatternLevel) -> Iterator[None]:
    """The interpreter switched off, for what is not part of the function."""
    from ..core.torch_private import pop_mode, push_mode

    pop_mode(None)
    try:
        yield
    finally:
        push_mode(level)


def backward_pattern(level: PatternLevel, cls: Any, plain: Any, args: Any, kwargs: Any) -> Any:
    """Inputs × outputs: which cotangents reach each input."""
    fresh = [a.detach().clone().requires_grad_() if has_labels(a) and level.read_any(a) else a for a in args]
    variables = [f for f, a in zip(fresh, args, strict=True) if f is not a]
    out = plain(cls, *fresh, **kwargs)
    outs = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if has_labels(o)]
    if not all(o.requires_grad for o in outs):
        return None
    inner = PatternLevel(sum(o.numel() for o in outs), local=level.local, trusts_constants=False)
    cotangents, start = [], 1
    for o in outs:
        g = torch.ones(o.shape, dtype=o.dtype)
        inner.write(g, np.arange(start, start + o.numel()).reshape(tuple(o.shape)), True)
        cotangents.append(g)
        start += o.numel()
    with inner:
        grads = torch.autograd.grad(outs, variables, cotangents, allow_unused=True)
    rows = []
    for v, g in zip(variables, grads, strict=True):
        labels = None if g is None else inner.read(g)
        rows.append(np.zeros(v.numel(), dtype=np.int64) if labels is None else labels.reshape(-1))
    return inner.sets.pattern(np.concatenate(rows))
