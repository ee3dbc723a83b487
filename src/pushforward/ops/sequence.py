"""Sums over sequences: the CTC loss over all alignments, and reductions of segments.

CTC, in logarithms, over the target with blanks between: α_t(s) = log p_t(s) + log Σ α_{t−1}(s, s − 1, s − 2 where
allowed), and the loss is −log of the last two. Torch's gradient is the one by unnormalised scores: exp(log p) more
than the derivative above, which is the same for log-probabilities that come from a log-softmax; the term is kept, so
that all orders and both modes agree.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..core.fresh import stopped
from .derived import pulled_back
from .kinds import Special
from .lanes import in_front, merged_at, some_lanes
from .table import row

Tensor = torch.Tensor
LOW = -math.inf


def log_sum(parts: list[Tensor]) -> Tensor:
    """log Σ exp, −∞ where all are −∞, with derivatives that stay finite."""
    stacked = torch.stack(parts)
    top = stopped(stacked).amax(0)
    top = torch.where(top == LOW, 0, top).to(stacked.dtype)
    total = (stacked - top).exp().sum(0)
    nothing = total == 0
    return torch.where(nothing, LOW, torch.where(nothing, 1, total).log() + top).to(stacked.dtype)


def later(alpha: Tensor, steps: int) -> Tensor:
    """α(s − steps)."""
    pad = alpha.new_full((*alpha.shape[:-1], steps), LOW)
    return torch.cat([pad, alpha], -1)[..., : alpha.shape[-1]]


def padded_targets(targets: Tensor, lengths: Tensor, n: int, longest: int) -> Tensor:
    """`[N, S]` targets, also from concatenated ones."""
    if targets.dim() > 1:
        return targets[:, :longest]
    start = lengths.cumsum(0) - lengths
    index = start.unsqueeze(1) + torch.arange(longest, device=targets.device)
    return targets[index.clamp_max(max(targets.shape[0] - 1, 0))] if targets.shape[0] else targets.new_zeros(n, longest)


def as_lengths(lengths: Any, like: Tensor) -> Tensor:
    """Lengths as a tensor of int64."""
    if isinstance(lengths, Tensor):
        return lengths.to(device=like.device, dtype=torch.int64)
    return torch.tensor(list(lengths), dtype=torch.int64, device=like.device)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """(loss of each sample, α) for `[T, N, C]` log-probabilities."""
    steps, n, _ = log_probs.shape
    spans, counts = as_lengths(input_lengths, log_probs), as_lengths(target_lengths, log_probs)
    if isinstance(target_lengths, Tensor):
        longest = targets.shape[1] if targets.dim() > 1 else targets.shape[0]
    else:
        longest = max(list(target_lengths), default=0)
    labels = padded_targets(targets.to(torch.int64), counts, n, longest)
    labels = torch.where(torch.arange(longest, device=labels.device) < counts.unsqueeze(1), labels, blank)
    blanks = torch.full_like(labels, blank)
    extended = torch.cat([torch.stack([blanks, labels], 2).flatten(1), torch.full_like(counts, blank).unsqueeze(1)], 1)
    scores = log_probs.gather(2, extended.unsqueeze(0).expand(steps, *extended.shape))
    width = extended.shape[1]
    place = torch.arange(width, device=labels.device)
    skips = (place >= 2) & (extended != blank) & (extended != torch.cat([extended[:, :2], extended], 1)[:, :width])
    begins = (place == 0) | ((place == 1) & (counts > 0).unsqueeze(1))
    alpha: Any = torch.where(begins, scores[0], LOW).to(log_probs.dtype) if steps else None
    kept = [alpha]
    for t in range(1, steps):
        new = scores[t] + log_sum([alpha, later(alpha, 1), torch.where(skips, later(alpha, 2), LOW).to(alpha.dtype)])
        alpha = torch.where((t < spans).unsqueeze(1), new, alpha)
        kept.append(alpha)
    end = (2 * counts).unsqueeze(1)
    last = alpha.gather(1, end).squeeze(1)
    before = alpha.gather(1, (end - 1).clamp_min(0)).squeeze(1)
    loss = -log_sum([last, torch.where(counts > 0, before, LOW).to(last.dtype)])
    mass = log_probs.exp().sum(2)
    mass = torch.where(torch.arange(steps, device=spans.device).unsqueeze(1) < spans, mass, 0).to(loss.dtype).sum(0)
    loss = loss + (mass - stopped(mass))
    if zero_infinity:
        loss = torch.where(stopped(loss) == math.inf, 0, loss).to(loss.dtype)
    return loss, stopped(torch.stack(kept, 1))


def ctc_loss_backward(
    g: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    loss: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """The reverse mode of the written-out loss."""
    del loss, alpha

    def function(x: Tensor) -> Tensor:
        return ctc_loss(x, targets, input_lengths, target_lengths, blank, zero_infinity)[0]

    return pulled_back(function, [log_probs], [g])[0]


def repeated_lengths(lengths: Any, mapped: bool, size: int) -> Any:
    """The lengths of all lanes."""
    return in_front(lengths, mapped, size).reshape(-1) if isinstance(lengths, Tensor) else list(lengths) * size


def joined(args: list[Any], mapped: Any, size: int) -> tuple[Tensor, Tensor, Any, Any]:
    """Log-probabilities, targets and lengths with the lanes joined to the samples."""
    log_probs, targets, spans, counts = args
    targets = in_front(targets, mapped[1], size)
    return (
        merged_at(in_front(log_probs, mapped[0], size), 1),
        targets.flatten(0, 1),
        repeated_lengths(spans, mapped[2], size),
        repeated_lengths(counts, mapped[3], size),
    )


@some_lanes
def batch_ctc(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the samples."""
    size = level.size
    loss, alpha = op(*joined(args[:4], mapped, size), *args[4:], **kwargs)
    return loss.reshape(size, -1), alpha.reshape(size, -1, *alpha.shape[1:])


@some_lanes
def batch_ctc_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The lanes join the samples."""
    size = level.size
    g, loss, alpha = (in_front(args[k], mapped[k], size).flatten(0, 1) for k in (0, 5, 6))
    out = op(g, *joined(args[1:5], mapped[1:5], size), loss, alpha, *args[7:], **kwargs)
    return out.reshape(out.shape[0], size, -1, out.shape[2]).movedim(1, 0)


row("_ctc_loss", Special(), batch=batch_ctc, formula=ctc_loss)
row("_ctc_loss_backward", Special(), batch=batch_ctc_backward, formula=ctc_loss_backward)


# -- segments --------------------------------------------------------------------------------------------------------


def segment_of(n: int, lengths: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, int]:
    """The segment of each of n places along the axis (their number for places in none), and the number of segments."""
    spans: Any = lengths
    bounds: Any = offsets
    if bounds is None:
        bounds = torch.cat([torch.zeros_like(spans[..., :1]), spans.cumsum(-1)], -1)
    count = bounds.shape[-1] - 1
    order = torch.arange(n, device=bounds.device, dtype=bounds.dtype).expand(*bounds.shape[:-1], n).contiguous()
    found = torch.searchsorted(bounds[..., 1:].contiguous(), order, right=True)
    return torch.where(order < bounds[..., :1], count, found), count


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Sum, mean, product, maximum or minimum of each segment along an axis; ties share the derivative."""
    del indices, unsafe
    axis = axis % data.dim()
    ids, count = segment_of(data.shape[axis], lengths, offsets)
    ids = ids.reshape(*ids.shape, *[1] * (data.dim() - ids.dim())).expand(data.shape)
    shape = (*data.shape[:axis], count + 1, *data.shape[axis + 1 :])
    like = {"dtype": data.dtype, "device": data.device}

    def scattered(start: float, values: Tensor, how: str) -> Tensor:
        return torch.full(shape, start, **like).scatter_reduce(axis, ids, values, how)

    sizes = torch.zeros(shape, **like).scatter_add(axis, ids, torch.ones_like(data))
    if reduce in ("sum", "mean"):
        out = torch.full(shape, 0 if initial is None else initial, **like).scatter_add(axis, ids, data)
        if reduce == "mean":
            missing = math.nan if initial is None else initial
            out = torch.where(sizes > 0, out / sizes.clamp_min(1), missing).to(data.dtype)
    elif reduce == "prod":
        out = scattered(1 if initial is None else initial, data, "prod")
    else:
        worst = LOW if reduce == "max" else math.inf
        best = scattered(worst if initial is None else initial, stopped(data), "a" + reduce)
        hit = data == best.gather(axis, ids)
        ties = torch.zeros(shape, **like).scatter_add(axis, ids, hit.to(data.dtype))
        part = torch.where(hit, data / ties.gather(axis, ids).clamp_min(1), 0).to(data.dtype)
        out = torch.where(ties > 0, torch.zeros(shape, **like).scatter_add(axis, ids, part), best)
    return out.narrow(axis, 0, count)


def segment_reduce_backward(
    g: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """The reverse mode of the written-out reduction."""
    del output

    def function(x: Tensor) -> Tensor:
        return segment_reduce(x, reduce, lengths=lengths, offsets=offsets, axis=axis, initial=initial)

    return pulled_back(function, [data], [g])[0]


row("segment_reduce", Special(), formula=segment_reduce)
row("_segment_reduce_backward", Special(), formula=segment_reduce_backward)
