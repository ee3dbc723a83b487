"""Short ways of layers under `vmap`: the lanes go where the function already takes a batch.

As in `batch.fast`: plain payloads, one level in charge, nothing recorded on the values themselves; None means the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from ..core.level import THREAD, recorded_below
from ..core.methods import register_method
from ..core.torch_private import NoDispatch, autocast_on
from ..core.traced import Traced
from ..ops.conv import by_one_weight, with_bias
from ..ops.lanes import merged, merged_at, parted_at
from ..ops.shared import is_shared
from .fast import direct
from .level import Batched, wrap

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
aten = torch.ops.aten
CONVOLUTIONS = frozenset({getattr(place, f"conv{k}d") for place in (F, torch) for k in (1, 2, 3)})
Short = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def plain_mapped(x: Any) -> Any:
    """The payload of a mapped value that the short ways know, or None."""
    if type(x) is Batched and x._mapped and type(x._payload) is Tensor and x._level.on_top():
        return x._payload
    return None


def constants_only(level: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether no other argument is traced, or needs a graph on the values themselves."""
    for a in (*args, *kwargs.values()):
        if isinstance(a, Tensor) and (isinstance(a, Traced) or not recorded_below(level, a)):
            return False
    return True


def called(level: Any, func: Any, p: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func` on a payload with dispatch to levels off."""
    if level.held:
        return func(p, *args, **kwargs)
    guard = NoDispatch()
    try:
        return func(p, *args, **kwargs)
    finally:
        del guard


def of_trailing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of each element, or of the last dimensions: lanes are one more leading dimension."""
    p = plain_mapped(args[0])
    if (
        p is None
        or p.dim() < 2
        or not constants_only(args[0]._level, args[1:], kwargs)
        or kwargs.get("inplace")
        or True in args[1:2]
    ):
        return None
    out = called(args[0]._level, func, p, args[1:], kwargs)
    return wrap(args[0]._level, out, True)


def along_last(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """softmax and log_softmax along a dimension."""
    p = plain_mapped(args[0])
    dim: Any = kwargs.get("dim", args[1] if len(args) > 1 else None)
    rest = {k: v for k, v in kwargs.items() if k not in ("dim", "_stacklevel")}
    if p is None or p.dim() < 2 or type(dim) is not int or any(v is not None for v in rest.values()) or len(args) > 2:
        return None
    rank = p.dim() - 1
    if not -rank <= dim < rank:
        return None
    kernel = torch.log_softmax if "log" in func.__name__ else torch.softmax
    return wrap(args[0]._level, direct(kernel, p, dim % rank + 1, held=args[0]._level.held), True)  # pyright: ignore[reportGeneralTypeIssues]


def layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """layer_norm, which is replaced where differentiations are nested; it may not reach the lanes."""
    shape: Any = kwargs.get("normalized_shape", args[1] if len(args) > 1 else None)
    if THREAD.order >= 2 or not isinstance(shape, (tuple, list)) or len(shape) > args[0].dim():  # pyright: ignore[reportGeneralTypeIssues]
        return None
    return of_trailing(func, args, kwargs)


def dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """dropout that is off: the value itself."""
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    del func
    if training is False or p == 0.0:
        return args[0] if type(args[0]) is Batched else None  # pyright: ignore[reportGeneralTypeIssues]
    return None


def of_images(spatial: int) -> Short:
    """Convolution and pooling: lanes are samples."""

    def short(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        p = plain_mapped(args[0])
        if p is None or kwargs.get("return_indices") or 0 in p.shape:
            return None
        level = args[0]._level
        if not constants_only(level, args[1:], kwargs):
            return convolution(level, p, args[1:], kwargs) if func in CONVOLUTIONS else None
        if p.dim() == spatial + 2:
            out = called(level, func, p, args[1:], kwargs)
        elif p.dim() == spatial + 3:
            flat = direct(
                Tensor.flatten, p, 0, 1, held=level.held
            )  # a copy, where the lanes are not in front in memory
            out = called(level, func, flat, args[1:], kwargs)
            out = direct(Tensor.unflatten, out, 0, p.shape[:2], held=level.held) if type(out) is Tensor else out
        else:
            return None
        return wrap(level, out, True) if type(out) is Tensor else None

    return short


def convolution(level: Any, p: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The convolution of lanes by a weight each; also by one that all see, of which a gradient is taken for each."""
    options = dict(zip(("weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False), **kwargs)
    q, bias = plain_mapped(options.get("weight")), options.get("bias")
    b = None if bias is None else plain_mapped(bias)
    if q is None or options["weight"]._level is not level or autocast_on() or p.is_complex():
        return None
    if bias is not None and (b is None or bias._level is not level or b.dim() != 2 or b.shape[1] != q.shape[1]):
        return None
    spatial = q.dim() - 3
    alone = p.dim() == spatial + 2  # no samples in a lane
    dtypes = {v.dtype for v in (p, q, b) if v is not None}
    if (
        p.dim() - 3 + alone != spatial
        or len(dtypes) > 1
        or p.shape[-spatial - 1] != q.shape[2] * options.get("groups", 1)
    ):
        return None
    sizes = []
    for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)):
        size = options.get(name, usual)
        size = (size,) * spatial if type(size) is int else size
        if type(size) not in (tuple, list) or len(size) != spatial or any(type(n) is not int for n in size):
            return None
        sizes.append(list(size))
    return wrap(level, direct(_convolution, p, q, b, alone, *sizes, options.get("groups", 1), held=level.held), True)


def _convolution(
    p: Tensor, q: Tensor, b: Any, alone: bool, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    options = (stride, padding, dilation, False, [0] * len(stride))
    x, size = p.unsqueeze(1) if alone else p, p.shape[0]
    if is_shared(q):
        out = by_one_weight(x, q, *options, groups)
    else:
        out = parted_at(torch.convolution(merged_at(x, 1), merged(q), None, *options, groups * size), 1, size)
    out = with_bias(out, b, True)
    return out.squeeze(1) if alone else out


def attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fused attention: lanes are part of the batch."""
    if len(args) < 3 or THREAD.order >= 2:
        return None
    payloads = [plain_mapped(x) for x in args[:3]]
    if any(p is None or p.dim() not in (4, 5) or p.dim() != payloads[0].dim() for p in payloads):
        return None
    rest = args[3:]
    mask = kwargs.get("attn_mask", rest[0] if rest else None)
    drop = kwargs.get("dropout_p", rest[1] if len(rest) > 1 else 0.0)
    if drop != 0.0 or not constants_only(args[0]._level, rest, kwargs) or (mask is not None and mask.dim() > 2):
        return None
    level = args[0]._level
    if args[1]._level is not level or args[2]._level is not level:
        return None
    if payloads[0].dim() == 5:
        if any(p.shape[:2] != payloads[0].shape[:2] for p in payloads):
            return None
        q, k, v = (direct(Tensor.flatten, p, 0, 1, held=level.held) for p in payloads)
        out = called(level, func, q, (k, v, *rest), kwargs)
        out = direct(Tensor.unflatten, out, 0, payloads[0].shape[:2], held=level.held)
    else:
        out = called(level, func, payloads[0], (*payloads[1:], *rest), kwargs)
    return wrap(level, out, True)


def cross_entropy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cross entropy of one sample a lane, or of several, by the numbers of their classes."""
    if len(args) != 2 or THREAD.order >= 2:
        return None
    p, t = plain_mapped(args[0]), plain_mapped(args[1])
    if (
        p is None
        or t is None
        or p.dim() not in (2, 3)
        or t.shape != p.shape[:-1]
        or t.dtype is not torch.int64
        or 0 in p.shape
    ):
        return None
    rest = dict(kwargs)
    reduction, ignored = rest.pop("reduction", "mean"), rest.pop("ignore_index", -100)
    if args[1]._level is not args[0]._level or reduction not in ("mean", "sum") or rest.pop("label_smoothing", 0.0) != 0.0:
        return None
    if any([option is not None for option in rest.values()]):
        return None
    level = args[0]._level
    del func
    return wrap(level, direct(_cross_entropies, p, t, ignored, reduction == "mean", held=level.held), True)


def _cross_entropies(p: Tensor, t: Tensor, ignored: int, mean: bool) -> Tensor:
    samples = p if p.dim() == 2 else p.flatten(0, 1)
    losses = F.cross_entropy(samples, t.flatten(), ignore_index=ignored, reduction="none").view(p.shape[0], -1)
    total = losses.sum(1)
    return total / (t != ignored).view(p.shape[0], -1).sum(1) if mean else total


def transpose(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.transpose(a, b)` as a view that knows its base."""
    p = plain_mapped(args[0])
    if p is None or len(args) != 3 or kwargs or p.is_complex() or type(args[1]) is not int or type(args[2]) is not int:
        return None
    rank = p.dim() - 1
    if not (-rank <= args[1] < rank and -rank <= args[2] < rank):
        return None
    x, level = args[0], args[0]._level
    del func
    out = direct(Tensor.transpose, p, args[1] % rank + 1, args[2] % rank + 1, held=level.held)
    return level.wrap_view(x, (aten.transpose.int, args[1:], {}, None), out, True)


def matrix_transpose(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.T`, `x.mT` and `x.t()` of a matrix a lane."""
    del func
    return transpose(None, (args[0], 0, 1), kwargs) if len(args) == 1 and args[0].dim() == 2 else None


def unsqueeze(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.unsqueeze(d)` as a view that knows its base."""
    p = plain_mapped(args[0])
    if p is None or len(args) != 2 or kwargs or p.is_complex() or type(args[1]) is not int:
        return None
    rank = p.dim() - 1
    if not -rank - 1 <= args[1] <= rank:
        return None
    level = args[0]._level
    del func
    out = direct(Tensor.unsqueeze, p, args[1] % (rank + 1) + 1, held=level.held)
    return level.wrap_view(args[0], (aten.unsqueeze.default, args[1:], {}, None), out, True)


def view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.view(…)` and `x.reshape(…)` of a contiguous value."""
    p = plain_mapped(args[0])
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if p is None or kwargs or p.is_complex() or not sizes or any(type(n) is not int for n in sizes):
        return None
    if 0 in p.shape or not p.is_contiguous():
        return None
    count = 1
    for n in sizes:
        count *= n
    own = p.numel() // p.shape[0]
    if sizes.count(-1) > 1 or (count != own and (-1 not in sizes or own % -count)):
        return None  # the long way raises the error
    level = args[0]._level
    del func
    out = direct(Tensor.view, p, (p.shape[0], *sizes), held=level.held)
    return level.wrap_view(args[0], (aten.view.default, (list(sizes),), {}, None), out, True)


def positional(short: Short) -> Callable[[Any, tuple[Any, ...]], Any]:
    """A short way for calls without keywords."""
    return lambda func, args: short(func, args, {})


def register() -> None:
    """Fill the table of short ways."""
    table = Batched._named
    for f in (
        F.relu,
        F.gelu,
        F.silu,
        F.elu,
        F.leaky_relu,
        F.softplus,
        F.hardtanh,
        F.mish,
        F.logsigmoid,
        F.selu,
        F.celu,
        F.relu6,
    ):
        table[f] = of_trailing
    table[F.layer_norm] = layer_norm
    for f in (F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax):
        table[f] = along_last
    table[F.dropout] = dropout
    table[F.cross_entropy] = cross_entropy
    table[F.scaled_dot_product_attention] = attention
    for k in (1, 2, 3):
        names = (
            f"conv{k}d",
            f"conv_transpose{k}d",
            f"max_pool{k}d",
            f"avg_pool{k}d",
            f"adaptive_avg_pool{k}d",
            f"adaptive_max_pool{k}d",
        )
        for name in names:
            for place in (F, torch):
                if hasattr(place, name):
                    table[getattr(place, name)] = of_images(k)
    for f in (Tensor.transpose, torch.transpose):
        table[f] = transpose
    for f in (Tensor.T.__get__, Tensor.mT.__get__, Tensor.t, torch.t):  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        table[f] = matrix_transpose
    for f in (Tensor.unsqueeze, torch.unsqueeze):
        table[f] = unsqueeze
    for f in (Tensor.view, Tensor.reshape, torch.reshape):
        table[f] = view
    methods = {"transpose": transpose, "t": matrix_transpose, "unsqueeze": unsqueeze, "view": view, "reshape": view}
    for name, short in methods.items():
        register_method(Batched, name, positional(short))


register()
