"""`debug_nans`: the first operator that makes a NaN or an infinity.

A dispatch mode below every transform sees each operator on plain tensors: of values, of tangents, of cotangents. One
that returns a NaN where none went in, or an infinity where all was finite, is the one to name.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core.errors import TransformError
from ..core.source import is_library_file, source_line
from ..core.torch_private import NoFunction, TorchDispatchMode, current_node, graph_task_id
from ..core.untaken import excused
from .observe import tensors

Tensor = torch.Tensor
_UNSET = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_"}
)
_LINE = "pushforward line"


class NanError(TransformError, FloatingPointError):
    """An operator made a NaN or an infinity under `debug_nans`.

    Attributes:
        operator: its name.
        source: `file.py:line` of the user's code.
        role: "value", "tangent" or "cotangent".

    Failing:

    >>> import torch, pushforward as pf
    >>> with pf.debug_nans():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     pf.grad(lambda x: torch.sqrt(x).sum())(torch.zeros(2))
    Traceback (most recent call last):
    pushforward.check.nans.NanError: ...

    Fixed, by keeping away from the point where the derivative is infinite:

    >>> with pf.debug_nans():
    ...     pf.grad(lambda x: torch.sqrt(x + 1).sum())(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, operator: str, source: str, role: str, message: str) -> None:
        super().__init__(message)
        self.operator, self.source, self.role = operator, source, role


class debug_nans(contextlib.AbstractContextManager):
    """A context in which the first NaN or infinity is an error that names its operator and line.

    Works for plain code, under every transform and nesting, and in backward passes. The message says whether a value, a
    tangent or a cotangent went bad, and the range of the operator's inputs.

    Args:
        infinities: whether infinities count, too. An operator given an infinity (a mask of -inf) may return one.

    Raises:
        NanError: at the operator.

    Example:
        >>> import torch, pushforward as pf
        >>> with pf.debug_nans():
        ...     pf.jvp(torch.sqrt, (torch.ones(1),), (torch.ones(1),))[1]
        tensor([0.5000])
    """

    def __init__(self, *, infinities: bool = True) -> None:
        self.infinities = infinities

    def __enter__(self) -> debug_nans:
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(_Lines())
        self.stack.enter_context(_Watch(self.infinities))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()


class _Lines(TorchFunctionMode):
    """Writes the user's line on the graph's nodes, for the backward pass to tell."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if graph_task_id() == -1 and getattr(func, "__name__", "") not in ("__get__", "__set__"):
            line = None
            with NoFunction():
                pending = [o.grad_fn for o in tensors(out) if o.grad_fn is not None]
            while pending:
                fn: Any = pending.pop()
                if fn is None or not hasattr(fn, "metadata") or _LINE in fn.metadata:
                    continue
                line = line or source_line()
                fn.metadata[_LINE] = line
                pending += [f for f, _ in fn.next_functions]
        return out


class _Watch(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler imports it, which takes seconds

    def __init__(self, infinities: bool) -> None:
        super().__init__()
        self.infinities = infinities

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        before = worst([args, list(kwargs.values())]) if writes else None
        out = func(*args, **kwargs)
        if name in _UNSET or name in ("detach", "alias"):
            return out
        after = worst(out)
        if after == 0 or (after == 1 and not self.infinities):
            return out
        if before is None:
            before = worst([args, list(kwargs.values())])
        if after > before and not (graph_task_id() != -1 and excused(not_finite(out, after))):
            raise found(name, args, out, after)
        return out


def worst(value: Any) -> int:
    """0 where all is finite, 1 where there is an infinity, 2 where there is a NaN, at any depth."""
    if isinstance(value, float):
        return 2 if math.isnan(value) else 1 if math.isinf(value) else 0
    if isinstance(value, Tensor):
        if not (value.is_floating_point() or value.is_complex()) or value.numel() == 0 or value.device.type == "meta":
            return 0
        x = value.detach()
        if x.layout is not torch.strided:
            x = x.to_dense()
        if bool(torch.isfinite(x).all()):
            return 0
        return 2 if bool(torch.isnan(x).any()) else 1
    if isinstance(value, (list, tuple)):
        return max((worst(v) for v in value), default=0)
    return 0


def not_finite(out: Any, kind: int) -> Tensor:
    """Where the worst of some tensors is not finite."""
    bad = next(o for o in tensors(out) if worst(o) == kind).detach()
    return torch.isnan(bad) if kind == 2 else ~torch.isfinite(bad)


def found(name: str, args: Any, out: Any, kind: int) -> NanError:
    """The error for an operator that made a NaN or an infinity."""
    what = "a NaN" if kind == 2 else "an infinity"
    role, outer, line = whose(name, args)
    mask = not_finite(out, kind)
    place = mask.nonzero()[0].tolist()
    ranges = "; ".join(
        f"input {k}: {described(a)}"
        for k, a in enumerate(args)
        if isinstance(a, (Tensor, float, int)) and not isinstance(a, bool)
    )
    of = f"the {role}" if outer in (None, name) else f"the {role} of `{outer}` (by `{name}`)"
    verb = f"`{name}` makes" if outer in (None, name) else "there is"
    text = (
        f"{verb} {what} in {of} at {line}: {int(mask.sum())} of {mask.numel()} elements, the first at {place}. {ranges}"
    )
    return NanError(outer or name, line, role, text)


def described(a: Any) -> str:
    """Shape and range of an input."""
    if not isinstance(a, Tensor):
        return repr(a)
    x = a.detach()
    if not x.numel() or x.is_complex() or x.dtype is torch.bool:
        return f"shape {list(x.shape)}"
    finite = x[torch.isfinite(x)] if x.is_floating_point() else x
    if not finite.numel():
        return f"shape {list(x.shape)}, nothing finite"
    zeros = int((x == 0).sum())
    more = f", {zeros} of {x.numel()} are 0" if zeros else ""
    return f"shape {list(x.shape)}, from {float(finite.min()):.4g} to {float(finite.max()):.4g}{more}"


def whose(name: str, args: Any) -> tuple[str, str | None, str]:
    """Whether an operator computes a value, tangent or cotangent; of which operator; and the user's line."""
    line = source_line()
    if graph_task_id() != -1:
        node: Any = current_node()
        if node is None:
            return "cotangent", None, line
        own = user_backward()
        known = node.metadata.get(_LINE) if hasattr(node, "metadata") else None
        return "cotangent", node.name(), own or known or line
    frame: Any = sys._getframe(1)
    outer, role = None, "value"
    while frame is not None:
        code, inside = frame.f_code, frame.f_locals
        if code.co_name == "compute" and code.co_filename.endswith("forward/level.py") and "primals" in inside:
            above = inside["func"]._schema.name.removeprefix("aten::")
            same = above == name and all(
                a is p or (not isinstance(a, Tensor) and not isinstance(p, Tensor) and a == p)
                for a, p in zip(args, inside["primals"], strict=False)
            )
            if inside["moving"] and not same:
                role = "tangent"
            outer, name, args = above, above, inside["args"]
        frame = frame.f_back
    return role, outer, line


def user_backward() -> str | None:
    """The line within a `backward` of the user, if one is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library_file(name):
            return f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}" if frame.f_code.co_name == "backward" else None
        frame = frame.f_back
    return None
