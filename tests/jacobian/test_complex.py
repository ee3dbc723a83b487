"""Complex numbers in Jacobians: all ways agree where there is a complex derivative, and say so where there is none."""

from __future__ import annotations

import contextlib

import pytest
import torch

import pushforward as pf

C, D = torch.complex128, torch.float64
N = 10
Z = torch.complex(torch.linspace(0.3, 1.4, N, dtype=D), torch.linspace(1, -1, N, dtype=D))
R = torch.linspace(-1, 1, N, dtype=D)
W = torch.randn(3, N, dtype=C, generator=torch.Generator().manual_seed(0))
WIDE = torch.randn(30, N, dtype=C, generator=torch.Generator().manual_seed(1))

WAYS = {
    "jacfwd": pf.jacfwd,
    "jacfwd in chunks": lambda f: pf.jacfwd(f, chunk_size=4),
    "jacrev": pf.jacrev,
    "jacrev in chunks": lambda f: pf.jacrev(f, chunk_size=4),
    "jacobian": pf.jacobian,
    "forward": lambda f: pf.jacobian(f, mode="forward"),
    "reverse": lambda f: pf.jacobian(f, mode="reverse"),
    "in chunks": lambda f: pf.jacobian(f, mode="reverse", chunk_size=3),
    "value": lambda f: lambda *x: pf.value_and_jacobian(f)(*x)[1],
    "plan": lambda f: lambda *x: pf.plan(f, *x)(*x),
    "sparse": lambda f: pf.jacobian(f, sparsity="global"),
    "sparse reverse": lambda f: pf.jacobian(f, sparsity="global", mode="reverse"),
    "both": lambda f: pf.jacobian(f, sparsity="global", mode="both"),
    "inside": lambda f: lambda *x: pf.vmap(pf.jacobian(f))(*[a[None] for a in x])[0],
    "mapped": lambda f: lambda *x: pf.vmap(pf.jacrev(f))(*[torch.stack([a, a * 2]) for a in x])[0],
}
HOLOMORPHIC = {
    "square": lambda z: z * z,
    "few": lambda z: (W @ z).exp(),
    "many": lambda z: (WIDE @ z).sin(),
    "quotient": lambda z: z[1:] / z[:-1],
    "one": lambda z: (z * z).sum(),
    "conjugated twice": lambda z: (z.conj() * 2).conj(),
    "parts": lambda z: torch.complex(z.real * 2 - z.imag, z.imag * 2 + z.real),
}
OTHERS = {
    "conj": lambda z: z.conj(),
    "abs": lambda z: z.abs(),
    "square of abs": lambda z: z * z.conj(),
    "real": lambda z: z.real,
    "angle": lambda z: z.angle().sum(),
    "few": lambda z: W @ z.conj(),
    "one of many": lambda z: torch.cat([z, z[-1:].conj()]),
    "one of two": lambda z: (z * z, (z * z).real),
}


def columns(f, z):
    """J v along the real axis, by torch: d/dt f(z + t e_k), each of its parts by reverse mode."""

    def parts(t):
        out = f(z + t)
        return torch.view_as_real(out.resolve_conj()) if out.is_complex() else out

    t = torch.zeros(z.shape, dtype=D)
    made = torch.autograd.functional.jacobian(parts, t)
    return torch.view_as_complex(made.movedim(f(z).dim(), -1).contiguous()) if f(z).is_complex() else made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_complex_derivatives(name, way):
    f = HOLOMORPHIC[name]
    for k, around in enumerate([contextlib.nullcontext] * 4 + [pf.no_replay]):
        z = Z * (1 + k / 4)
        with around():
            got = WAYS[way](f)(z)
        torch.testing.assert_close(got.to_dense().reshape(columns(f, z).shape), columns(f, z))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["wave", "both", "few"])
def test_complex_functions_of_real_numbers(name, way):
    f = {"wave": lambda r: (1j * r).exp(), "both": lambda r: (W @ (r + 0j)).exp(), "few": lambda r: (r * (1 + 2j)).sum()}[name]
    for k in range(4):
        r = R + k
        got = WAYS[way](f)(r)
        torch.testing.assert_close(got.to_dense().reshape(columns(f, r).shape), columns(f, r))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OTHERS)
def test_functions_without_a_complex_derivative_are_refused(name, way):
    if name == "one of two" and way in ("sparse", "sparse reverse", "both"):
        pytest.skip("one pattern for both outputs")
    f = OTHERS[name]
    for around in [contextlib.nullcontext] * 4 + [pf.no_replay]:
        with pytest.raises(pf.ArgumentError, match=r"(?s)args\[0\].*torch\.view_as_real"), around():
            WAYS[way](f)(Z)


def test_the_way_out():
    f = OTHERS["square of abs"]
    of_parts = lambda r: torch.view_as_real(f(torch.view_as_complex(r)))
    for t in (pf.jacfwd, pf.jacrev, pf.jacobian):
        made = t(of_parts)(torch.view_as_real(Z))
        torch.testing.assert_close(made[0, :, 0], torch.tensor([[2 * Z[0].real, 2 * Z[0].imag], [0, 0]], dtype=D))


def test_real_and_complex_inputs_and_outputs_together():
    f = lambda z, r: {"z": z * z * r, "r": r * r}
    for t in (pf.jacfwd, pf.jacrev, pf.jacobian, lambda f, argnums: pf.jacobian(f, argnums, mode="reverse")):
        for _ in range(4):
            made = t(f, argnums=(0, 1))(Z, R)
            torch.testing.assert_close(made["z"][0], torch.diag(2 * Z * R))
            torch.testing.assert_close(made["z"][1], torch.diag(Z * Z))
            assert not made["r"][0].any()
            torch.testing.assert_close(made["r"][1], torch.diag(2 * R))


def test_second_derivatives():
    f = lambda z: (z**3).sum() + z[0] * z[1]
    want = torch.diag(6 * Z)
    want[0, 1] = want[1, 0] = 1
    for t in (pf.hessian, lambda f: pf.jacfwd(pf.jacrev(f)), lambda f: pf.jacrev(pf.jacfwd(f)), lambda f: pf.jacfwd(pf.jacfwd(f))):
        for _ in range(4):
            torch.testing.assert_close(t(f)(Z), want)
    for t in (pf.hessian, lambda f: pf.jacfwd(pf.jacrev(f))):
        with pytest.raises(pf.ArgumentError, match="view_as_real"):
            t(lambda z: z.abs().sum())(Z)


def test_only_some_lanes_have_none():
    f = lambda z: torch.where(z.real > 1, z.conj(), z * z)
    far = Z.real > 1
    assert far.any()
    for t in (pf.jacfwd, pf.jacrev):
        torch.testing.assert_close(pf.vmap(t(f))(Z[~far]), 2 * Z[~far])
        with pytest.raises(pf.ArgumentError, match="view_as_real"):
            pf.vmap(t(f))(Z)


def test_gradients_are_of_real_numbers():
    for t in (pf.grad, pf.grad_and_value):
        with pytest.raises(pf.ArgumentError, match=r"complex128.*\.real"):
            t(lambda z: (z * z).sum())(Z)
    torch.testing.assert_close(pf.grad(lambda z: (z.abs() ** 2).sum())(Z), 2 * Z)
    torch.testing.assert_close(pf.hvp(lambda z: (z.abs() ** 2).sum(), (Z,), (1j * Z,))[1], 2j * Z)


def test_programs_are_recorded_without_looking():
    for t in (pf.jacfwd, pf.jacrev):
        program = pf.trace(t(HOLOMORPHIC["square"]))(Z)
        torch.testing.assert_close(program(Z * 2), torch.diag(4 * Z))
    with torch.device("meta"):
        assert pf.jacfwd(HOLOMORPHIC["square"])(torch.ones(3, dtype=C)).shape == (3, 3)
