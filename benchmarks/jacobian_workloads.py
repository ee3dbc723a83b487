"""Functions whose Jacobians are measured: of many shapes, with and without a pattern, narrow inside, large."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """A function of one tensor: its name, the function, its input; `sparse`: whether a pattern may be used."""

    name: str
    func: Function
    x: Tensor
    sparse: bool = False


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers, always the same; divided by the root of the last size, as weights are."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn / shape[-1] ** 0.5 if len(shape) > 1 else drawn


BLOCK, KERNEL = normal(20, 20), normal(4, 1, 3, 3)


def layer(outputs: int, inputs: int, seed: int = 0) -> Function:
    """tanh(W x)."""
    weight = normal(outputs, inputs, seed=seed)
    return lambda x: torch.tanh(weight @ x)


def layers(*sizes: int) -> Function:
    """Layers of these sizes, one after the other."""
    parts = [layer(m, n, seed) for seed, (n, m) in enumerate(itertools.pairwise(sizes))]

    def func(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x)
        return x

    return func


def banded(x: Tensor) -> Tensor:
    """Three diagonals."""
    return x[2:] * x[1:-1] - x[:-2] ** 2


def arrow(x: Tensor) -> Tensor:
    """A dense first row, a dense first column, and the diagonal."""
    return torch.cat([(x**2).sum()[None], x[1:] * x[0] + x[1:] ** 2])


def blocks(x: Tensor) -> Tensor:
    """20 × 20 blocks on the diagonal."""
    return torch.tanh(x.reshape(-1, 20) @ BLOCK).reshape(-1)


def stencil(x: Tensor) -> Tensor:
    """A diffusing quantity that decays, on a torus of 40 × 40 cells."""
    a = x.reshape(40, 40)
    return (a.roll(1, 0) + a.roll(-1, 0) + a.roll(1, 1) + a.roll(-1, 1) - 4 * a - a**3).reshape(-1)


def image(x: Tensor) -> Tensor:
    """A convolution of 16 × 16 pixels, and pooling."""
    return F.avg_pool2d(F.conv2d(x.reshape(1, 1, 16, 16), KERNEL, padding=1).relu(), 4).reshape(-1)


SHAPES = (
    Shape("10 to 2000", lambda x: x.sin().repeat(200), normal(10)),
    Shape("2000 to 10", lambda x: x.sin().view(-1, 200).sum(1), normal(2000)),
    Shape("50 to 2000, a layer", layer(2000, 50), normal(50)),
    Shape("2000 to 50, a layer", layer(50, 2000), normal(2000)),
    Shape("300 to 300, three layers", layers(300, 300, 300, 300), normal(300)),
    Shape("500 to 1", lambda x: (x.sin() * x).sum()[None], normal(500)),
    Shape("2000 to 10 to 2000", layers(2000, 10, 2000), normal(2000)),
    Shape("16 × 16 pixels to 64", image, normal(256)),
    Shape("banded, 2000", banded, normal(2000), sparse=True),
    Shape("arrow, 1000", arrow, normal(1000), sparse=True),
    Shape("blocks of 20, 1000", blocks, normal(1000), sparse=True),
    Shape("5-point stencil, 1600", stencil, normal(1600), sparse=True),
)

def smoothed(u: Tensor, steps: int) -> Tensor:
    """A field on a ring that diffuses and saturates."""
    for _ in range(steps):
        u = u + 0.1 * (u.roll(1) - 2 * u + u.roll(-1)) + 0.05 * (u - u**3)
    return u


def measured_and_grown(x: Tensor) -> Tensor:
    """A field of 2000 cells, smoothed, seen by 10 detectors; what they see makes another field, smoothed too."""
    return smoothed(torch.tanh(SOURCES @ torch.tanh(DETECTORS @ smoothed(x, 20))), 20)


DETECTORS, SOURCES = normal(10, 2000, seed=1), normal(2000, 10, seed=2)
BARE = layers(2000, 10, 2000)
NARROW = (
    Shape("one matrix each: 2000 to 10 to 2000", BARE, normal(2000)),
    Shape(
        "with element-wise ends",
        lambda x: (BARE(x.cos().exp()) * 2).sin() + 1,
        normal(2000),
    ),
    Shape("autoencoder: 2000 to 500 to 10 to 500 to 2000", layers(2000, 500, 10, 500, 2000), normal(2000)),
    Shape("a field, 10 detectors, a field: 20 steps each", measured_and_grown, normal(2000)),
    Shape("wide autoencoder: 2000 to 2000 to 10 to 2000 to 2000", layers(2000, 2000, 10, 2000, 2000), normal(2000)),
)

PEAKS: tuple[tuple[Shape, dict[str, Any]], ...] = (
    (Shape("dense layer", layer(2000, 300), normal(300)), {}),
    (Shape("dense layer in chunks", layer(2000, 300), normal(300)), {"mode": "forward", "chunk_size": 20}),
    (Shape("three layers", layers(64, 256, 256, 32), normal(64)), {}),
    (Shape("tile", lambda x: x.repeat(2000).sin(), normal(10)), {}),
    (Shape("sums", lambda x: (x.reshape(10, 2000) ** 2).sum(1), normal(20000)), {}),
    (Shape("matrix product", lambda x: (x.reshape(20, 20) @ x.reshape(20, 20)).exp(), normal(400)), {}),
    (Shape("convolution", image, normal(256)), {"mode": "forward"}),
    (Shape("5-point stencil, sparse", stencil, normal(1600)), {"sparsity": "global"}),
)


def patterns() -> dict[str, tuple[np.ndarray, int]]:
    """Patterns with a known number of colours for their columns."""
    tri = lambda n, below, above: np.tri(n, k=above) - np.tri(n, k=-below - 1)
    return {
        "diagonal, 200": (np.eye(200), 1),
        "tridiagonal, 200": (tri(200, 1, 1), 3),
        "bands 3 below, 2 above, 200": (tri(200, 3, 2), 6),
        "blocks of 5, 200": (np.kron(np.eye(40), np.ones((5, 5))), 5),
        "dense row, 200": (np.vstack([np.ones(200), np.eye(200)]), 200),
        "dense column, 200": (np.hstack([np.ones((200, 1)), np.eye(200)]), 2),
    }
