"""Losses: an element-wise function of input and target, then none, mean (1) or sum (2) over all elements.

Under `vmap` the kernel gives the elements and each lane is reduced by itself. The tangents, of the loss and of its
reverse formula, come from the loss written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kinds import Special
from .lanes import behind, some_lanes
from .table import row

Tensor = torch.Tensor
NONE, MEAN, SUM = 0, 1, 2


def reduced(x: Tensor, reduction: int) -> Tensor:
    """All elements of a loss as they are, their mean or their sum."""
    return x if reduction == NONE else x.mean() if reduction == MEAN else x.sum()


def scaled(g: Tensor, n: int, reduction: int) -> Tensor:
    """The cotangent of each element."""
    return g / n if reduction == MEAN else g


def lined_up(args: list[Any], mapped: Any) -> list[Any]:
    """Tensors with the mapped dimension in front and equal logical ranks behind it."""
    rank = max(a.dim() - bool(m) for a, m in zip(args, mapped, strict=True) if isinstance(a, Tensor))
    return [behind(a, m, rank) if isinstance(a, Tensor) else a for a, m in zip(args, mapped, strict=True)]


def filled(op: Any, args: list[Any], mapped: Any) -> tuple[list[Any], Any]:
    """All positional arguments, with defaults for those not given."""
    schema = [a for a in op._schema.arguments if not a.kwarg_only]
    missing = [a.default_value for a in schema[len(args) :]]
    return [*args, *missing], [*mapped, *[False] * len(missing)]


def lanes_shape(moved: list[Any], mapped: Any, size: int) -> tuple[int, ...]:
    """The common shape of all lanes, which kernels of losses want their arguments to have."""
    shape = torch.broadcast_shapes(*(a.shape for a in moved if isinstance(a, Tensor)))
    return (size, *shape[1:]) if any(m is True for m in mapped) else (size, *shape)


@some_lanes
def batch_loss(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The elements, then the reduction of each lane."""
    args, mapped = filled(op, args, mapped)
    place = next(k for k, a in enumerate(op._schema.arguments) if a.name == "reduction")
    reduction, args[place] = args[place], NONE
    moved = lined_up(args, mapped)
    shape = lanes_shape(moved, mapped, level.size)
    out = op(*(a.expand(shape) if isinstance(a, Tensor) else a for a in moved), **kwargs)
    rest = list(range(1, out.dim()))
    if reduction == NONE or not rest:
        return out
    return out.mean(rest) if reduction == MEAN else out.sum(rest)


@some_lanes
def batch_loss_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The gradient of each element; a mean divides by the size of one lane."""
    args, mapped = filled(op, args, mapped)
    place = next(k for k, a in enumerate(op._schema.arguments) if a.name == "reduction")
    reduction, args[place] = args[place], NONE
    moved = lined_up(args, mapped)
    shape = lanes_shape(moved[1:], mapped[1:], level.size)
    moved = [a.expand(shape) if isinstance(a, Tensor) else a for a in moved]
    n = 1
    for extent in shape[1:]:
        n *= extent
    out = op(*moved, **kwargs)
    return out / n if reduction == MEAN and n else out


def elementwise_loss(name: str, loss: Callable[..., Tensor], slope: Callable[..., Tensor]) -> None:
    """The rows of a loss with elements `loss(x, t, *options)` and of g ↦ g · `slope(x, t, *options)`.

    In the schemas the reduction comes after (x, t) and before the options.
    """

    def whole(x: Tensor, t: Tensor, reduction: int = MEAN, *options: Any) -> Tensor:
        return reduced(loss(x, t, *options), reduction)

    def backward(g: Tensor, x: Tensor, t: Tensor, reduction: int, *options: Any) -> Tensor:
        n = torch.broadcast_shapes(x.shape, t.shape).numel()
        return scaled(g, n, reduction) * slope(x, t, *options)

    row(name, Special(), batch=batch_loss, formula=whole)
    row(name + "_backward", Special(), batch=batch_loss_backward, formula=backward)


def smooth_l1(x: Tensor, t: Tensor, beta: float = 1.0) -> Tensor:
    """d²/2β near 0, |d| − β/2 beyond."""
    d = x - t
    if beta == 0:
        return d.abs()
    return torch.where(d.abs() < beta, d * d * (0.5 / beta), d.abs() - 0.5 * beta)


def smooth_l1_slope(x: Tensor, t: Tensor, beta: float = 1.0) -> Tensor:
    """d/β near 0, sign(d) beyond."""
    d = x - t
    if beta == 0:
        return d.sign()
    return torch.where(d.abs() < beta, d / beta, d.sign())


def huber(x: Tensor, t: Tensor, delta: float = 1.0) -> Tensor:
    """d²/2 near 0, δ (|d| − δ/2) beyond."""
    d = x - t
    return torch.where(d.abs() < delta, 0.5 * d * d, delta * (d.abs() - 0.5 * delta))


def huber_slope(x: Tensor, t: Tensor, delta: float = 1.0) -> Tensor:
    """d near 0, ±δ beyond."""
    d = x - t
    return torch.where(d.abs() < delta, d, delta * d.sign())


elementwise_loss("mse_loss", lambda x, t: (x - t) * (x - t), lambda x, t: 2 * (x - t))
elementwise_loss("smooth_l1_loss", smooth_l1, smooth_l1_slope)
elementwise_loss("huber_loss", huber, huber_slope)
elementwise_loss(
    "soft_margin_loss",
    lambda x, t: torch.nn.functional.softplus(-x * t),
    lambda x, t: -t * torch.sigmoid(-x * t),
)


def cross_entropy_elements(x: Tensor, t: Tensor) -> Tensor:
    """−t log x − (1 − t) log(1 − x), the logarithms no less than −100."""
    return (t - 1) * clamped_log(1 - x) - t * clamped_log(x)


def clamped_log(x: Tensor) -> Tensor:
    """max(log x, −100), flat where the bound holds."""
    low = x < 3.720075976020836e-44  # exp(−100)
    return torch.where(low, -100, torch.where(low, 1, x).log()).to(x.dtype)


def weighted(x: Tensor, weight: Tensor | None) -> Tensor:
    """Times a weight, if there is one."""
    return x if weight is None else x * weight


def cross_entropy(x: Tensor, t: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    """Binary cross entropy of probabilities."""
    return reduced(weighted(cross_entropy_elements(x, t), weight), reduction)


def cross_entropy_backward(
    g: Tensor, x: Tensor, t: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(x − t) / max(x (1 − x), 1e-12)."""
    slope = (x - t) / ((1 - x) * x).clamp_min(1e-12)
    return weighted(scaled(g, x.numel(), reduction) * slope, weight)


def cross_entropy_with_logits(
    x: Tensor, t: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(1 − t) x + (1 + (w₊ − 1) t) log(1 + e^(−x))."""
    log_weight = 1 if pos_weight is None else (pos_weight - 1) * t + 1
    out = (1 - t) * x - log_weight * torch.nn.functional.logsigmoid(x)
    return reduced(weighted(out, weight), reduction)


row("binary_cross_entropy", Special(), batch=batch_loss, formula=cross_entropy)
row("binary_cross_entropy_backward", Special(), batch=batch_loss_backward, formula=cross_entropy_backward)
row("binary_cross_entropy_with_logits", Special(), formula=cross_entropy_with_logits)
