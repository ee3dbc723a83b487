"""Short ways of products under `vmap`: vectors and matrices, mapped or not, and `F.linear`.

As in `batch.fast`. A factor that is one for each lane in name only, as weights are that a gradient is taken by, is multiplied once
for all lanes (`ops.shared`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.level import recorded_below
from ..core.methods import register_method
from ..core.torch_private import autocast_on
from ..ops.shared import is_shared, shared_matmul
from .fast import direct
from .level import Batched, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

RANKS = {  # of both factors, where the function takes no others: the long way raises the error
    torch.mv: (2, 1), Tensor.mv: (2, 1), torch.mm: (2, 2), Tensor.mm: (2, 2), torch.dot: (1, 1), Tensor.dot: (1, 1),
}  # fmt: skip


def payload_of(level: Any, x: Any) -> Any:
    """The payload of a mapped value of the level, or a tensor from outside; None for others."""
    kind = type(x)
    if kind is Batched:
        p = x._payload
        return p if x._level is level and x._mapped and type(p) is Tensor else None
    return x if (kind is Tensor or kind is Parameter) and recorded_below(level, x) else None


def product(func: Any, args: tuple[Any, ...]) -> Any:
    """A product of vectors or matrices, at least one of them mapped."""
    if len(args) != 2:
        return None
    a, b = args
    x = a if type(a) is Batched else b
    if type(x) is not Batched or not x._mapped:
        return None
    level = x._level
    if not level.on_top() or autocast_on():
        return None
    p, q = payload_of(level, a), payload_of(level, b)
    if p is None or q is None or p.dtype is not q.dtype:
        return None
    first, second = type(a) is Batched, type(b) is Batched
    ranks = p.dim() - first, q.dim() - second
    known = RANKS.get(func)
    if known is not None and known != ranks:
        return None
    if ranks not in WAYS or p.shape[-1] != q.shape[-1 if ranks[1] == 1 else -2]:
        if not (first and ranks[1] == 2 and not second and ranks[0] > 2 and p.shape[-1] == q.shape[0]):
            return None
        return wrap(level, direct(torch.matmul, p, q, held=level.held), True)
    way = WAYS[ranks][0 if first and second else 1 if first else 2]
    return wrap(level, direct(way, p, q, held=level.held), True)


def _dots(p: Tensor, q: Tensor) -> Tensor:
    return torch.bmm(p.unsqueeze(1), q.unsqueeze(2)).view(-1)


def _rows_by_matrices(p: Tensor, q: Tensor) -> Tensor:
    rows = p.unsqueeze(1)
    return (shared_matmul(rows, q) if is_shared(q) else torch.bmm(rows, q)).squeeze(1)


def _matrices_by_columns(p: Tensor, q: Tensor) -> Tensor:
    if is_shared(p):
        return shared_matmul(q.unsqueeze(1), p.transpose(1, 2)).squeeze(1)
    return torch.bmm(p, q.unsqueeze(2)).squeeze(2)


def _matrices(p: Tensor, q: Tensor) -> Tensor:
    return shared_matmul(p, q) if is_shared(q) else torch.bmm(p, q)


def _one_matrix_by_columns(p: Tensor, q: Tensor) -> Tensor:
    return torch.mm(q, p.t())


def _swapped_mv(p: Tensor, q: Tensor) -> Tensor:
    return torch.mv(q, p)


WAYS: dict[tuple[int, int], tuple[Any, Any, Any]] = {  # by ranks: both factors mapped, the first one, the second one
    (1, 1): (_dots, torch.mv, _swapped_mv),
    (1, 2): (_rows_by_matrices, torch.mm, torch.matmul),
    (2, 1): (_matrices_by_columns, torch.matmul, _one_matrix_by_columns),
    (2, 2): (_matrices, torch.matmul, torch.matmul),
}


def linear(func: Any, args: tuple[Any, ...]) -> Any:
    """`F.linear` of a mapped input, with weights from outside or with shared ones that a gradient is taken by."""
    x, w = args[0], args[1]
    bias = args[2] if len(args) > 2 else None
    if type(x) is not Batched or not x._mapped or type(x._payload) is not Tensor or x._payload.dim() < 2:
        return None
    level = x._level
    if not level.on_top():
        return None
    if type(w) is Batched:
        q = w._payload
        if not w._mapped or w._level is not level or type(q) is not Tensor or q.dim() != 3 or not is_shared(q):
            return None
        if type(bias) is Batched:
            if not bias._mapped or bias._level is not level or type(bias._payload) is not Tensor:
                return None
            bias = bias._payload
        elif bias is not None:
            return None
        if q.dtype is not x._payload.dtype or autocast_on():
            return None
        if bias is not None and (bias.dtype is not q.dtype or bias.dim() != 2 or bias.shape[1] != q.shape[1]):
            return None
        return wrap(level, direct(_shared_linear, x._payload, q, bias, held=level.held), True)
    if bias is not None and (w.dim() != 2 or bias.dim() != 1):
        return None  # a bias of more dimensions is the long way's to judge
    for v in (w, bias):
        if v is not None and ((type(v) is not Tensor and type(v) is not Parameter) or not recorded_below(level, v)):
            return None
    return wrap(level, direct(func, x._payload, *args[1:], held=level.held), True)


def _shared_linear(p: Tensor, q: Tensor, bias: Tensor | None) -> Tensor:
    flat = p.unsqueeze(1) if p.dim() == 2 else p if p.dim() == 3 else p.flatten(1, -2)
    out = shared_matmul(flat, q.transpose(1, 2))
    if bias is not None:
        out = out + bias.unsqueeze(1)
    return out if p.dim() == 3 else out.reshape(*p.shape[:-1], q.shape[1])


def register() -> None:
    """Fill the table of short ways."""
    table = Batched._fast
    for name in ("matmul", "mv", "mm", "dot"):
        table[getattr(torch, name)] = table[getattr(Tensor, name)] = product
        register_method(Batched, name, product)
    table[Tensor.__matmul__] = product
    register_method(Batched, "__matmul__", product)
    table[torch.nn.functional.linear] = linear


register()
