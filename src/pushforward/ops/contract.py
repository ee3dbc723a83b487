"""Contractions: sums of products. Linear in each factor, so the tangent is the sum over the factors.

Batching puts the mapped dimension where the operator already loops: `mm` becomes `bmm` or one larger `mm`.
"""

from __future__ import annotations

from typing import Any

import torch

from .kinds import Bilinear, Constant, Decomposed
from .lanes import all_in_front, merged, merged_at, parted, parted_at, some_lanes
from .shared import is_shared, shared_matmul
from .table import row

Tensor = torch.Tensor


def matmul2(a: Tensor, am: bool, b: Tensor, bm: bool) -> Tensor:
    """Batched `[n, k] @ [k, m]`, as one matrix product where one side is shared."""
    if am and not bm:
        if b.layout is not torch.strided or not a.is_contiguous():
            if b.layout is not torch.strided:
                return torch.stack([x @ b for x in a.unbind(0)])
            return a @ b
        size, n, k = a.shape
        return (a.reshape(size * n, k) @ b).reshape(size, n, b.shape[1])
    if bm and not am and a.layout is not torch.strided:
        size, k, m = b.shape
        flat = a @ b.permute(1, 0, 2).reshape(k, size * m)
        return flat.reshape(a.shape[0], size, m).permute(1, 0, 2)
    if am and bm:
        if is_shared(b):
            return shared_matmul(a, b)
        if is_shared(a):
            return shared_matmul(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2)
    return a @ b


def check_ranks(op: Any, args: list[Any], mapped: Any, *ranks: int) -> None:
    """The arguments of one lane have the ranks that the operator wants: `@` would take others too."""
    own = [x.dim() - (1 if m else 0) for x, m in zip(args, mapped, strict=False)]
    if any(r != n for r, n in zip(ranks, own, strict=False)):
        expected, got = " and ".join(f"{r}-D" for r in ranks), " and ".join(f"{n}-D" for n in own[: len(ranks)])
        msg = f"{op.name()}: expected {expected} tensors, but got {got}"
        raise RuntimeError(msg)


def batch_mm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """mm: two logical matrices."""
    del level, kwargs
    check_ranks(op, args, mapped, 2, 2)
    return matmul2(args[0], mapped[0], args[1], mapped[1])


def batch_bmm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """bmm: stacks of matrices; the stacks of all lanes become one."""
    del kwargs
    check_ranks(op, args, mapped, 3, 3)
    a, b = (x if m else x.unsqueeze(0).expand(level.size, *x.shape) for x, m in zip(args[:2], mapped, strict=False))
    stack = a.shape[1]
    out = op(a.flatten(0, 1), b.flatten(0, 1))
    return out.reshape(level.size, stack, *out.shape[1:])


def batch_mv(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """mv: a matrix and a vector."""
    del level, kwargs
    check_ranks(op, args, mapped, 2, 1)
    a, v = args[0], args[1]
    if mapped[1] and not mapped[0]:
        return v @ a.t()
    if mapped[0] and mapped[1] and is_shared(a):
        return shared_matmul(v.unsqueeze(1), a.transpose(1, 2)).squeeze(1)
    return (a @ v.unsqueeze(-1)).squeeze(-1)


def batch_dot(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """dot, vdot: one matrix-vector product where one side is shared."""
    del level, kwargs
    check_ranks(op, args, mapped, 1, 1)
    a, b = args[0], args[1]
    if "vdot" in op.name() and a.is_complex():
        a = a.conj()
    if mapped[0] and mapped[1]:
        return (a.unsqueeze(1) @ b.unsqueeze(2)).reshape(a.shape[0])
    return a @ b if mapped[0] else b @ a


def batch_add_product(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """addmm, addmv, baddbmm, addr: beta · self + alpha · product."""
    name = op.name().split("::")[1].split(".")[0]
    product = {
        "addmm": batch_mm,
        "addmv": batch_mv,
        "baddbmm": batch_bmm,
        "addr": batch_outer,
        "addbmm": batch_sum_bmm,
    }[name]
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    inner = torch.ops.aten.bmm.default if name in ("baddbmm", "addbmm") else op
    if mapped[1] or mapped[2]:
        out = product(inner, level, args[1:], mapped[1:], {})
    else:
        plain = {"addmm": torch.mm, "addmv": torch.mv, "baddbmm": torch.bmm, "addr": torch.outer}
        out = (torch.bmm(args[1], args[2]).sum(0) if name == "addbmm" else plain[name](args[1], args[2])).unsqueeze(0)
    if alpha != 1:
        out = out * alpha
    if beta == 0:
        return out.expand(level.size, *out.shape[1:])
    x = args[0]
    if x.dim() - int(mapped[0]) > out.dim() - 1:
        msg = f"{op.name()}: expected at most {out.dim() - 1} dimensions of what is added to, got {x.dim() - int(mapped[0])}"
        raise RuntimeError(msg)
    lane = x.shape[1:] if mapped[0] else x.shape
    if any(n not in (1, m) for n, m in zip(reversed(lane), reversed(out.shape[1:]), strict=False)):
        msg = f"{op.name()}: the expanded size of what is added to, {list(lane)}, does not match the product's, {list(out.shape[1:])}"
        raise RuntimeError(msg)
    if x.dtype is not out.dtype and name != "addr":
        msg = f"{op.name()}: what is added to has dtype {x.dtype}, the product {out.dtype}; they must be the same"
        raise RuntimeError(msg)
    if mapped[0]:
        x = x.reshape(level.size, *[1] * (out.dim() - x.dim()), *x.shape[1:])
    return (x if beta == 1 else x * beta) + out


def batch_outer(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The outer product of two vectors."""
    del level, kwargs
    check_ranks(op, args, mapped, 1, 1)
    return args[0].unsqueeze(-1) * args[1].unsqueeze(-2)


def batch_sum_bmm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """bmm summed over its stack."""
    return batch_bmm(op, level, args, mapped, kwargs).sum(1)


def trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1
) -> Tensor:
    """Σ a b c over some dimensions, after new ones in each: the product behind `bilinear`."""
    del unroll_dim
    if not a.numel() * b.numel() * c.numel():  # einsum cannot resolve its reshapes
        for d in sorted(expand1):
            a = a.unsqueeze(d)
        for d in sorted(expand2):
            b = b.unsqueeze(d)
        for d in sorted(expand3):
            c = c.unsqueeze(d)
        return (a * b * c).sum(sumdim)
    letters = "abcdefghijklmnopqrstuvw"[: a.dim() + len(expand1)]
    kept = "".join(x for d, x in enumerate(letters) if d not in sumdim)
    terms = ["".join(x for d, x in enumerate(letters) if d not in new) for new in (expand1, expand2, expand3)]
    return torch.einsum(f"{','.join(terms)}->{kept}", a, b, c)


def add_product_activated(
    x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Tensor:
    """relu, or gelu by its tanh, of addmm."""
    out = torch.addmm(x, a, b, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(out, approximate="tanh") if use_gelu else out.relu()


row("_trilinear", Decomposed(trilinear))
row("_addmm_activation", Decomposed(add_product_activated))
row("mm", Bilinear(), batch=batch_mm)
row("bmm", Bilinear(), batch=batch_bmm)
row("mv", Bilinear(), batch=batch_mv)
row("dot vdot", Bilinear(), batch=batch_dot)
row("addmm addmv baddbmm addr addbmm", Bilinear(factors=(1, 2), plus=0), batch=batch_add_product)


@some_lanes
def batch_int_mm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """A product of bytes in int32: the lanes of one side are more rows, or columns; those of both are products of their own."""
    check_ranks(op, args, mapped, 2, 2)
    (a, b), size = args, level.size
    if not mapped[1]:
        return op(merged(a), b, **kwargs).reshape(size, -1, b.shape[1])
    if not mapped[0]:
        return parted_at(op(a, merged_at(b, 1), **kwargs), 1, size)
    return torch.stack([op(x, y, **kwargs) for x, y in zip(a.unbind(0), b.unbind(0), strict=True)])


@some_lanes
def batch_grouped_mm(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """Products of groups: the groups of all lanes are more groups; where offsets part the rows, a call for each lane."""
    a, b, *rest = all_in_front(args, mapped, level.size)
    named = getattr(mapped, "keywords", ())
    if a.dim() == b.dim() == 4 and not any(isinstance(r, Tensor) for r in (*rest, *kwargs.values())):
        return parted(op(merged(a), merged(b), *rest, **kwargs), level.size, a.shape[1])
    made = []
    for k in range(level.size):
        lane = [r[k] if isinstance(r, Tensor) else r for r in (a, b, *rest)]
        made.append(op(*lane, **{n: v[k] if n in named else v for n, v in kwargs.items()}))
    return torch.stack(made)


def grouped_mm_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Linear in each factor; torch refuses a bias so far."""
    del level
    moved = [k for k in (0, 1) if tangents[k] is not None]
    parts = [op(*[tangents[k] if j == k else p for j, p in enumerate(primals)], **kwargs) for k in moved]
    return op(*primals, **kwargs), parts[0] if len(parts) == 1 else parts[0] + parts[1]


row("_int_mm", Constant(), batch=batch_int_mm)
row("_grouped_mm", Bilinear(), batch=batch_grouped_mm, tangent=grouped_mm_tangent)
