"""`torch.cond`, `while_loop`, `scan`, `map` and `associative_scan` inside a transform: the Python they stand for.

Torch compiles them, which it cannot with values of a transform. A branch is chosen by `if`, so that lanes that
disagree go ways of their own, and derivatives follow the branch taken. Outside of a transform they are torch's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import tree
from .level import THREAD

is_compiling = torch.compiler.is_compiling


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """`true_fn(*operands)` or `false_fn(*operands)`."""
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    """The body, again and again while the condition holds."""
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = body_fn(*carried)
        carried = tuple(carried) if isinstance(carried, (tuple, list)) else (carried,)
    return carried


def slices(xs: Any, dim: int, reverse: bool = False) -> list[Any]:
    """A pytree of tensors, taken apart along a dimension."""
    leaves, spec = tree.flat(xs)
    parts = [leaf.unbind(dim) for leaf in leaves]
    made = [tree.unflatten(list(part), spec) for part in zip(*parts, strict=True)]
    return made[::-1] if reverse else made


def stacked(values: list[Any], dim: int = 0) -> Any:
    """Pytrees of tensors put together along a new dimension."""
    flat = [tree.flat(v) for v in values]
    return tree.unflatten([torch.stack(column, dim) for column in zip(*[f[0] for f in flat], strict=True)], flat[0][1])


def scan(combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> tuple[Any, Any]:
    """`(carry, outputs)`: the carry goes from element to element, the outputs are stacked at dim 0."""
    carry, outputs = init, []
    for x in slices(xs, dim, reverse):
        carry, y = combine_fn(carry, x)
        outputs.append(y)
    return carry, stacked(outputs[::-1] if reverse else outputs)


def map_elements(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """The stack of `f(x, *args)` over the elements of `xs`."""
    return stacked([f(x, *args) for x in slices(xs, 0)])


def associative_scan(
    combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """Running combinations along a dimension."""
    del combine_mode
    parts = slices(xs, dim, reverse)
    outputs = parts[:1]
    for x in parts[1:]:
        outputs.append(combine_fn(outputs[-1], x))
    return stacked(outputs[::-1] if reverse else outputs, dim)


def caught(original: Any, plain: Callable[..., Any]) -> Any:
    """`original`, or `plain` while a transform runs."""

    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if (THREAD.levels or THREAD.order) and not is_compiling():
            return plain(*args, **kwargs)
        return original(*args, **kwargs)

    return chosen


def install() -> None:
    """Catch the functions wherever torch offers them."""
    known = {
        "cond": cond,
        "while_loop": while_loop,
        "scan": scan,
        "map": map_elements,
        "associative_scan": associative_scan,
    }
    package = sys.modules.get("torch._higher_order_ops")
    for name, plain in known.items():
        module = sys.modules.get(f"torch._higher_order_ops.{name}")
        original = getattr(module, name, None) if module is not None else None
        if original is None:
            continue
        made = caught(original, plain)
        for place in (module, package, torch):
            if getattr(place, name, None) is original:
                setattr(place, name, made)


install()
