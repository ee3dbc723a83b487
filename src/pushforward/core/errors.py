"""Errors and warnings, each with a failing and a fixed example.

All errors derive from `TransformError`; all warnings from `TransformWarning`.
"""

from __future__ import annotations

import threading
from typing import Any


class _Refusals(threading.local):
    count = 0


REFUSALS = _Refusals()  # what this thread was refused so far: a function that caught an error went another way than it would have


class TransformError(RuntimeError):
    """Base of the errors the transforms raise."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        REFUSALS.count += 1


class CapturedWriteError(TransformError):
    """A value of a transform was written into a tensor made outside of it.

    Failing:

    >>> import torch, pushforward as pf
    >>> total = torch.zeros(3)
    >>> def f(x):
    ...     total.add_(x)
    ...     return x
    >>> pf.vmap(f)(torch.ones(2, 3))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.core.errors.CapturedWriteError: ...

    Fixed, by making the buffer inside (or by passing it in with an `in_dims` of its own):

    >>> def f(x):
    ...     total = torch.zeros(3)
    ...     total.add_(x)
    ...     return total
    >>> pf.vmap(f)(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """


class ArgumentWriteError(TransformError):
    """A function of which a gradient is taken writes into its argument.

    Failing:

    >>> import torch, pushforward as pf
    >>> def f(x):
    ...     x *= 2
    ...     return (x * x).sum()
    >>> pf.grad(f)(torch.ones(3))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.core.errors.ArgumentWriteError: ...

    Fixed, by writing into a copy:

    >>> pf.grad(lambda x: f(x.clone()))(torch.ones(3))
    tensor([8., 8., 8.])
    """


class EscapedValueError(TransformError):
    """A traced value was used after its transform had ended.

    Failing:

    >>> import torch, pushforward as pf
    >>> kept = []
    >>> def f(x):
    ...     kept.append(x * 2)
    ...     return x
    >>> _ = pf.jvp(f, (torch.ones(2),), (torch.ones(2),))
    >>> kept[0] + 1  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.core.errors.EscapedValueError: ...

    Fixed, by returning it:

    >>> def f(x):
    ...     return x, x * 2
    >>> out, tangent = pf.jvp(f, (torch.ones(2),), (torch.ones(2),))
    """


class RandomnessError(TransformError):
    """A random operator was met under `vmap(..., randomness="error")`.

    Failing:

    >>> import torch, pushforward as pf
    >>> pf.vmap(lambda x: x + torch.rand(()))(torch.ones(2))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.core.errors.RandomnessError: ...

    Fixed, by saying which draws are wanted:

    >>> pf.vmap(lambda x: x + torch.rand(()), randomness="different")(torch.ones(2)).shape
    torch.Size([2])
    """


class ArgumentError(TransformError, ValueError):
    """An argument of a transform does not fit: the message names it, what was given and what is wanted.

    Failing:

    >>> import torch, pushforward as pf
    >>> pf.vmap(torch.dot)(torch.ones(2, 3), torch.ones(4, 3))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.core.errors.ArgumentError: ...

    Fixed:

    >>> pf.vmap(torch.dot)(torch.ones(2, 3), torch.ones(2, 3))
    tensor([3., 3.])
    """


class NotDifferentiableError(TransformError):
    """No derivative of the order asked for exists for an operator.

    Failing: a custom operator without a backward formula.

    Fixed, by registering one with `torch.library.register_autograd`, or by detaching its input.
    """


class DerivativeLostError(TransformError):
    """Under `strict=True` a differentiated value was read as a Python number.

    Failing:

    >>> import torch, pushforward as pf
    >>> f = lambda x: x * float(x.sum())
    >>> pf.jvp(f, (torch.ones(2),), (torch.ones(2),), strict=True)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.core.errors.DerivativeLostError: ...

    Fixed, by staying with tensors:

    >>> out, tangent = pf.jvp(lambda x: x * x.sum(), (torch.ones(2),), (torch.ones(2),), strict=True)
    """


class DivergenceError(TransformError):
    """Under `divergence="error"` the lanes of a `vmap` disagreed on a Python value.

    Fixed, by `torch.where`, or by `divergence="split"`, the default, which runs each group of lanes on its own.
    """


class TransformWarning(UserWarning):
    """Base of the warnings the transforms give."""


class SlowFallback(TransformWarning):
    """An operator has no rule of its own here and was run by a slow fallback: once per operator.

    The number is right; the speed is that of a loop. `warnings.simplefilter("error", pf.SlowFallback)` makes it an error.
    """


class DerivativeLost(TransformWarning):
    """A differentiated value was read as a Python number (`.item()`, `float()`, `.numpy()`, `f"{x:.2f}"`): once per source line."""


class EscapedValue(TransformWarning):
    """A mapped value was used after its `vmap` had ended; its lanes, stacked at dim 0, stand for it."""
