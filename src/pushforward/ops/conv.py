"""Convolution: bilinear in input and weight, so the tangent is conv(dx, w) + conv(x, dw) + db.

Under `vmap`: with one weight for all lanes the lanes are samples; with one input they are output channels; with both
mapped they are groups, for a convolution of B groups is B convolutions.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.torch_private import FunctionBase
from .kinds import Bilinear, Decomposed, Special
from .lanes import in_front, merged, merged_at, parted, parted_at, some_lanes
from .shared import is_shared, shared_convolution
from .table import row

Tensor = torch.Tensor
convolution_backward = torch.ops.aten.convolution_backward.default


def shared(weight: Tensor) -> bool:
    """Whether a weight for each lane is one seen many times: a gradient per lane is asked of what all of them share."""
    return type(weight) is Tensor and weight.stride(0) == 0


def recorded(*values: Tensor) -> bool:
    """Whether autograd records what is done with some values."""
    return torch.is_grad_enabled() and any(v.requires_grad for v in values)


def folded(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """One weight for all lanes, which are samples: `[lanes, N, …]`."""
    stride, padding, dilation, transposed, output_padding, groups = options
    out = torch.convolution(merged(x), weight, None, stride, padding, dilation, transposed, output_padding, groups)
    return parted(out, x.shape[0], x.shape[1])


class OneWeight(torch.autograd.Function):
    """A convolution by one weight seen by all lanes, with a gradient of the weight for each lane.

    The value and the gradient of the input are one convolution over all samples; only the gradients of the weight are
    separate.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *options: Any) -> Tensor:
        """All lanes at once."""
        ctx.save_for_backward(x, weight)
        ctx.options = options
        return folded(x, weight[0], *options)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """By the input: the transposed convolution, of the same kind. By the weight: groups."""
        x, weight = ctx.saved_tensors
        by_x = by_weight = None
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled():
                by_x = by_one_weight(g, weight, *transposed_options(x, g, weight, *ctx.options))
            else:  # torch's backward kernel takes less time than the transposed convolution, but has no such derivative
                by_x = by_samples(g, x, weight[0], *ctx.options)
        if ctx.needs_input_grad[1]:
            by_weight = by_groups(g, x, weight, *ctx.options, [False, True])[1]
        return by_x, by_weight, *[None] * len(ctx.options)


recorded_convolution: Any = super(FunctionBase, OneWeight).apply  # type: ignore[misc]  # past the Python before it


def by_one_weight(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """The convolution of lanes `[lanes, N, …]` by one weight seen by all of them, `[lanes, O, C, …]`."""
    if not recorded(x, weight):
        return folded(x, weight[0], *options)
    if type(x) is Tensor and type(weight) is Tensor:
        return recorded_convolution(x, weight, *options)  # type: ignore[no-any-return]
    return OneWeight.apply(x, weight, *options)  # type: ignore[no-any-return]


def transposed_options(x: Tensor, g: Tensor, weight: Tensor, *options: Any) -> tuple[Any, ...]:
    """The options of the convolution that takes a cotangent of the output back to the input."""
    stride, padding, dilation, transposed, _, groups = options
    if transposed:
        return stride, padding, dilation, False, [0] * len(stride), groups
    short = [
        n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
        for n, m, k, s, p, d in zip(x.shape[3:], g.shape[3:], weight.shape[3:], stride, padding, dilation, strict=True)
    ]
    return stride, padding, dilation, True, short, groups


def by_samples(g: Tensor, x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """The gradient of the input, the lanes being samples."""
    part = convolution_backward(merged(g), merged(x), weight, None, *options, [True, False, False])[0]
    return parted(part, x.shape[0], x.shape[1])


def by_groups(g: Tensor, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and weight, the lanes being groups."""
    size = x.shape[0]
    *rest, groups, mask = options
    by_x, by_weight, _ = convolution_backward(
        merged_at(g, 1), merged_at(x, 1), merged(weight), None, *rest, groups * size, [*mask, False]
    )
    return (
        parted_at(by_x, 1, size) if mask[0] else None,
        parted(by_weight, size, weight.shape[1]) if mask[1] else None,
    )


@some_lanes
def batch_convolution(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """Lanes as samples, output channels or groups."""
    del kwargs
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    mx, mw, mb = mapped[:3]
    size = level.size
    rest = (stride, padding, dilation, transposed, output_padding)
    if mw and mx and shared(weight):
        return with_bias(by_one_weight(x, weight, *rest, groups), bias, mb)
    if not mw:
        if mx:
            out = op(merged(x), weight, None if mb else bias, *rest, groups)
            out = parted(out, size, x.shape[1])
        else:
            out = in_front(op(x, weight, None, *rest, groups), False, size)
        return with_bias(out, bias, mb) if mb else out
    if mx and is_shared(weight):
        return with_bias(shared_convolution(op, x, weight, rest, groups), bias, mb)
    if not mx and groups == 1:
        wide = merged_at(weight, 1) if transposed else merged(weight)
        out = op(x, wide, None, *rest, 1)
    else:
        out = op(merged_at(in_front(x, mx, size), 1), merged(weight), None, *rest, groups * size)
    return with_bias(parted_at(out, 1, size), bias, mb)


def with_bias(out: Tensor, bias: Tensor | None, mapped: bool) -> Tensor:
    """Add a bias to `[lanes, N, C, …]`."""
    if bias is None:
        return out
    lanes = bias.shape[0] if mapped else 1
    return out + bias.reshape(lanes, 1, -1, *[1] * (out.dim() - 3))


@some_lanes
def batch_convolution_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """By input: samples (groups for mapped weights). By weight: one for each lane, by groups. By bias: sums."""
    del op, kwargs
    g, x, weight, _, stride, padding, dilation, transposed, output_padding, groups, mask = args
    size = level.size
    mg, mx, mw = mapped[:3]
    rest = (stride, padding, dilation, transposed, output_padding)
    by_x = by_weight = by_bias = None
    front = in_front(g, mg, size)
    if mask[2]:
        by_bias = front.sum([1, *range(3, front.dim())])
    x, weight_lanes = in_front(x, mx, size), in_front(weight, mw, size)
    if mask[0] and not mw:
        by_x = by_samples(front, x, weight, *rest, groups)
    mask = [mask[0] and mw, mask[1]]
    if any(mask):
        grouped_x, by_weight = by_groups(front, x, weight_lanes, *rest, groups, mask)
        by_x = grouped_x if mask[0] else by_x
    return by_x, by_weight, by_bias


def convolution_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """conv(dx, w) + conv(x, dw) + db."""
    del level, kwargs
    x, weight, _, *rest = primals
    dx, dw, db = tangents[:3]
    out = op(*primals)
    total = None
    if dx is not None:
        total = op(dx, weight, db, *rest)
    if dw is not None:
        part = op(x, dw, db if total is None else None, *rest)
        total = part if total is None else total + part
    if total is None and db is not None:
        total = db.view(-1, *[1] * (out.dim() - 2)).expand(out.shape)
    return out, total


def convolution_backward_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Bilinear again: by x in (g, weight), by weight in (g, x), by bias linear in g."""
    del level, kwargs
    g, x, weight, sizes, *rest, mask = primals
    dg, dx, dw = tangents[:3]
    total: list[Any] = [None, None, None]
    parts = []
    if dg is not None:
        parts.append(op(dg, x, weight, sizes, *rest, mask))
    if dx is not None and mask[1]:
        parts.append(op(g, dx, weight, None, *rest, [False, True, False]))
    if dw is not None and mask[0]:
        parts.append(op(g, x, dw, None, *rest, [True, False, False]))
    for part in parts:
        for k, p in enumerate(part):
            if p is not None and p.numel():
                total[k] = p if total[k] is None else total[k] + p
    return op(*primals), tuple(total)


row("convolution", Bilinear(factors=(0, 1), plus=2), batch=batch_convolution, tangent=convolution_tangent)
row(
    "convolution_backward",
    Special(),  # two bilinear maps and a linear one in one operator
    batch=batch_convolution_backward,
    tangent=convolution_backward_tangent,
)


def mkldnn_convolution(
    x: Tensor, weight: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int
) -> Tensor:
    """The same in another order of arguments."""
    return torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


row("mkldnn_convolution", Decomposed(mkldnn_convolution))


def time_batch_channels(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """`[time, batch, channels]` with a weight `[width, in, out]`: conv1d on moved dimensions."""
    out = torch.nn.functional.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return out.permute(2, 0, 1)


def convolution_with_flags(x: Tensor, weight: Tensor, bias: Any, *options: Any) -> Tensor:
    """A convolution that is told which libraries it may use."""
    return torch.ops.aten.convolution(x, weight, bias, *options[:6])


row("conv_tbc", Decomposed(time_batch_channels))
row("_convolution", Decomposed(convolution_with_flags))
