"""Complex numbers, Fourier transforms and special functions: compositions, mapped arguments, special points."""

import itertools

import pytest
import torch

import pushforward as pf
from tests.ops.orders import check_orders, weighted

FLOAT, COMPLEX = torch.float64, torch.complex128
fft, special = torch.fft, torch.special


def random(*shape, seed=0, dtype=FLOAT):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def number(x):
    return torch.tensor(x, dtype=FLOAT)


REAL = {
    "complex": lambda x: torch.complex(x, x * x) ** 2,
    "polar": lambda x: torch.polar(x * x, x**3) ** 2,
    "view_as_complex": lambda x: torch.view_as_complex((x @ x)[:, :2].contiguous()) ** 2,
    "abs": torch.abs,
    "sgn": lambda x: (x * x).sgn() * x,
    "angle": lambda x: x.angle() * x,
    "fft": fft.fft,
    "rfft2": fft.rfft2,
    "ihfft": fft.ihfft,
    "stft": lambda x: torch.stft(x.flatten(), 4, window=torch.ones(4, dtype=FLOAT), return_complex=True),
    "polygamma": lambda x: torch.polygamma(1, x * x + 1),
    "i0, i1 and scaled": lambda x: torch.i0(x) + special.i0e(x) + special.i1(x) + special.i1e(x),
    "xlogy, xlog1py": lambda x: torch.xlogy(x, x * x + 1) + special.xlog1py(x * x, x * x),
    "zeta": lambda x: special.zeta(number(2.5), x * x + 1) + special.zeta(2.5, x * x + 1),
    "igamma, igammac": lambda x: torch.igamma(number(2.5), x * x + 1) + torch.igammac(number(1.5), x * x + 1),
    "mvlgamma": lambda x: torch.mvlgamma(x * x + 3, 2),
    "ndtri, log_ndtr, erfcx, entr": lambda x: (
        special.ndtri(torch.sigmoid(x)) + special.log_ndtr(x) + special.erfcx(x) + special.entr(x * x)
    ),
}
OF_COMPLEX = {
    "abs": torch.abs,
    "sgn": lambda x: (x * x).sgn() * x,
    "angle": lambda x: (x * x).angle() * x.abs(),
    "conj": lambda x: (x.conj() * x * x).conj(),
    "real and imag": lambda x: x.real * x.imag + x.conj().imag,
    "pow": lambda x: x ** (x * x),
    "pow with a complex exponent": lambda x: torch.pow(x.abs(), 2 + 1j),
    "view_as_real": lambda x: torch.view_as_real(x @ x) ** 2,
    "fft2": lambda x: fft.fft2(x, norm="ortho"),
    "ifftn": lambda x: fft.ifftn(x, norm="forward"),
    "hfft": fft.hfft,
    "irfft2": fft.irfft2,
    "matrix product with a lazy conjugate": lambda x: x.mH @ x @ x.conj(),
}


@pytest.mark.parametrize("name", REAL)
def test_of_real(name):
    check_orders(lambda x: weighted(REAL[name](x)), random(3, 3, seed=3))


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_of_complex(name):
    check_orders(lambda x: weighted(OF_COMPLEX[name](x)), random(3, 3, seed=4, dtype=COMPLEX))


@pytest.mark.parametrize("f", [torch.abs, torch.sgn, torch.angle])
def test_at_zero_the_derivative_is_zero(f):
    x, v = torch.zeros(2, dtype=COMPLEX), torch.ones(2, dtype=COMPLEX)
    assert not pf.jvp(f, (x,), (v,))[1].abs().any()


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("lanes", [0, 1, 3])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_transforms_along_each_dimension(name, lanes, dim):
    f = getattr(fft, name)
    x = random(3, 4, 6, dtype=FLOAT if name in ("rfft", "ihfft") else COMPLEX)
    for in_dim in (0, 2):
        given = x[:lanes].movedim(0, in_dim)
        expected = torch.stack([f(row, dim=dim) for row in x])[:lanes]
        torch.testing.assert_close(pf.vmap(lambda z: f(z, dim=dim), in_dims=in_dim)(given), expected)
        turned = pf.vmap(lambda z: f(z.mT, dim=dim), in_dims=in_dim)(given)
        torch.testing.assert_close(turned, torch.stack([f(row.mT, dim=dim) for row in x])[:lanes])


def test_inverse_short_time_transform():
    x, window = random(3, 32), torch.hann_window(8, dtype=FLOAT)

    def there_and_back(z):
        spectrum = torch.stft(z, 8, window=window, return_complex=True)
        return torch.istft(spectrum, 8, window=window)

    torch.testing.assert_close(pf.vmap(there_and_back)(x), x)
    v = random(32, seed=1)
    torch.testing.assert_close(pf.jvp(there_and_back, (x[0],), (v,))[1], v)


TWO = {
    "complex": torch.complex,
    "polar": torch.polar,
    "xlogy": torch.xlogy,
    "xlog1py": special.xlog1py,
    "zeta": lambda x, q: special.zeta(x + 1, q),
    "igamma": torch.igamma,
    "igammac": torch.igammac,
    "chebyshev": lambda x, n: special.chebyshev_polynomial_t(x, n.floor()),
    "legendre": lambda x, n: special.legendre_polynomial_p(x, n.floor()),
}


@pytest.mark.parametrize("name", TWO)
def test_two_arguments_of_any_rank(name):
    f = TWO[name]
    for mapped in ((True, True), (True, False), (False, True)):
        for shapes in itertools.product([(), (4,), (2, 4)], repeat=2):
            args = [
                random(*([3] if m else []), *s, seed=k).abs() + 0.5
                for k, (m, s) in enumerate(zip(mapped, shapes, strict=True))
            ]
            expected = torch.stack(
                [f(*[a[k] if m else a for a, m in zip(args, mapped, strict=True)]) for k in range(3)]
            )
            got = pf.vmap(f, in_dims=tuple(0 if m else None for m in mapped))(*args)
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "name",
    [
        *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0"),
        *("modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1"),
        *("scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
    ],
)
def test_bessel_functions_have_a_forward_derivative(name):
    f = getattr(special, name)
    x = torch.linspace(0.3, 4, 7, dtype=FLOAT)
    h, one = 1e-5, torch.ones_like(x)

    def push(z):
        return pf.jvp(f, (z,), (one,))[1]

    torch.testing.assert_close(push(x), (f(x + h) - f(x - h)) / (2 * h), rtol=1e-6, atol=1e-6)
    second = (push(x + h) - push(x - h)) / (2 * h)
    torch.testing.assert_close(pf.jvp(push, (x,), (one,))[1], second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["i1", "i1e", "bessel_j1", "modified_bessel_i1"])
def test_functions_of_order_one_at_zero(name):
    zero, one = torch.zeros(1, dtype=FLOAT), torch.ones(1, dtype=FLOAT)
    torch.testing.assert_close(pf.jvp(getattr(special, name), (zero,), (one,))[1], one / 2)


@pytest.mark.parametrize("name", ["chebyshev_polynomial_t", "hermite_polynomial_h", "hermite_polynomial_he"])
def test_polynomials_have_a_forward_derivative(name):
    f = getattr(special, name)
    x = torch.linspace(-0.9, 0.9, 5, dtype=FLOAT)
    for n in range(5):
        expected = (f(x + 1e-5, n) - f(x - 1e-5, n)) / 2e-5
        torch.testing.assert_close(
            pf.jvp(lambda z: f(z, n), (x,), (torch.ones_like(x),))[1], expected, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.igamma(x, torch.ones_like(x)),
        lambda x: special.zeta(x + 1, torch.ones_like(x)),
        lambda x: special.legendre_polynomial_p(x, 3),
        special.airy_ai,
    ],
)
def test_derivatives_that_nobody_has_are_refused(f):
    x = random(3).abs() + 0.5
    with pytest.raises(pf.NotDifferentiableError):
        pf.jvp(f, (x,), (x,))


def test_xlogy_where_the_logarithm_is_not_defined():
    x, y = torch.zeros(3, dtype=FLOAT), torch.tensor([0.0, -1.0, 2.0], dtype=FLOAT)
    one = torch.ones(3, dtype=FLOAT)
    torch.testing.assert_close(
        pf.jvp(lambda z: torch.xlogy(z, y), (x,), (one,))[1],
        torch.tensor([0.0, 0.0, 2.0], dtype=FLOAT).clamp_min(1).log(),
    )
