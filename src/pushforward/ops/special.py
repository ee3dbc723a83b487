"""Special functions: element-wise, so only their derivatives are said here.

Bessel functions and orthogonal polynomials have no derivative in PyTorch; here forward mode uses the classical
recurrences (Abramowitz and Stegun 9.1.28, 9.6.27, 22.8) where they hold at every point. A derivative by an order, or
by the first argument of igamma and zeta, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.errors import NotDifferentiableError
from ..core.source import source_line
from .kinds import Elementwise
from .table import row

Tensor = torch.Tensor
special = torch.special


def refused(name: str, argument: str) -> Callable[..., Any]:
    """A derivative that nobody has."""

    def derivative(*_: Any, **__: Any) -> Any:
        msg = f"jvp: the derivative of `{name}` by {argument} at {source_line()} is not implemented; detach that input"
        raise NotDifferentiableError(msg)

    derivative.refused = f"by {argument}: nobody has a formula"
    return derivative


def number(x: Any, like: Tensor) -> Tensor:
    """A tensor for a Python number."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=like.dtype, device=like.device)


def where_zero(x: Tensor, at_zero: Callable[[Tensor], Tensor], elsewhere: Callable[[Tensor], Tensor]) -> Tensor:
    """`elsewhere(x)`, and where |x| is below 1e-4 the series `at_zero(x)`."""
    small = x.abs() < 1e-4
    return torch.where(small, at_zero(torch.where(small, x, 0)), elsewhere(torch.where(small, 1, x)))


def masked_log(x: Any, y: Any, log: Callable[[Tensor], Tensor], edge: float, out: Tensor) -> Tensor:
    """d xlogy / dx: the logarithm, and 0 where x is 0 and it would be infinite or undefined."""
    y = number(y, out)
    flat = (number(x, out) == 0) & (y <= edge)
    return torch.where(flat, 0, log(torch.where(flat, 1, y)))


row("xlogy", Elementwise((lambda out, x, y: masked_log(x, y, torch.log, 0, out), lambda out, x, y: x / y)))
row(
    "special_xlog1py",
    Elementwise((lambda out, x, y: masked_log(x, y, torch.log1p, -1, out), lambda out, x, y: x / (y + 1))),
)
row("polygamma", Elementwise((None, lambda out, n, x: torch.polygamma(n + 1, x))))
row("mvlgamma", Elementwise((lambda out, x, p: sum(torch.digamma(x - k / 2) for k in range(p)),)))
row(
    "special_zeta",
    Elementwise((refused("zeta", "its first argument"), lambda out, x, q: -x * special.zeta(x + 1, number(q, out)))),
)
row("igamma", Elementwise((refused("igamma", "its first argument"), lambda out, a, x: gamma_density(a, x))))
row("igammac", Elementwise((refused("igammac", "its first argument"), lambda out, a, x: -gamma_density(a, x))))


def gamma_density(a: Tensor, x: Tensor) -> Tensor:
    """x^(a−1) e^(−x) / Γ(a)."""
    return (torch.xlogy(a - 1, x) - x - torch.lgamma(a)).exp()


def unary(name: str, derivative: Callable[..., Any]) -> None:
    """A function of one tensor."""
    row(name, Elementwise((derivative,)))


def over_x(out: Tensor, x: Tensor, sign: int) -> Tensor:
    """J1(x)/x for sign −1, I1(x)/x for sign 1: 1/2 ± x²/16 + … near 0."""
    return where_zero(x, lambda z: 0.5 + sign * z * z / 16, lambda z: torch.where(x == z, out, 1) / z)


unary("special_i1", lambda out, x: torch.i0(x) - over_x(out, x, 1))
unary("special_i1e", lambda out, x: special.i0e(x) - x.sgn() * out - i1e_over_x(out, x))
unary("special_bessel_j0", lambda out, x: -special.bessel_j1(x))
unary("special_bessel_j1", lambda out, x: special.bessel_j0(x) - over_x(out, x, -1))
unary("special_bessel_y0", lambda out, x: -special.bessel_y1(x))
unary("special_bessel_y1", lambda out, x: special.bessel_y0(x) - out / x)
unary("special_modified_bessel_i0", lambda out, x: special.modified_bessel_i1(x))
unary("special_modified_bessel_i1", lambda out, x: special.modified_bessel_i0(x) - over_x(out, x, 1))
unary("special_modified_bessel_k0", lambda out, x: -special.modified_bessel_k1(x))
unary("special_modified_bessel_k1", lambda out, x: -special.modified_bessel_k0(x) - out / x)
unary("special_scaled_modified_bessel_k0", lambda out, x: out - special.scaled_modified_bessel_k1(x))
unary("special_scaled_modified_bessel_k1", lambda out, x: out - special.scaled_modified_bessel_k0(x) - out / x)
unary(
    "special_spherical_bessel_j0", lambda out, x: where_zero(x, lambda z: -z / 3, lambda z: (z.cos() - z.sin() / z) / z)
)
unary("special_airy_ai", refused("airy_ai", "its argument"))


def i1e_over_x(out: Tensor, x: Tensor) -> Tensor:
    """exp(−|x|) I1(x) / x."""
    return where_zero(x, lambda z: 0.5 - z.abs() / 2 + 5 * z * z / 16, lambda z: torch.where(x == z, out, 1) / z)


def polynomial(names: str, derivative: Callable[..., Any] | None = None) -> None:
    """Polynomials p_n(x): (x, n)."""
    for name in names.split():
        row(name, Elementwise((derivative or refused(name, "x"), refused(name, "n"))))


polynomial("special_chebyshev_polynomial_t", lambda out, x, n: n * special.chebyshev_polynomial_u(x, n - 1))
polynomial(
    "special_shifted_chebyshev_polynomial_t",
    lambda out, x, n: 2 * n * special.shifted_chebyshev_polynomial_u(x, n - 1),
)
polynomial("special_hermite_polynomial_h", lambda out, x, n: 2 * n * special.hermite_polynomial_h(x, n - 1))
polynomial("special_hermite_polynomial_he", lambda out, x, n: n * special.hermite_polynomial_he(x, n - 1))
polynomial(
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w "
    "special_laguerre_polynomial_l special_legendre_polynomial_p"
)
