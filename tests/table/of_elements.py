"""Samples of element-wise operators with parameters, and of their reverse formulas."""

from __future__ import annotations

import torch

from tests.table.samples import aten, each, sample
from tests.table.values import C, apart, b, c, given, i, n, p

# -- element-wise ---------------------------------------------------------------------------------------------------

sample("sub add rsub", lambda x, y: aten.sub(x, y, alpha=0.5) + aten.add(x, 2) + aten.rsub(x, y), n(2, 3), n(3))
sample("asin acos atanh erfinv", lambda x: x.asin() * x.acos() + x.atanh() + x.erfinv(), p(2, 3))
sample("acosh log_sigmoid", lambda x: (1 + x).acosh() + torch.nn.functional.logsigmoid(x), p(2, 3))
sample(
    "relu relu6 hardsigmoid hardswish silu celu",
    lambda x: sum(
        getattr(torch.nn.functional, f)(x) for f in ("relu", "relu6", "hardsigmoid", "hardswish", "silu", "celu")
    ),
    apart(2, 3),
)
sample("threshold", lambda x: aten.threshold(x, 0.1, 2.0), apart(2, 3))
sample("div.Scalar", lambda x: aten.div.Scalar(x, 3.0), n(2, 3))
sample("pow", lambda x, y: aten.pow(x, y) + aten.pow(x, 2.5) + aten.pow(2.5, y) + x**3, p(2, 3), n(3))
sample(
    "div.Tensor_mode div.Scalar_mode",
    lambda x, y: (
        torch.div(x, y, rounding_mode="floor")
        + torch.div(x, 0.4, rounding_mode="trunc")
        + torch.div(x, y, rounding_mode=None)
    ),
    n(2, 3),
    p(3),
)
sample("lerp", lambda x, y, w: torch.lerp(x, y, w) + torch.lerp(x, y, 0.3), n(2, 3), n(3), n(2, 3))
sample(
    "addcmul addcdiv",
    lambda x, y, z: torch.addcmul(x, y, z, value=2) + torch.addcdiv(x, y, z, value=3),
    n(2, 3),
    n(3),
    p(2, 1),
)
each(
    "__and__ __or__ __xor__ bitwise_and bitwise_or bitwise_xor gcd lcm",
    lambda op: lambda x, y: op.overloadpacket(x, y),
    i([12, 5, 9], [4, 6, 8]),
    i(6, 3, 2),
)
each(
    "__lshift__ __rshift__ bitwise_left_shift bitwise_right_shift",
    lambda op: lambda x, y: op.overloadpacket(x, y),
    i([12, 5, 9], [4, 6, 8]),
    i(1, 2, 3),
)
sample("bitwise_not", lambda x: torch.bitwise_not(x), i([12, 5, 9], [4, 6, 8]))
sample(
    "fmod remainder",
    lambda x, y: torch.fmod(x, y) + torch.remainder(x, y) + torch.fmod(x, 0.4) + torch.remainder(2.0, y),
    n(2, 3),
    p(3),
)
sample("floor_divide", lambda x, y: torch.floor_divide(x, y) * x, n(2, 3), p(3))
sample("copysign", lambda x, y: torch.copysign(x, y) + torch.copysign(x, -1.0), n(2, 3), n(3))
sample("frexp", lambda x: torch.frexp(x), p(2, 3, low=0.55, high=0.9))
sample("ldexp", lambda x, k: torch.ldexp(x, k), n(2, 3), i(1, 0, 2))
sample("clamp", lambda x, low: aten.clamp(x, -0.3, 0.4) + torch.clamp(x, low, low + 1), apart(2, 3), n(3))
sample("clamp_min clamp_max", lambda x, y: torch.clamp_min(x, 0.1) + torch.clamp_max(x, y), apart(2, 3), n(3))
sample(
    "xlogy special_xlog1py",
    lambda x, y: torch.xlogy(x, y) + torch.special.xlog1py(x, y) + torch.xlogy(2.0, y),
    p(2, 3),
    p(3),
)
sample("polygamma", lambda x: torch.polygamma(1, x), p(2, 3))
sample("mvlgamma", lambda x: torch.mvlgamma(x + 2, 2), p(2, 3))
sample("special_zeta", lambda q: torch.special.zeta(given(2.5).make(None), q + 1), p(2, 3))
sample(
    "igamma igammac",
    lambda x: torch.igamma(torch.full_like(x, 1.5), x) + torch.igammac(torch.full_like(x, 2.5), x),
    p(2, 3),
)
sample("special_airy_ai", torch.special.airy_ai, p(2, 3), refused=True)
for name in (
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_t",
):
    each(
        "special_" + name,
        lambda op: lambda x, k: op(x, k),
        p(2, 3),
        given(1.0, 2.0, 3.0, fixed=True),
        once="chebyshev" in name,
    )
each(
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
    "special_laguerre_polynomial_l special_legendre_polynomial_p",
    lambda op: lambda x, k: op(x, k),
    p(2, 3),
    given(1.0, 2.0, 3.0, fixed=True),
    refused=True,
)
each(
    "conj_physical _conj_physical _conj_copy view_as_real_copy view_as_real _conj resolve_conj real imag",
    lambda op: lambda x: op(x),
    c(2, 3),
)
each("view_as_complex view_as_complex_copy", lambda op: lambda x: op(x.contiguous()), n(3, 2))
sample("polar", torch.polar, p(2, 3), n(3))
each("complex", lambda op: lambda x, y: op(x, y), n(2, 3), n(2, 3))
each("maximum minimum fmax fmin", lambda op: lambda x, y: op(x, y), apart(2, 3), apart(3))
each("lift_fresh_copy clone alias lift lift_fresh positive contiguous", lambda op: lambda x: op(x) * x, n(2, 3))
sample("_to_copy", lambda x: aten._to_copy(x, dtype=C), n(2, 3))
sample("copy", lambda x, y: aten.copy(x, y), n(2, 3), n(3))
sample("zero", lambda x: aten.zero(x) + x, n(2, 3))
sample("where.self", lambda m, x, y: torch.where(m, x, y), b(1, 0, 1), n(2, 3), n(3))
sample(
    "masked_fill", lambda x, m, y: torch.masked_fill(x, m, y) * torch.masked_fill(x, m, 2.0), n(2, 3), b(1, 0, 1), n()
)
sample("fill", lambda x, y: aten.fill.Tensor(x, y) * aten.fill.Scalar(x, 2.0) + x, n(2, 3), n())
each(
    "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 "
    "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_spherical_bessel_j0",
    lambda op: lambda x: op(x),
    p(2, 3),
)
sample(
    "_masked_softmax_backward",
    lambda g, y, m: aten._masked_softmax_backward(g, y.masked_fill(m, 0), m, 1),
    n(2, 3),
    p(2, 3),
    b([1, 0, 0], [0, 0, 1]),
)
sample("isin", lambda x, y: torch.isin(x, y), i([1, 2], [3, 4]), i(2, 3))
sample(
    "_standard_gamma_grad", lambda a, x: aten._standard_gamma_grad(a, x) * a, p(2, 3, fixed=True), p(2, 3, fixed=True)
)
sample(
    "_dirichlet_grad",
    lambda x, a: aten._dirichlet_grad(x / x.sum(), a, a.sum().expand(3)),
    p(3, fixed=True),
    p(3, fixed=True),
    slow=True,
)

# -- reverse formulas of element-wise operators: g, then what was given or what came out ---------------------------------

each(
    "gelu_backward hardsigmoid_backward hardswish_backward sigmoid_backward tanh_backward silu_backward mish_backward "
    "logit_backward",
    lambda op: lambda g, x: op(g, x),
    n(2, 3),
    p(2, 3),
)
sample("threshold_backward", lambda g, x: aten.threshold_backward(g, x, 0.1), n(2, 3), apart(2, 3))
sample("hardtanh_backward", lambda g, x: aten.hardtanh_backward(g, x, -0.4, 0.4), n(2, 3), apart(2, 3))
sample("leaky_relu_backward", lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), n(2, 3), apart(2, 3))
sample("softplus_backward", lambda g, x: aten.softplus_backward(g, x, 1.5, 20.0), n(2, 3), n(2, 3))
each("hardshrink_backward softshrink_backward", lambda op: lambda g, x: op(g, x, 0.4), n(2, 3), apart(2, 3))
sample(
    "native_dropout_backward", lambda g, m: aten.native_dropout_backward(g, m, 2.0), n(2, 3), b([1, 0, 1], [0, 1, 1])
)
sample(
    "log_sigmoid_backward",
    lambda g, x: aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1].detach()),
    n(2, 3),
    n(2, 3),
)
sample("log_sigmoid_forward", lambda x: aten.log_sigmoid_forward(x)[0], n(2, 3))
sample("elu_backward", lambda g, x: aten.elu_backward(g, 1.2, 1.1, 0.9, False, x), n(2, 3), apart(2, 3))
sample("_prelu_kernel", lambda x, w: aten._prelu_kernel(x, w.expand(2, 3)), apart(2, 3), n(3))
sample(
    "_prelu_kernel_backward",
    lambda g, x, w: aten._prelu_kernel_backward(g, x, w.expand(2, 3)),
    n(2, 3),
    apart(2, 3),
    n(3),
)
sample(
    "rrelu_with_noise_backward",
    lambda g, x, s: aten.rrelu_with_noise_backward(g, x, s, 0.1, 0.3, True, False),
    n(2, 3),
    apart(2, 3),
    p(2, 3, fixed=True),
)
sample("glu_backward", lambda g, x: aten.glu_backward(g, x, 1), n(2, 2), n(2, 4))
sample("glu", lambda x: aten.glu(x, 1), n(2, 4))
