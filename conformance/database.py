"""Operators and sample calls of PyTorch's own database.

`torch.testing._internal` is private. It ships in the wheel and is the only list of sample calls for every operator that
torch's own tests trust, so the sweep reads it, here and nowhere else; the tests do without it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .compare import is_real_or_complex

Tensor = torch.Tensor
POOL = 64  # samples are picked from this many; some generators go on for hundreds
UNSPECIFIED = re.compile(r"(new_)?empty(_like|_strided|_permuted)?|resize_(as_)?")  # memory that nobody has written


class NothingToCompareError(Exception):
    """The check does not apply: the operator has no tensors here, draws numbers, has no derivative."""


class MustRefuseError(Exception):
    """There is no right answer, so the library must raise."""


class TorchFailsError(Exception):
    """Torch's own loop or autograd raises at this sample, so that there is nothing right to compare with."""


def operators(pattern: str) -> list[Any]:
    """The operators whose name matches, in the database's order."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes many seconds

    return [op for op in op_db if re.search(pattern, op.formatted_name)]


def is_tensor(x: Any) -> bool:
    """Whether `x` is a tensor, traced or not."""
    return isinstance(x, Tensor)


def first_line(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}"


class Call:
    """One sample call, taken apart: its tensors can be put in anew."""

    def __init__(self, op: Any, sample: Any) -> None:
        self.op = op
        self.after = sample.output_process_fn_grad or (lambda out: out)
        given, self.structure = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        self.dense = all(x.layout is torch.strided for x in given if is_tensor(x))
        self.places = {
            "tensors": [k for k, x in enumerate(given) if is_tensor(x)],
            "numbers": [k for k, x in enumerate(given) if is_real_or_complex(x)],
            "variables": [k for k, x in enumerate(given) if is_tensor(x) and x.requires_grad],
        }
        self.leaves = [x.detach() if is_tensor(x) else x for x in given]

    def at(self, which: str) -> list[Tensor]:
        """The sample's own tensors at the places called `which`."""
        return [self.leaves[k].detach().clone() for k in self.places[which]]

    def function(self, which: str, wide: bool = False) -> Any:
        """The call as a function of the tensors at `which`; the others are copies of its own.

        For "variables" it is the function that the database says has a derivative: some operators are wrapped so that
        their input is symmetric or positive, and their output is free of a gauge. `wide`: in double precision.
        `constants` of the function are the other tensors, which it may write into.
        """
        inside = set(self.places[which])
        constants = [
            widened(x, wide).clone() if is_tensor(x) and k not in inside else x for k, x in enumerate(self.leaves)
        ]

        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            leaves = list(constants)
            for k, t in zip(self.places[which], tensors, strict=True):
                leaves[k] = t
            first, args, kwargs = tree_unflatten(leaves, self.structure)
            if which == "variables":
                out = self.after(self.op.gradcheck_wrapper(self.op.op, first, *args, **kwargs))
                return tuple(x for x in tree_leaves(out) if is_real_or_complex(x))
            return tuple(x for x in tree_leaves(self.op.op(first, *args, **kwargs)) if is_tensor(x))

        call.constants = [x for x in constants if is_tensor(x)]
        return call


def widened(x: Tensor, wide: bool = True) -> Tensor:
    """`x` in double precision."""
    return x.to(torch.promote_types(x.dtype, torch.float64)) if wide and is_real_or_complex(x) else x


def calls(op: Any, dtype: torch.dtype, count: int) -> Iterator[Call]:
    """Up to `count` sample calls, evenly from the first `POOL`."""
    if UNSPECIFIED.fullmatch(op.name):
        raise NothingToCompareError("memory that nobody has written")
    if dtype not in op.supported_dtypes("cpu"):
        raise NothingToCompareError(f"the database has no {dtype} for it on the CPU")
    torch.manual_seed(0)
    try:
        samples = op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd)
        pool = list(itertools.islice(samples, POOL))
    except Exception as error:
        raise TorchFailsError(f"its samples cannot be made: {first_line(error)}") from None
    if not pool:
        raise NothingToCompareError("the database has no sample")
    count = min(count, len(pool))
    for k in sorted({round(i * (len(pool) - 1) / max(count - 1, 1)) for i in range(count)}):
        yield Call(op, pool[k])
