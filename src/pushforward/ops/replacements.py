"""What stands for fused functions where reverse differentiations are nested (see `safe`), with their signatures."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..core.fresh import stopped
from ..core.torch_private import nn_functions as api  # pyright: ignore[reportAttributeAccessIssue]
from ..core.torch_private import reduction_number  # pyright: ignore[reportAttributeAccessIssue]
from ..core.traced import SPECIAL, Traced
from . import class_loss, distance, norm, rnn, sequence
from .batch_norm import sample_dims, shape_of, training_norm
from .embedding import embedding_bag
from .resample import BICUBIC, BILINEAR, BORDER, NEAREST, REFLECTION, ZEROS, grid_sampler
from .safe import SAFE, always, replaced_when_nested, safe

Tensor = torch.Tensor
functional = torch.nn.functional
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def affine(unit: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Any) -> Tensor:
    """unit · weight + bias."""
    out = unit if weight is None else unit * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


# -- norms: in reverse mode torch gives the statistics of group norm a derivative, those of layer and batch norm none --


@safe(functional.layer_norm, torch.layer_norm)
def layer_norm(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Tensor:
    """Layer norm."""
    del cudnn_enable
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


@safe(torch.native_layer_norm)
def native_layer_norm(
    x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Out, mean, rstd."""
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    mean, rstd, unit = norm.statistics(norm.wide(x), dims, eps)
    return affine(unit, weight, bias, tuple(normalized_shape)).to(x.dtype), mean.detach(), rstd.detach()


@safe(functional.group_norm, torch.group_norm)
def group_norm(
    x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Tensor:
    """Group norm."""
    del cudnn_enabled
    n, c = x.shape[:2]
    hw = math.prod(x.shape[2:])
    return native_group_norm(x, weight, bias, n, c, hw, num_groups, eps)[0]


@safe(torch.native_group_norm)
def native_group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Out, mean, rstd."""
    mean, rstd, unit = norm.statistics(norm.wide(x).reshape(n, group, c // group * hw), [2], eps)
    out = affine(unit.reshape(n, c, hw), weight, bias, (1, -1, 1))
    return out.reshape(x.shape).to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


@safe(torch.batch_norm)
def batch_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Batch norm; running statistics are updated as in eager mode."""
    del cudnn_enabled
    return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]


@safe(torch.native_batch_norm)
def native_batch_norm(
    x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Out and the saved statistics."""
    out, mean, rstd, new_mean, new_var = training_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training and running_mean is not None:
        running_mean.copy_(new_mean)
        running_var.copy_(new_var)
    return out, mean.detach(), rstd.detach()


@safe(functional.batch_norm)
def functional_batch_norm(
    x: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in the order of arguments of torch.nn.functional."""
    return batch_norm(x, weight, bias, running_mean, running_var, training or running_mean is None, momentum, eps)


@safe(torch.instance_norm)
def instance_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Each sample and channel by itself."""
    del cudnn_enabled
    shape = shape_of(x)
    if not use_input_stats and running_mean is not None:
        return batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    dims = list(range(2, x.dim()))
    _, rstd, unit = norm.statistics(norm.wide(x), dims, eps)
    if running_mean is not None:
        count = x.numel() // max(x.shape[0] * x.shape[1], 1)
        spread = (stopped(rstd) ** -2 - eps) * (count / max(count - 1, 1))
        running_mean.copy_((1 - momentum) * running_mean + momentum * stopped(x).mean(sample_dims(x)))
        running_var.copy_((1 - momentum) * running_var + momentum * spread.flatten(1).mean(0))
    return affine(unit, weight, bias, shape).to(x.dtype)


@safe(functional.instance_norm)
def functional_instance_norm(
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Instance norm in the order of arguments of torch.nn.functional."""
    return instance_norm(x, weight, bias, running_mean, running_var, use_input_stats, momentum, eps)


def statistics_of_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Norms whose running statistics are values of a transform: ordinary operators write them, which all levels see."""
    kwargs = kwargs or {}
    place = 1 if func in (functional.batch_norm, functional.instance_norm) else 3
    mean = args[place] if len(args) > place else kwargs.get("running_mean")
    training = args[5] if len(args) > 5 else kwargs.get("training", kwargs.get("use_input_stats", False))
    if isinstance(mean, Traced) and training:
        return SAFE[func](*args, **kwargs)
    return replaced_when_nested(func, args, kwargs)


for _function in (
    functional.batch_norm,
    torch.batch_norm,
    torch.native_batch_norm,
    functional.instance_norm,
    torch.instance_norm,
):
    SPECIAL[_function] = statistics_of_values


# -- attention, distances, sequences ---------------------------------------------------------------------------------


@safe(functional.scaled_dot_product_attention)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · q kᵀ + mask) v."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        below = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~below, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return weights @ value


@safe(torch.cdist)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    """Distances of all pairs."""
    return distance.cdist(x1, x2, p, compute_mode)


safe(functional.pdist, torch.pdist)(distance.pdist)


@safe(torch.ctc_loss)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
    each: Any = sequence.ctc_loss,
) -> Tensor:
    """The loss over all alignments; a mean is by target length first."""
    single = log_probs.dim() == 2
    if single:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.unsqueeze(0) if targets.dim() == 1 else targets
    spans, counts = given_lengths(input_lengths), given_lengths(target_lengths)
    loss = each(log_probs, targets, spans, counts, blank, zero_infinity)[0]
    if reduction == 1:
        return (loss / sequence.as_lengths(counts, loss).clamp_min(1).to(loss.dtype)).mean()
    if reduction == 2:
        return loss.sum()
    return loss.squeeze(0) if single else loss


def given_lengths(lengths: Any) -> Any:
    """Lengths of all samples, as a list or as a tensor of one dimension."""
    if isinstance(lengths, Tensor):
        return lengths.reshape(-1)
    return [int(lengths)] if isinstance(lengths, int) else [int(n) for n in lengths]


@safe(functional.ctc_loss)
def functional_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    each: Any = sequence.ctc_loss,
) -> Tensor:
    """The loss with the reduction as a word."""
    how = REDUCTIONS[reduction]
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, how, zero_infinity, each)


@safe(torch.embedding_bag)
def bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bags of embeddings."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding
    )


@safe(torch._weight_norm)
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """v · g / ‖v‖: torch's second derivative takes the norms for constants."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def ctc_of_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """The fused loss of traced values, reduced here: torch's reduction writes lengths into memory they do not have."""
    out = replaced_when_nested(func, args, kwargs)
    if out is not NotImplemented:
        return out
    whole = functional_ctc_loss if func is functional.ctc_loss else ctc_loss
    return whole(*args, **(kwargs or {}), each=fused_ctc_loss)


def fused_ctc_loss(
    log_probs: Tensor, targets: Tensor, spans: Any, counts: Any, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    """The fused operator, with lengths as they were given."""
    return torch._ctc_loss(log_probs, targets, spans, counts, blank, zero_infinity)


for _function in (functional.ctc_loss, torch.ctc_loss):
    SPECIAL[_function] = ctc_of_values
safe(torch.segment_reduce)(sequence.segment_reduce)


@always(torch._VF._pack_padded_sequence)
def pack(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Packing of padded rows: the fused one's reverse formula reads the batch sizes from memory."""
    return rnn.pack(*args, **kwargs)


@always(torch._VF._pad_packed_sequence)
def pad_packed(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Padding of packed rows: the fused one reads the batch sizes from memory that a traced value does not have."""
    return rnn.pad_packed(*args, **kwargs)


@safe(torch.lstm)
def lstm(*args: Any) -> Any:
    """All layers, step by step."""
    return recurrent_layers("lstm", torch.lstm, args)


@safe(torch.gru)
def gru(*args: Any) -> Any:
    """All layers, step by step."""
    return recurrent_layers("gru", torch.gru, args)


@safe(torch.rnn_tanh)
def rnn_tanh(*args: Any) -> Any:
    """All layers, step by step."""
    return recurrent_layers("rnn_tanh", torch.rnn_tanh, args)


@safe(torch.rnn_relu)
def rnn_relu(*args: Any) -> Any:
    """All layers, step by step."""
    return recurrent_layers("rnn_relu", torch.rnn_relu, args)


def packed_or_nested(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Packed inputs always step by step: the fused form reads the batch sizes from memory."""
    if len(args) > 1 and isinstance(args[1], Tensor) and not args[1].is_floating_point():
        return SAFE[func](*args)
    return replaced_when_nested(func, args, kwargs)


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    SPECIAL[_function] = packed_or_nested


def recurrent_layers(cell: str, fused: Any, args: tuple[Any, ...]) -> Any:
    """Step by step, but for projections, of which torch itself has no fused kernel."""
    try:
        return rnn.recurrent(cell)(*args)
    except rnn.Projections:
        return fused(*args)


# -- losses ----------------------------------------------------------------------------------------------------------


@safe(api.multi_margin_loss)
def multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Σ of hinges."""
    return class_loss.multi_margin(x, target, p, margin, weight, reduction)


def word(size_average: Any, reduce: Any, reduction: str) -> int:
    """The reduction, also from the two flags that it once was."""
    if size_average is not None or reduce is not None:
        return reduction_number(size_average, reduce)
    return REDUCTIONS[reduction]


@safe(functional.multi_margin_loss)
def functional_multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """The loss with the reduction as a word."""
    return class_loss.multi_margin(x, target, p, margin, weight, word(size_average, reduce, reduction))


@safe(api.multilabel_margin_loss)
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """Σ of hinges."""
    return class_loss.multilabel_margin(x, target, reduction)[0]


@safe(functional.multilabel_margin_loss)
def functional_multilabel_margin_loss(
    x: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """The loss with the reduction as a word."""
    return class_loss.multilabel_margin(x, target, word(size_average, reduce, reduction))[0]


@always(functional.linear_cross_entropy)
def linear_cross_entropy(*args: Any, options: Any = None, **kwargs: Any) -> Tensor:
    """Without chunks: the chunked form computes its gradients ahead and keeps them as constants."""
    del options
    return functional.linear_cross_entropy(*args, options=None, **kwargs)


safe(functional.linear_cross_entropy)(linear_cross_entropy)


@safe(api.hardsigmoid)
def hardsigmoid(x: Tensor) -> Tensor:
    """A ramp from 0 to 1 between −3 and 3, flat at its corners."""
    return torch.where((x > -3) & (x < 3), x / 6 + 0.5, (x >= 3).to(x.dtype))


@safe(functional.hardsigmoid)
def functional_hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """The ramp, written back where asked."""
    return x.copy_(hardsigmoid(x)) if inplace else hardsigmoid(x)


# -- sampling --------------------------------------------------------------------------------------------------------

MODES = {"bilinear": BILINEAR, "nearest": NEAREST, "bicubic": BICUBIC}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION}
safe(torch.grid_sampler, torch.grid_sampler_2d, torch.grid_sampler_3d)(grid_sampler)


@safe(functional.grid_sample)
def grid_sample(
    image: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Sampling with the mode as a word."""
    return grid_sampler(image, grid, MODES[mode], PADDINGS[padding_mode], bool(align_corners))
