"""For the tests of your own operators: one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .check.check import check
from .check.report import CheckReport

__all__ = ["assert_derivatives"]


def assert_derivatives(
    func: Callable[..., Any], *args: Any, order: int = 1, modes: Sequence[str] = ("forward", "reverse"), seed: int = 0
) -> CheckReport:
    """Fail, with a report that names operator and line, unless the derivatives of `func` at `args` are right.

    Args:
        func: a function or module.
        args: its inputs.
        order: the highest derivative to check.
        modes: "forward", "reverse" or both.
        seed: for the random directions.

    Returns:
        The report; kinks and rounding are findings in it.

    Raises:
        WrongDerivativeError: an AssertionError; its message is the report.

    Example:
        >>> import torch
        >>> from pushforward.testing import assert_derivatives
        >>> assert_derivatives(torch.sin, torch.ones(3)).ok
        True
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    return check(func, args, order=order, modes=modes, seed=seed).raise_if_wrong()
