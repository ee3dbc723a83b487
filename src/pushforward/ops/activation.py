"""Activations beyond one factor, and the reverse formulas that autograd calls: g ↦ g · f'(x).

Each reverse formula is linear in g and element-wise, so its tangent is dg · f'(x) + g · f''(x) · dx. At kinks f' is
the value of torch's kernel and f'' is 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..core.fresh import stopped
from .elementwise import elu_factor, gelu_factor, logit_factor, mish_factor, silu_factor
from .kinds import AlongDim, Decomposed, Elementwise, Random
from .lanes import as_it_is
from .table import row

Tensor = torch.Tensor


def spread_over_lanes(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """Operators whose kernels do not broadcast: what is shared is expanded to every lane."""
    both = [a if m else a.unsqueeze(0).expand(level.size, *a.shape) for a, m in zip(args[:2], mapped[:2], strict=True)]
    return op(*both, *args[2:], **kwargs)


def reverse_of(name: str, factor: Any, second: Any = None, **rules: Any) -> None:
    """The row of g ↦ g · factor(x, …), with `second` the derivative of the factor in x."""
    by_x = None if second is None else (lambda out, g, x, *a, **k: g * second(x, *a, **k))
    row(name, Elementwise((lambda out, g, x, *a, **k: factor(x, *a, **k), by_x)), **rules)


def gelu_second(x: Tensor, approximate: str = "none") -> Tensor:
    """The second derivative of gelu."""
    if approximate == "tanh":
        k = math.sqrt(2 / math.pi)
        t = (k * (x + 0.044715 * x * x * x)).tanh()
        u1, u2 = k * (1 + 3 * 0.044715 * x * x), 6 * 0.044715 * k * x
        return (1 - t * t) * (u1 + 0.5 * x * (u2 - 2 * t * u1 * u1))
    return (-x * x / 2).exp() * (2 - x * x) / math.sqrt(2 * math.pi)


def softplus_factor(x: Tensor, beta: float, threshold: float) -> Tensor:
    """σ(βx), and 1 above the threshold."""
    return torch.where(x * beta > threshold, 1, torch.sigmoid(x * beta)).to(x.dtype)


def softplus_second(x: Tensor, beta: float, threshold: float) -> Tensor:
    """β σ (1 − σ), and 0 above the threshold."""
    s = torch.sigmoid(x * beta)
    return torch.where(x * beta > threshold, 0, beta * s * (1 - s)).to(x.dtype)


def hardswish_factor(x: Tensor) -> Tensor:
    """0 up to −3, x/3 + 1/2 up to 3, then 1."""
    return torch.where(x <= -3, 0, torch.where(x < 3, x / 3 + 0.5, 1)).to(x.dtype)


reverse_of("threshold_backward", lambda x, threshold: (x > threshold).to(x.dtype))
reverse_of(
    "gelu_backward", lambda x, approximate="none": gelu_factor(x, approximate), gelu_second, batch=spread_over_lanes
)
reverse_of("hardtanh_backward", lambda x, low, high: ((x > low) & (x < high)).to(x.dtype))
reverse_of("leaky_relu_backward", lambda x, slope, is_result: torch.where(x > 0, torch.ones_like(x), slope))
reverse_of("softplus_backward", softplus_factor, softplus_second)
reverse_of("hardsigmoid_backward", lambda x: ((x > -3) & (x < 3)).to(x.dtype) / 6)
reverse_of("hardswish_backward", hardswish_factor, lambda x: ((x > -3) & (x < 3)).to(x.dtype) / 3)
reverse_of("hardshrink_backward softshrink_backward", lambda x, lambd: ((x > lambd) | (x < -lambd)).to(x.dtype))
row("native_dropout_backward", Elementwise((lambda out, g, mask, scale: mask.to(g.dtype) * scale,)))



def of_saved(slope: Any) -> Any:
    """The tangent of g ↦ g · conj(f(y)), with `slope` the derivative of f: dg · conj(f) + g · conj(slope dy).

    It makes one product of the tangents' size for each term.
    """

    def tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        del level
        (g, y), (dg, dy) = primals, tangents[:2]
        moved = None if dg is None else op(dg, y, **kwargs)
        if dy is not None:
            part = (slope(y) * dy).conj() * g if y.is_complex() else dy * (slope(y) * g)
            moved = part if moved is None else moved + part
        return op(g, y, **kwargs), moved

    return tangent


# not complex-linear in the saved value, so not by derivatives
row(
    "sigmoid_backward",
    Elementwise(),
    formula=lambda g, out: g * (out * (1 - out)).conj(),
    tangent=of_saved(lambda y: 1 - 2 * y),
)
row(
    "tanh_backward",
    Elementwise(),
    formula=lambda g, out: g * (1 - out * out).conj(),
    tangent=of_saved(lambda y: -2 * y),
)
row("silu_backward", Elementwise(), formula=lambda g, x: g * silu_factor(x).conj())
row("mish_backward", Elementwise(), formula=lambda g, x: g * mish_factor(x))
row("logit_backward", Elementwise(), formula=lambda g, x, eps=None: g * logit_factor(x, eps))
row("log_sigmoid_backward", Elementwise(), formula=lambda g, x, buffer: g * torch.sigmoid(-x))


def elu_backward(g: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    """From the input, or from the result y: below 0 the factor is input_scale (y + scale α)."""
    if is_result:
        return g * torch.where(x > 0, scale, input_scale * (x + scale * alpha)).to(x.dtype)
    return g * elu_factor(x, alpha, scale, input_scale)


row("elu_backward", Elementwise(), formula=elu_backward)


def log_sigmoid_tangent(
    op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """(log σ(x), a buffer for reverse mode): dx · σ(−x)."""
    del level, kwargs
    return op(*primals), (tangents[0] * torch.sigmoid(-primals[0]), None)


row("log_sigmoid_forward", Elementwise(), tangent=log_sigmoid_tangent)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """a · σ(b) of the two halves of x."""
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


def glu_backward(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """Both halves of the gradient."""
    a, b = x.chunk(2, dim)
    s = torch.sigmoid(b)
    return torch.cat([g * s, g * a * s * (1 - s)], dim)


row("glu", AlongDim(dim=1), formula=glu)
row("glu_backward", AlongDim(dim=2), formula=glu_backward)


def prelu_backward(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """By x and by the weight."""
    return torch.where(x > 0, g, weight * g), torch.where(x > 0, 0, x * g)


row("_prelu_kernel", Elementwise(), formula=lambda x, weight: torch.where(x > 0, x, weight * x))
row("_prelu_kernel_backward", Elementwise(), formula=prelu_backward)


# -- with draws -------------------------------------------------------------------------------------------------------


def argument(op: Any, values: list[Any], kwargs: dict[str, Any], name: str) -> Any:
    """The value of an argument by name, or its default."""
    for k, a in enumerate(op._schema.arguments):
        if a.name == name:
            return values[k] if k < len(values) and not a.kwarg_only else kwargs.get(name, a.default_value)
    return None


def dropout_draws(op: Any, values: list[Any], kwargs: dict[str, Any]) -> bool:
    """In evaluation nothing is drawn."""
    train = argument(op, values, kwargs, "train")
    return train is None or bool(train)


def dropout_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The mask that was drawn, on the tangent too."""
    del level
    out, mask = op(*primals, **kwargs)
    p = primals[1]
    if not dropout_draws(op, primals, kwargs):
        return (out, mask), (tangents[0].clone(), None)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return (out, mask), (tangents[0] * (mask.to(out.dtype) * scale), None)


def rrelu_draws(op: Any, values: list[Any], kwargs: dict[str, Any]) -> bool:
    """In evaluation the slope is the mean of its bounds."""
    return bool(argument(op, values, kwargs, "training"))


def rrelu_tangent(op: Any, level: Any, primals: list[Any], tangents: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The slopes that were drawn are the factors."""
    del level
    x, t = primals[0], tangents[0]
    if rrelu_draws(op, primals, kwargs):  # torch's functional form saves the noise from before the draw
        _, noise = op(stopped(x), *primals[1:], **kwargs)
        return (x * noise, noise), (None if t is None else t * noise, None)
    out = op(*primals, **kwargs)
    low, high = (argument(op, primals, kwargs, name) for name in ("lower", "upper"))
    return out, (None if t is None else torch.where(x > 0, t, t * ((low + high) / 2)), None)


def rrelu_recorded(op: Any, *values: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Where autograd records: torch's functional form saves the noise from before the draw for its derivative."""
    x = values[0]
    if not (x.requires_grad and torch.is_grad_enabled() and rrelu_draws(op, [*values], kwargs)):
        return op(*values, **kwargs)
    _, noise = op(stopped(x), *values[1:], **kwargs)
    return x * noise, noise


def batch_rrelu(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """In evaluation: one slope for all; with draws the level asks for them itself."""
    x, noise = (a if m else a.unsqueeze(0).expand(level.size, *a.shape) for a, m in zip(args[:2], mapped, strict=False))
    return op(x, noise, *args[2:], **kwargs)


def rrelu_backward(
    g: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    """g · noise in training; in evaluation the mean slope below 0."""
    del self_is_result
    if training and upper - lower > 1e-6:
        return g * noise
    return torch.where(x > 0, g, g * ((lower + upper) / 2))


row("rrelu_with_noise_backward", Elementwise(), formula=rrelu_backward)
row("native_dropout", Random("elementwise"), batch=as_it_is, tangent=dropout_tangent, draws=dropout_draws)
row(
    "rrelu_with_noise_functional",
    Random("elementwise"),
    batch=batch_rrelu,
    tangent=rrelu_tangent,
    draws=rrelu_draws,
    recorded=rrelu_recorded,
)


def add_relu(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    """The positive part of a sum."""
    return torch.add(x, y, alpha=alpha).relu()


row("_add_relu", Decomposed(add_relu))
