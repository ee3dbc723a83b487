"""Attention by the kernels of other devices: the sums of `attention`, with other arguments and more results.

    flash      (q, k, v)                  → out, lse, …
    efficient  (q, k, v, bias)            → out, lse padded to a multiple of 32, …
    cudnn      (q, k, v, bias)            → out, lse `[N, heads, L, 1]`, …
The further results are sizes, seeds and offsets of draws, the same for all lanes. Dropout draws inside of the kernel, so
that its tangent is not known.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import NotDifferentiableError
from ..core.source import source_line
from .attention import attention_backward, for_heads, merged_mask, online
from .kinds import Special
from .lanes import in_front, merged, parted, some_lanes
from .table import row

Tensor = torch.Tensor
OF_SAMPLES = frozenset({"grad_out", "grad_out_", "query", "key", "value", "out", "logsumexp"})
DERIVATIVES = 2  # out and lse; the further results have none


def by_name(op: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call, defaults too."""
    given = op._schema.arguments
    named = {a.name: args[k] if k < len(args) else kwargs.get(a.name, a.default_value) for k, a in enumerate(given)}
    return {**named, **kwargs}


def is_bias(x: Any) -> bool:
    """Whether a bias is there: kernels say that there is none by one without dimensions or numbers."""
    return isinstance(x, Tensor) and x.numel() > 0


def all_lanes(op: Any, args: list[Any], mapped: Any, size: int) -> tuple[list[Any], int]:
    """The arguments with the lanes joined to the samples, and how many samples a lane has."""
    names = [a.name for a in op._schema.arguments]
    q = in_front(args[names.index("query")], mapped[names.index("query")], size)
    n, heads = q.shape[1:3]
    moved = []
    for name, x, m in zip(names, args, mapped, strict=False):
        if name in OF_SAMPLES:
            moved.append(merged(in_front(x, m, size)))
        elif name == "attn_bias" and is_bias(x):
            moved.append(merged_mask(in_front(x, m, size), True, size, n, heads))
        else:
            moved.append(x[0] if m and isinstance(x, Tensor) else x)  # a seed: the lanes had one draw
    return moved, n


@some_lanes
def batch_forward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the samples."""
    size = level.size
    moved, n = all_lanes(op, args, mapped, size)
    out = op(*moved, **kwargs)
    return tuple(
        o if not isinstance(o, Tensor) else parted(o, size, n) if k < DERIVATIVES else in_front(o, False, size)
        for k, o in enumerate(out)
    )


@some_lanes
def batch_backward(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the samples; the gradient by a bias has its shape in every lane."""
    size = level.size
    moved, n = all_lanes(op, args, mapped, size)
    by_qkv, by_bias = (out := op(*moved, **kwargs))[:3], out[3:]
    made = [parted(o, size, n) if is_bias(o) else o for o in by_qkv]
    place = [a.name for a in op._schema.arguments].index("attn_bias") if by_bias else 0
    for o in by_bias:
        own = args[place].shape[bool(mapped[place]) :] if is_bias(args[place]) else ()
        made.append(summed(parted(o, size, n), own) if is_bias(o) else o)
    return tuple(made)


def summed(x: Tensor, shape: Any) -> Tensor:
    """`[lanes, …]` summed to `[lanes, *shape]` over what was stretched."""
    lead = x.dim() - 1 - len(shape)
    x = x.sum(list(range(1, 1 + lead))) if lead else x
    stretched = [k + 1 for k, n in enumerate(shape) if n == 1 and x.shape[k + 1] != 1]
    return x.sum(stretched, keepdim=True) if stretched else x


def no_dropout(op: Any, named: dict[str, Any]) -> None:
    """Raise where the kernel draws."""
    if named["dropout_p"]:
        msg = (
            f"jvp: `{op.name()}` at {source_line()} draws its dropout inside of the kernel; use dropout_p=0, or "
            "`torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)`"
        )
        raise NotDifferentiableError(msg)


def kernel_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The kernel's results; the tangents of out and lse in blocks of keys."""
    del level
    named, moved = by_name(op, primals, kwargs), by_name(op, tangents, {})
    no_dropout(op, named)
    out = op(*primals, **kwargs)
    q, bias = named["query"], named.get("attn_bias")
    moves = [moved[n] if isinstance(moved.get(n), Tensor) else None for n in ("query", "key", "value", "attn_bias")]
    k, v, dk, dv = (for_heads(x, q) for x in (named["key"], named["value"], *moves[1:3]))
    _, _, d_out, d_lse = online(
        q, k, v, named["is_causal"], bias if is_bias(bias) else None, named["scale"], (moves[0], dk, dv, moves[3])
    )
    return out, (d_out, None if d_lse is None else like_kernel(d_lse, out[1]), *[None] * (len(out) - DERIVATIVES))


def like_kernel(lse: Tensor, kernel: Tensor) -> Tensor | None:
    """Row sums in the shape that the kernel gives them; None where it gave none."""
    if not kernel.numel():
        return None
    if kernel.dim() > lse.dim():
        return lse.unsqueeze(-1)
    return torch.nn.functional.pad(lse, (0, kernel.shape[-1] - lse.shape[-1]))


def kernel_backward(op: Any) -> Any:
    """The reverse formula of a kernel as a function of all that is handed to it."""

    def formula(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        named = by_name(op, args, kwargs)
        no_dropout(op, named)
        q, bias, lse = named["query"], named.get("attn_bias"), named["logsumexp"]
        lse = (lse.squeeze(-1) if lse.dim() == q.dim() else lse)[..., : q.shape[-2]]
        g = named["grad_out"] if "grad_out" in named else named["grad_out_"]
        bias = bias if is_bias(bias) else None
        k, v, out = named["key"], named["value"], named["out"]
        found = attention_backward(
            g, q, k, v, out, lse, 0.0, named["is_causal"], attn_mask=bias, scale=named["scale"]
        )
        if len(op._schema.returns) == len(found):
            return found
        return *found, by_bias(named, g, lse, bias)

    return formula


def by_bias(named: dict[str, Any], g: Tensor, lse: Tensor, bias: Tensor | None) -> Tensor:
    """The gradient by the bias, p (g vᵀ − Σ g out), which is as large as the bias is."""
    q, out = named["query"], named["out"]
    if bias is None or not named["grad_input_mask"][3]:
        return q.new_zeros(0)
    k, v = for_heads(named["key"], q), for_heads(named["value"], q)
    scale = q.shape[-1] ** -0.5 if named["scale"] is None else named["scale"]
    s = (q * scale) @ k.transpose(-2, -1) + bias
    if named["is_causal"]:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), -torch.inf)
    p = (s - lse.unsqueeze(-1)).exp()
    ds = p * (g @ v.transpose(-2, -1) - (g * out).sum(-1, keepdim=True))
    return ds.sum_to_size(bias.shape)


def draws(op: Any, values: list[Any], kwargs: dict[str, Any]) -> bool:
    """Kernels are tagged as random for their dropout."""
    return by_name(op, values, kwargs)["dropout_p"] > 0


def draws_again(op: Any, values: list[Any], kwargs: dict[str, Any]) -> bool:
    """A backward pass repeats the draw of the forward pass, from its seed."""
    del op, values, kwargs
    return False


for _name in ("flash", "efficient", "cudnn"):
    _forward = f"_scaled_dot_product_{_name}_attention"
    _op = getattr(torch.ops.aten, f"{_forward}_backward", None)
    row(_forward, Special(), batch=batch_forward, tangent=kernel_tangent, draws=draws)
    if _op is not None:
        row(
            f"{_forward}_backward", Special(), batch=batch_backward, formula=kernel_backward(_op.default), draws=draws_again
        )
