"""Random operators. A draw has no derivative; what it is scaled by may have one.

`Random.draws` says what a draw's sizes come from, which is how `vmap` draws for all lanes at once (see `batch.random`).
The batch rules here draw differently for each lane. Draws by reparametrisation have torch's pathwise derivative.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..core.errors import NotDifferentiableError
from .kinds import Elementwise, Random, Special
from .lanes import all_in_front, in_front
from .table import row

Tensor = torch.Tensor


def draw_multinomial(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """multinomial: the rows of all lanes are rows of one matrix."""
    weights = in_front(args[0], mapped[0], level.size)
    rows = weights.reshape(math.prod(weights.shape[:-1]), weights.shape[-1])
    out = op(rows, *args[1:], **kwargs)
    return out.reshape(*weights.shape[:-1], out.shape[-1])


def draw_permutation(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """randperm: the order of as many random numbers."""
    del op, mapped
    dtype = kwargs.get("dtype") or torch.long
    places = {k: v for k, v in kwargs.items() if k in ("generator", "device")}
    generator = {k: v for k, v in places.items() if v is not None}
    return torch.rand((level.size, args[0]), dtype=torch.float64, **generator).argsort(1).to(dtype)


def draw_dirichlet(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """_sample_dirichlet works along the last dimension."""
    return op(in_front(args[0], mapped[0], level.size).contiguous(), *args[1:], **kwargs)


def batch_dirichlet_grad(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """_dirichlet_grad is element-wise with arguments of equal sizes."""
    del kwargs
    return op(*torch.broadcast_tensors(*all_in_front(args, mapped, level.size)))


def no_second(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Torch's factor of a pathwise derivative has no derivative of its own."""
    del level, primals, tangents, kwargs
    msg = (
        f"the derivative of `{op.name()}` is not implemented, in torch neither: a draw can be differentiated once only"
    )
    raise NotDifferentiableError(msg)


no_second.refused = "a draw can be differentiated once only, in PyTorch too"


def normal_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """normal: in torch neither the mean nor the deviation has a derivative."""
    del level, tangents
    return op(*primals, **kwargs), None


def gamma_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A gamma draw moves with its shape parameter at the rate at which its distribution function stays the same."""
    del level
    out = op(*primals, **kwargs)
    return out, tangents[0] * torch.ops.aten._standard_gamma_grad(primals[0], out)


def dirichlet_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Each part moves with its own parameter, and all make room for that: dx = d − x Σ d, d = rate · tangent."""
    del level
    x, total = op(*primals, **kwargs), primals[0].sum(-1, keepdim=True)
    moved = tangents[0] * torch.ops.aten._dirichlet_grad(x, primals[0], total.expand(x.shape))
    return x, moved - x * moved.sum(-1, keepdim=True)


row("rand randn randint", Random("size"))
row("multinomial", Random("loop"), batch=draw_multinomial)
row("randperm", Random("loop"), batch=draw_permutation)
row("rand_like randn_like randint_like", Random("like"))
row("normal", Random("elementwise"), tangent=normal_tangent)
row(
    "bernoulli uniform exponential geometric cauchy log_normal normal_functional random poisson binomial "
    "_fused_dropout",
    Random("elementwise"),
)
row("_standard_gamma", Random("elementwise", pathwise=True), tangent=gamma_tangent)
row("_sample_dirichlet", Random("loop", pathwise=True), batch=draw_dirichlet, tangent=dirichlet_tangent)
row("_standard_gamma_grad", Elementwise(), tangent=no_second)
row("_dirichlet_grad", Special(), batch=batch_dirichlet_grad, tangent=no_second)
