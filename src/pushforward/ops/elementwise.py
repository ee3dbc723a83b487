"""Element-wise operators: out[i] = f(x[i], …), so the tangent is the sum of factor · tangent over the arguments.

A derivative is `lambda out, *args: factor` for the argument at its place. Where f is not differentiable the factor is
the one of torch's reverse mode, so that both modes agree (relu' (0) = 0, abs' (0) = 0, the clamp passes at its bounds).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .kinds import Constant, Elementwise, ElementwiseBilinear, ElementwiseLinear
from .table import row

aten = torch.ops.aten
TANH_BACKWARD, SIGMOID_BACKWARD = aten.tanh_backward.default, aten.sigmoid_backward.default
THRESHOLD_BACKWARD, GELU_BACKWARD = aten.threshold_backward.default, aten.gelu_backward.default


def unary(names: str, derivative: object, kernel: object = None) -> None:
    """A function of one tensor."""
    row(names, Elementwise((derivative,), kernel))  # type: ignore[arg-type]


unary("sin", lambda out, x: x.cos())
unary("cos", lambda out, x: -x.sin())
unary("tan", lambda out, x: 1 + out * out)
unary("asin", lambda out, x: (1 - x * x).rsqrt())
unary("acos", lambda out, x: -(1 - x * x).rsqrt())
unary("atan", lambda out, x: (x * x + 1).reciprocal())
unary("sinh", lambda out, x: x.cosh())
unary("cosh", lambda out, x: x.sinh())
unary("tanh", lambda out, x: 1 - out * out, lambda t, out, x: TANH_BACKWARD(t, out))
unary("asinh", lambda out, x: (x * x + 1).rsqrt())
unary("acosh", lambda out, x: (x - 1).rsqrt() * (x + 1).rsqrt())
unary("atanh", lambda out, x: (1 - x * x).reciprocal())
unary("exp", lambda out, x: out)
unary("exp2", lambda out, x: out * math.log(2))
unary("expm1", lambda out, x: out + 1)
unary("log", lambda out, x: x.reciprocal())
unary("log2", lambda out, x: (x * math.log(2)).reciprocal())
unary("log10", lambda out, x: (x * math.log(10)).reciprocal())
unary("log1p", lambda out, x: (x + 1).reciprocal())
unary("sqrt", lambda out, x: (2 * out).reciprocal())
unary("rsqrt", lambda out, x: -0.5 * out * out * out)
unary("reciprocal", lambda out, x: -out * out)
unary("square", lambda out, x: 2 * x)
unary("sigmoid", lambda out, x: out * (1 - out), lambda t, out, x: SIGMOID_BACKWARD(t, out))
unary("log_sigmoid", lambda out, x: torch.sigmoid(-x))
unary("erf", lambda out, x: (2 / math.sqrt(math.pi)) * (-x * x).exp())
unary("erfc", lambda out, x: (-2 / math.sqrt(math.pi)) * (-x * x).exp())
unary("erfinv", lambda out, x: (math.sqrt(math.pi) / 2) * (out * out).exp())
unary("special_erfcx", lambda out, x: 2 * x * out - 2 / math.sqrt(math.pi))
unary("special_ndtri", lambda out, x: math.sqrt(2 * math.pi) * (out * out / 2).exp())
unary("special_log_ndtr", lambda out, x: (-x * x / 2 - out).exp() / math.sqrt(2 * math.pi))
unary("special_i0e", lambda out, x: torch.special.i1e(x) - x.sgn() * out)
unary("special_entr", lambda out, x: -x.log() - 1)
unary("lgamma", lambda out, x: torch.digamma(x))
unary("digamma", lambda out, x: torch.polygamma(1, x))
unary("i0", lambda out, x: torch.special.i1(x))
unary("relu", lambda out, x: (out > 0).to(out.dtype), lambda t, out, x: THRESHOLD_BACKWARD(t, out, 0))
unary("relu6", lambda out, x: ((x > 0) & (x < 6)).to(out.dtype))
unary("deg2rad", lambda out, x: math.pi / 180)
unary("rad2deg", lambda out, x: 180 / math.pi)
unary("frac", lambda out, x: 1)
unary("nan_to_num", lambda out, x, *a, **k: x.isfinite().to(out.dtype))
unary("logit", lambda out, x, eps=None: logit_factor(x, eps))
unary("sinc", lambda out, x: sinc_factor(x))
unary("silu", lambda out, x: silu_factor(x))  # its backward kernel has no derivative of its own
unary("mish", lambda out, x: mish_factor(x))
unary("softplus", lambda out, x, beta=1, threshold=20: torch.where(x * beta > threshold, 1, torch.sigmoid(x * beta)))
unary("elu", lambda out, x, alpha=1, scale=1, input_scale=1: elu_factor(x, alpha, scale, input_scale))
unary("celu", lambda out, x, alpha=1.0: elu_factor(x, alpha, 1, 1 / alpha))
unary("leaky_relu", lambda out, x, slope=0.01: torch.where(x > 0, torch.ones_like(x), slope))
unary("hardtanh", lambda out, x, low=-1, high=1: ((x > low) & (x < high)).to(out.dtype))
unary("hardsigmoid", lambda out, x: ((x > -3) & (x < 3)).to(out.dtype) / 6)
unary("hardswish", lambda out, x: torch.where(x <= -3, 0, torch.where(x < 3, x / 3 + 0.5, 1)).to(out.dtype))
unary("hardshrink", lambda out, x, lambd=0.5: ((x > lambd) | (x < -lambd)).to(out.dtype))
unary("softshrink", lambda out, x, lambd=0.5: ((x > lambd) | (x < -lambd)).to(out.dtype))
unary("threshold", lambda out, x, threshold, value: (x > threshold).to(out.dtype))
unary(
    "gelu",
    lambda out, x, approximate="none": gelu_factor(x, approximate),
    lambda t, out, x, approximate="none": GELU_BACKWARD(t, x, approximate=approximate),
)


def logit_factor(x: torch.Tensor, eps: float | None) -> torch.Tensor:
    """1 / (x (1 − x)); with eps, zero outside of [eps, 1 − eps]."""
    inner = (x * (1 - x)).reciprocal()
    if eps is None:
        return inner
    return torch.where((x < eps) | (x > 1 - eps), 0, inner).to(x.dtype)


def sinc_factor(x: torch.Tensor) -> torch.Tensor:
    """(cos πx · πx − sin πx) / (π x²), and 0 at 0."""
    y = x * math.pi
    safe = torch.where(x == 0, 1, y).to(x.dtype)
    return torch.where(x == 0, -x * (math.pi**2 / 3), math.pi * (safe.cos() - safe.sin() / safe) / safe).to(x.dtype)


def silu_factor(x: torch.Tensor) -> torch.Tensor:
    """s (1 + x (1 − s)) with s the sigmoid of x."""
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def mish_factor(x: torch.Tensor) -> torch.Tensor:
    """tanh(p) + x σ(x) (1 − tanh² p) with p the softplus of x."""
    t = torch.nn.functional.softplus(x).tanh()
    return t + x * torch.sigmoid(x) * (1 - t * t)


def elu_factor(x: torch.Tensor, alpha: float, scale: float, input_scale: float) -> torch.Tensor:
    """scale above 0; scale · α · input_scale · exp(input_scale x) below."""
    low = torch.where(x > 0, 0, x).to(x.dtype)
    return torch.where(x > 0, scale, scale * alpha * input_scale * (low * input_scale).exp()).to(x.dtype)


def gelu_factor(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Φ(x) + x φ(x), or the derivative of the tanh approximation."""
    if approximate == "tanh":
        k = math.sqrt(2 / math.pi)
        t = (k * (x + 0.044715 * x * x * x)).tanh()
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * (-x * x / 2).exp() / math.sqrt(2 * math.pi)


# -- linear -------------------------------------------------------------------------------------------------------

row("neg conj_physical positive", ElementwiseLinear())
row("mul", ElementwiseBilinear())
row("contiguous lift_fresh_copy", ElementwiseLinear())


# -- two and more arguments ----------------------------------------------------------------------------------------


def over(y: Any) -> Any:
    """1 / y; of a number too, where Python would raise."""
    return math.copysign(math.inf, y) if type(y) in (int, float) and y == 0 else 1 / y


def scaled(sign: int) -> object:
    """d(x ± alpha y)/dy."""
    return lambda out, x, y, alpha=1: sign * alpha


row("add", Elementwise((lambda out, x, y, alpha=1: 1, scaled(1))))  # type: ignore[arg-type]
row("sub", Elementwise((lambda out, x, y, alpha=1: 1, scaled(-1))))  # type: ignore[arg-type]
row("rsub", Elementwise((lambda out, x, y, alpha=1: -alpha, lambda out, x, y, alpha=1: 1)))
row("div.Tensor div.Scalar true_divide", Elementwise((lambda out, x, y: over(y), lambda out, x, y: -out / y)))
row(
    "pow",
    Elementwise((lambda out, x, p: pow_base(x, p), lambda out, x, p: pow_exponent(out, x, p))),
)
row("atan2", Elementwise((lambda out, y, x: x * inverse_square(x, y), lambda out, y, x: -y * inverse_square(x, y))))
row(
    "hypot",
    Elementwise((lambda out, x, y: x / out, lambda out, x, y: y / out)),
)
row(
    "addcmul",
    Elementwise(
        (
            lambda out, x, a, b, value=1: 1,
            lambda out, x, a, b, value=1: b * value,
            lambda out, x, a, b, value=1: a * value,
        )
    ),
)
row(
    "addcdiv",
    Elementwise(
        (
            lambda out, x, a, b, value=1: 1,
            lambda out, x, a, b, value=1: value / b,
            lambda out, x, a, b, value=1: -value * a / (b * b),
        )
    ),
)
row(
    "lerp",
    Elementwise(
        (lambda out, x, y, w: 1 - w, lambda out, x, y, w: w, lambda out, x, y, w: y - x),
    ),
)
row("logaddexp", Elementwise((lambda out, x, y: torch.sigmoid(x - y), lambda out, x, y: torch.sigmoid(y - x))))


def inverse_square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1 / (x² + y²), and 0 at the origin."""
    square = x * x + y * y
    return torch.where(square == 0, 0, torch.where(square == 0, 1, square).reciprocal())


def pow_base(x: torch.Tensor, p: object) -> object:
    """p x^(p−1), and 0 where p is 0."""
    if not isinstance(p, torch.Tensor):
        return 0 if p == 0 else p * x ** (p - 1)  # type: ignore[operator]
    return torch.where(p == 0, 0, p * x ** (p - 1))


def pow_exponent(out: torch.Tensor, x: object, p: torch.Tensor) -> torch.Tensor:
    """x^p log x, and 0 where x is 0 and p ≥ 0."""
    base = torch.as_tensor(x, dtype=out.dtype, device=out.device) if not isinstance(x, torch.Tensor) else x
    positive = p.real >= 0 if p.is_complex() else p >= 0
    flat = (base == 0) & positive
    return torch.where(flat, 0, out * torch.where(flat, 1, base).log())


# -- no derivative -----------------------------------------------------------------------------------------------

row(
    "ceil floor round trunc sign signbit isnan isinf isposinf isneginf isfinite heaviside "
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not "
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift "
    "__and__ __or__ __xor__ __lshift__ __rshift__ floor_divide gcd lcm isreal",
    Elementwise(()),
)
row(
    "div.Tensor_mode div.Scalar_mode",
    Elementwise(
        (
            lambda out, x, y, rounding_mode=None: mode_factor(x, y, rounding_mode, 0),
            lambda out, x, y, rounding_mode=None: mode_factor(x, y, rounding_mode, 1),
        )
    ),
)


def mode_factor(x: object, y: object, mode: str | None, which: int) -> object:
    """The derivative of x / y, or 0 where the quotient is rounded."""
    if mode is not None:
        return 0
    return over(y) if which == 0 else -x / (y * y)  # type: ignore[operator]


CONSTANT = Constant()
