"""Losses of classes: the target picks classes, so it has no derivative, and each is written out by gathering.

Linear ones (negative log likelihood) keep torch's kernel for the tangent; margin losses are sums of hinges, flat at
their kinks.
"""

from __future__ import annotations

from typing import Any

import torch

from .derived import pulled_back
from .kinds import Special
from .loss import MEAN, NONE, reduced
from .table import row

Tensor = torch.Tensor


def picked(target: Tensor, classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The targets with something harmless in place of ignored ones, and which are kept."""
    kept = target != ignore_index
    return torch.where(kept, target, 0), kept


def weights_of(safe: Tensor, kept: Tensor, weight: Tensor | None, like: Tensor) -> Tensor:
    """The weight of each sample, 0 for ignored ones."""
    if weight is None:
        return kept.to(like.dtype)
    return torch.where(kept, weight[safe], 0).to(like.dtype)


def nll(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(−w_t x_t reduced, the total weight); x is `[C]`, `[N, C]` or `[N, C, …]`."""
    axis = 0 if x.dim() == 1 else 1
    safe, kept = picked(target, x.shape[axis], ignore_index)
    w = weights_of(safe, kept, weight, x)
    each = -x.gather(axis, safe.unsqueeze(axis)).squeeze(axis)
    each = torch.where(kept, each * w, 0).to(x.dtype)
    if reduction == NONE and x.dim() > 1:
        return each, torch.zeros_like(w.sum())
    total = w.sum()
    return (each.sum() / total if reduction == MEAN else each.sum()), total


def nll_backward(
    g: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Tensor:
    """−w_t g at the target class, divided by the total weight for a mean."""
    axis = 0 if x.dim() == 1 else 1
    safe, kept = picked(target, x.shape[axis], ignore_index)
    w = weights_of(safe, kept, weight, x)
    each = -(g / total if reduction == MEAN else g) * w
    each = torch.where(kept, each, 0).to(x.dtype).expand(target.shape)
    return torch.zeros_like(x).scatter(axis, safe.unsqueeze(axis), each.unsqueeze(axis))


def nll_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Linear in the scores; a weight that moves is left to the written-out loss."""
    x, target, weight, reduction, ignore_index = primals
    dx, _, dw = tangents[:3]
    out = op(*primals, **kwargs)
    moved = None if dx is None else op(dx, *primals[1:], **kwargs)[0]
    if dw is not None:
        axis = 0 if x.dim() == 1 else 1
        safe, kept = picked(target, x.shape[axis], ignore_index)
        each = -x.gather(axis, safe.unsqueeze(axis)).squeeze(axis)
        w, push = weights_of(safe, kept, weight, x), weights_of(safe, kept, dw, x)
        if reduction == MEAN:
            loss = (each * w).sum() / w.sum()
            part = ((each - loss) * push).sum() / w.sum()
        else:
            part = each * push if reduction == NONE else (each * push).sum()
        moved = part if moved is None else moved + part
        return out, (moved, None if reduction == NONE and x.dim() > 1 else push.sum())
    return out, (moved, None)


def batch_nll(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The samples of all lanes by one call of torch's kernel, then reduced lane by lane."""
    x, target, weight, reduction, ignore_index = args
    if mapped[2] or not mapped[0] or kwargs:
        return NotImplemented  # the formula knows every other case
    size = level.size
    t = target if mapped[1] else target.unsqueeze(0).expand(size, *target.shape)
    single = x.dim() == 2
    each = op(x if single else x.flatten(0, 1), t if single else t.flatten(0, 1), weight, NONE, ignore_index)[0]
    each = each.view(t.shape) if not single else each
    if reduction == NONE and not single:
        return each, each.new_zeros(size)
    safe, kept = picked(t, x.shape[1 if single else 2], ignore_index)
    w = kept.to(x.dtype) if weight is None else weights_of(safe, kept, weight, x)
    if not single:
        each, w = each.flatten(1).sum(1), w.flatten(1).sum(1)
    return each / w if reduction == MEAN else each, w


for _name in ("nll_loss", "nll_loss2d"):
    row(_name + "_forward", Special(), formula=nll, tangent=nll_tangent, batch=batch_nll)
    row(_name + "_backward", Special(), formula=nll_backward)


def multi_margin(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """Σ_{j ≠ t} w_t max(0, margin − x_t + x_j)^p / C."""
    single = x.dim() <= 1
    rows, t = (x.reshape(1, -1), target.reshape(1)) if single else (x, target)
    classes = rows.shape[1]
    z = margin - rows.gather(1, t.unsqueeze(1)) + rows
    hinge = torch.where(z > 0, z if p == 1 else z * z, 0).to(x.dtype)
    if weight is not None:
        hinge = hinge * weight[t].unsqueeze(1)
    own = torch.arange(classes, device=x.device) == t.unsqueeze(1)
    each = torch.where(own, 0, hinge).to(x.dtype).sum(1) / classes
    each = each.reshape(target.shape) if single else each
    return reduced(each, reduction)


def multi_margin_backward(
    g: Tensor, x: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """The reverse mode of the written-out loss."""
    return pulled_back(lambda z: multi_margin(z, target, p, margin, weight, reduction), [x], [g])[0]


def multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Σ_{j a target, i none} max(0, 1 − x_j + x_i) / C, targets up to the first −1; and which classes are targets."""
    rows, t = (x.reshape(1, -1), target.reshape(1, -1)) if x.dim() <= 1 else (x, target)
    classes = rows.shape[1]
    live = (t >= 0).to(torch.int64).cumprod(1).to(torch.bool)
    safe = torch.where(live, t, 0)
    classes_of = torch.arange(classes, device=x.device)
    is_target = ((safe.unsqueeze(2) == classes_of) & live.unsqueeze(2)).any(1)
    z = 1 - rows.gather(1, safe).unsqueeze(2) + rows.unsqueeze(1)
    counted = live.unsqueeze(2) & ~is_target.unsqueeze(1) & (z > 0)
    each = torch.where(counted, z, 0).to(x.dtype).sum((1, 2)) / max(classes, 1)
    each = each.reshape(()) if x.dim() <= 1 else each
    return reduced(each, reduction), is_target.to(x.dtype).reshape(target.shape)


def multilabel_margin_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    """The reverse mode of the written-out loss."""
    del is_target
    return pulled_back(lambda z: multilabel_margin(z, target, reduction)[0], [x], [g])[0]


def batch_margin(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """As `batch_nll`, where all that is mapped are the scores (`[]`, `[C]` or `[N, C]`) and the targets."""
    x, target, *rest = [*args, *(a.default_value for a in op._schema.arguments[len(args) :])]
    if not mapped[0] or any(mapped[2:]) or kwargs or not level.size:
        return NotImplemented  # the formula knows every other case
    one_class = op is torch.ops.aten.multi_margin_loss.default
    t = target if mapped[1] else target.unsqueeze(0).expand(level.size, *target.shape)
    samples = x.shape[:-1] if x.dim() > 1 else x.shape
    rows = t.reshape(-1) if one_class else t.reshape(samples.numel(), -1)
    out = op(x.reshape(samples.numel(), -1), rows, *rest[:-1], NONE)
    each, *others = out if isinstance(out, tuple) else (out,)
    each = reduced_lanes(each.reshape(t.shape if one_class else samples), rest[-1])
    return (each, *(o.reshape(t.shape) for o in others)) if others else each


def reduced_lanes(x: Tensor, reduction: int) -> Tensor:
    """The reduction of each lane."""
    if reduction == NONE:
        return x
    rows = x.reshape(x.shape[0], -1)
    return rows.mean(1) if reduction == MEAN else rows.sum(1)


row("multi_margin_loss", Special(), formula=multi_margin, batch=batch_margin)
row("multi_margin_loss_backward", Special(), formula=multi_margin_backward)
row("multilabel_margin_loss_forward", Special(), formula=multilabel_margin, batch=batch_margin)
row("multilabel_margin_loss_backward", Special(), formula=multilabel_margin_backward)
