"""Workloads for compiled programs, each written for PyTorch and for JAX over the same numbers.

The PyTorch side takes the transforms from a library with torch.func's signatures, so that three of the sides share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """One workload: what is computed from which arrays.

    ``torch(T)`` and ``jax(jax, jnp)`` give a function of the arrays; ``size`` says what dominates a call.
    """

    name: str
    size: str  # "small": at most 20 operators in the function; "chain"; "model"
    dtype: str
    arrays: Callable[[np.random.Generator], Arrays]
    torch: Callable[[Any], Callable[..., Any]]
    jax: Callable[[Any, Any], Callable[..., Any]]


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[np.random.Generator], Arrays]:
    """Normally distributed arrays of these shapes."""
    return lambda rng: tuple(rng.standard_normal(shape) * scale for shape in shapes)


def layers(widths: list[int], *more: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Weights of a perceptron as one tuple of arrays, then more arrays."""

    def make(rng: np.random.Generator) -> Arrays:
        weights = []
        for a, b in itertools.pairwise(widths):
            weights += [rng.standard_normal((b, a)) / a**0.5, rng.standard_normal(b) * 0.1]
        return (tuple(weights), *[rng.standard_normal(shape) for shape in more])

    return make


# -- functions, twice -------------------------------------------------------------------------------------------------


def three(x: Any, m: Any) -> Any:
    """(x0·x1, x1², sin x0)."""
    return m.stack([x[0] * x[1], x[1] ** 2, m.sin(x[0])])


def sin_times_x(x: Any, m: Any) -> Any:
    """Σ sin(x)·x."""
    return (m.sin(x) * x).sum()


def rosenbrock(x: Any, m: Any) -> Any:
    """The valley everyone starts with."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def sines(x: Any, m: Any) -> Any:
    """100 sines in a row."""
    for _ in range(100):
        x = m.sin(x)
    return x.sum()


def mlp(weights: Any, x: Any, m: Any) -> Any:
    """A perceptron with tanh between layers."""
    for k in range(0, len(weights), 2):
        x = x @ weights[k].T + weights[k + 1]
        if k + 2 < len(weights):
            x = m.tanh(x)
    return x


def euler(p: Any, m: Any) -> Any:
    """Predators and prey, 20 Euler steps; by the four rates."""
    a, b = p[0] * 0 + 1.0, p[0] * 0 + 0.5
    for _ in range(20):
        a, b = a + 0.05 * (p[0] * a - p[1] * a * b), b + 0.05 * (p[2] * a * b - p[3] * b)
    return m.stack([a, b])


def torch_block(w: Any, x: Any) -> Any:
    """A pre-norm transformer block with two heads."""
    dim = x.shape[-1:]
    h = F.layer_norm(x, dim, w[0], w[1])
    q, k, v = (t.unflatten(-1, (2, -1)).transpose(-3, -2) for t in F.linear(h, w[2]).chunk(3, -1))
    a = torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, -1) @ v
    x = x + F.linear(a.transpose(-3, -2).flatten(-2), w[3])
    h = F.layer_norm(x, dim, w[4], w[5])
    return x + F.linear(F.gelu(F.linear(h, w[6])), w[7])


def jax_block(jax: Any, jnp: Any) -> Callable[[Any, Any], Any]:
    """The same in JAX."""

    def norm(x: Any, g: Any, b: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(var + 1e-5) * g + b

    def heads(t: Any) -> Any:
        return jnp.swapaxes(t.reshape(*t.shape[:-1], 2, -1), -3, -2)

    def block(w: Any, x: Any) -> Any:
        q, k, v = (heads(t) for t in jnp.split(norm(x, w[0], w[1]) @ w[2].T, 3, -1))
        a = jax.nn.softmax(q @ jnp.swapaxes(k, -2, -1) * q.shape[-1] ** -0.5, -1) @ v
        a = jnp.swapaxes(a, -3, -2)
        x = x + a.reshape(*a.shape[:-2], -1) @ w[3].T
        h = norm(x, w[4], w[5])
        return x + jax.nn.gelu(h @ w[6].T, approximate=False) @ w[7].T

    return block


def block_arrays(dim: int, *more: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Weights of a block, then more arrays."""

    def make(rng: np.random.Generator) -> Arrays:
        n = rng.standard_normal
        w = (n(dim) * 0.1 + 1, n(dim), n((3 * dim, dim)) / dim**0.5, n((dim, dim)) / dim**0.5)
        w += (n(dim) * 0.1 + 1, n(dim), n((2 * dim, dim)) / dim**0.5, n((dim, 2 * dim)) / (2 * dim) ** 0.5)
        return (w, *[n(shape) for shape in more])

    return make


def torch_resnet(w: Any, x: Any) -> Any:
    """A residual block: two convolutions with group norm and relu."""
    h = torch.relu(F.group_norm(F.conv2d(x, w[0], padding=1), 4, w[1], w[2]))
    return torch.relu(x + F.group_norm(F.conv2d(h, w[3], padding=1), 4, w[4], w[5]))


def jax_resnet(jax: Any, jnp: Any) -> Callable[[Any, Any], Any]:
    """The same in JAX."""

    def norm(x: Any, g: Any, b: Any) -> Any:
        y = x.reshape(x.shape[0], 4, -1)
        mean = y.mean(-1, keepdims=True)
        var = ((y - mean) ** 2).mean(-1, keepdims=True)
        y = ((y - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
        return y * g[:, None, None] + b[:, None, None]

    def conv(x: Any, k: Any) -> Any:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")

    def block(w: Any, x: Any) -> Any:
        h = jax.nn.relu(norm(conv(x, w[0]), w[1], w[2]))
        return jax.nn.relu(x + norm(conv(h, w[3]), w[4], w[5]))

    return block


def resnet_arrays(channels: int, *more: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Weights of a residual block, then more arrays."""

    def make(rng: np.random.Generator) -> Arrays:
        n = rng.standard_normal
        w: Arrays = ()
        for _ in range(2):
            w += (n((channels, channels, 3, 3)) / (9 * channels) ** 0.5, n(channels) * 0.1 + 1, n(channels))
        return (w, *[n(shape) for shape in more])

    return make


def both(build: Callable[[Any, Any], Callable[..., Any]]) -> dict[str, Any]:
    """The two sides of a workload whose code is the same in both, given the transforms and the array module."""
    return {"torch": lambda T: build(T, torch), "jax": lambda jax, jnp: build(jax, jnp)}


def with_network(net: Any, jax_net: Any, build: Callable[[Any, Any], Callable[..., Any]]) -> dict[str, Any]:
    """The two sides of a workload over a network written twice."""
    return {"torch": lambda T: build(Fitted(T), net), "jax": lambda jax, jnp: build(jax, jax_net(jax, jnp))}


class Fitted:
    """A library with torch.func's names under those of JAX."""

    def __init__(self, T: Any) -> None:
        """Keep the library."""
        self.T = T

    def __getattr__(self, name: str) -> Any:
        return getattr(self.T, name)


def vmapped(T: Any, f: Any, dims: Any) -> Any:
    """vmap, whose second argument has another name in JAX and the same place."""
    return T.vmap(f, dims)


def jvp_of(T: Any, f: Any) -> Callable[..., Any]:
    """Value and directional derivative."""
    return lambda x, t: T.jvp(f, (x,), (t,))


def laplacian(T: Any, m: Any) -> Callable[..., Any]:
    """Σ ∂²u/∂x² of a small network at 64 points, by Hessian-vector products with the axes."""

    def at(weights: Any, x: Any, axes: Any) -> Any:
        gradient = T.grad(lambda x: mlp(weights, x, m).sum())
        return T.vmap(lambda v: (T.jvp(gradient, (x,), (v,))[1] * v).sum())(axes).sum()

    return lambda weights, xs, axes: T.vmap(at, (None, 0, None))(weights, xs, axes)


def gauss_newton(T: Any, m: Any) -> Callable[..., Any]:
    """Jᵀ J v of a perceptron's outputs by its input."""

    def product(weights: Any, x: Any, v: Any) -> Any:
        def f(x: Any) -> Any:
            return mlp(weights, x, m)

        moved = T.jvp(f, (x,), (v,))[1]
        return T.vjp(f, x)[1](moved)[0]

    return product


def loss_of(m: Any) -> Callable[..., Any]:
    """Mean square error of a perceptron."""
    return lambda weights, x, y: ((mlp(weights, x, m) - y) ** 2).mean()


def square_loss(net: Any) -> Callable[..., Any]:
    """Mean square of a network's output."""
    return lambda w, x: (net(w, x) ** 2).mean()


WORKS = (
    Work(
        "three outputs, jvp",
        "small",
        "float32",
        normal((2,), (2,)),
        **both(lambda T, m: jvp_of(T, lambda x: three(x, m))),
    ),
    Work(
        "three outputs, jacfwd", "small", "float32", normal((2,)), **both(lambda T, m: T.jacfwd(lambda x: three(x, m)))
    ),
    Work(
        "three outputs, jacrev", "small", "float64", normal((2,)), **both(lambda T, m: T.jacrev(lambda x: three(x, m)))
    ),
    Work(
        "sin(x)·x of 50, grad",
        "small",
        "float32",
        normal((50,)),
        **both(lambda T, m: T.grad(lambda x: sin_times_x(x, m))),
    ),
    Work(
        "sin(x)·x of 3, jvp(grad)",
        "small",
        "float32",
        normal((3,), (3,)),
        **both(lambda T, m: jvp_of(T, T.grad(lambda x: sin_times_x(x, m)))),
    ),
    Work(
        "sin(x)·x of 10, hessian",
        "small",
        "float32",
        normal((10,)),
        **both(lambda T, m: T.hessian(lambda x: sin_times_x(x, m))),
    ),
    Work(
        "dot, vmap of 64 pairs",
        "small",
        "float32",
        normal((64, 50), (64, 50)),
        **both(lambda T, m: T.vmap(lambda a, b: m.dot(a, b))),
    ),
    Work(
        "sin(x)·x, vmap(grad) 64 by 50",
        "small",
        "float32",
        normal((64, 50)),
        **both(lambda T, m: T.vmap(T.grad(lambda x: sin_times_x(x, m)))),
    ),
    Work(
        "rosenbrock of 10, hessian",
        "small",
        "float64",
        normal((10,)),
        **both(lambda T, m: T.hessian(lambda x: rosenbrock(x, m))),
    ),
    Work(
        "rosenbrock of 1000, jvp(grad)",
        "small",
        "float64",
        normal((1000,), (1000,)),
        **both(lambda T, m: jvp_of(T, T.grad(lambda x: rosenbrock(x, m)))),
    ),
    Work(
        "tile 10 to 2000, jacfwd",
        "small",
        "float32",
        normal((10,)),
        **both(lambda T, m: T.jacfwd(lambda x: m.tile(m.sin(x), (200,)))),
    ),
    Work(
        "fold 2000 to 10, jacrev",
        "small",
        "float32",
        normal((2000,)),
        **both(lambda T, m: T.jacrev(lambda x: m.sin(x).reshape(-1, 200).sum(1))),
    ),
    Work(
        "50 to 2000, vmap(jvp) 16",
        "small",
        "float32",
        normal((2000, 50), (50,), (16, 50), scale=0.2),
        **both(lambda T, m: lambda w, x, v: T.vmap(lambda t: T.jvp(lambda x: m.tanh(w @ x), (x,), (t,))[1])(v)),
    ),
    Work(
        "quadratic form of 30, grad and value",
        "small",
        "float64",
        normal((30, 30), (30,)),
        **both(lambda T, m: lambda a, x: (T.grad(lambda x: (x * (a @ x)).sum())(x), (x * (a @ x)).sum())),
    ),
    Work(
        "euler 20 steps, jacfwd",
        "chain",
        "float64",
        lambda rng: (rng.uniform(0.5, 1, 4),),
        **both(lambda T, m: T.jacfwd(lambda p: euler(p, m))),
    ),
    Work(
        "100 sines of 16, grad", "chain", "float32", normal((16,)), **both(lambda T, m: T.grad(lambda x: sines(x, m)))
    ),
    Work(
        "100 sines of 16, jvp(grad)",
        "chain",
        "float32",
        normal((16,), (16,)),
        **both(lambda T, m: jvp_of(T, T.grad(lambda x: sines(x, m)))),
    ),
    Work(
        "mlp 32-64-64-1, laplacian of 64 points",
        "model",
        "float32",
        lambda rng: (*layers([4, 64, 64, 1], (64, 4))(rng), np.eye(4)),
        **both(laplacian),
    ),
    Work(
        "mlp, vmap(grad) of 64 samples",
        "model",
        "float32",
        layers([32, 64, 64, 10], (64, 32), (64, 10)),
        **both(lambda T, m: T.vmap(T.grad(loss_of(m)), (None, 0, 0))),
    ),
    Work(
        "mlp 128 wide, gauss-newton product",
        "model",
        "float32",
        layers([128, 128, 128], (128,), (128,)),
        **both(gauss_newton),
    ),
    Work(
        "mlp 16 inputs, hessian",
        "model",
        "float64",
        layers([16, 32, 32, 1], (16,)),
        **both(lambda T, m: lambda w, x: T.hessian(lambda x: mlp(w, x, m).sum())(x)),
    ),
    Work(
        "resnet block, grad",
        "model",
        "float32",
        resnet_arrays(8, (4, 8, 12, 12)),
        **with_network(torch_resnet, jax_resnet, lambda T, net: T.grad(square_loss(net))),
    ),
    Work(
        "transformer block, grad by weights",
        "model",
        "float32",
        block_arrays(32, (8, 16, 32)),
        **with_network(torch_block, jax_block, lambda T, net: T.grad(square_loss(net))),
    ),
    Work(
        "transformer block, jvp by input",
        "model",
        "float32",
        block_arrays(32, (8, 16, 32), (8, 16, 32)),
        **with_network(torch_block, jax_block, lambda T, net: lambda w, x, t: T.jvp(lambda x: net(w, x), (x,), (t,))),
    ),
)
