"""Small neural networks: here the operators are large enough for their own cost to show.

Each network appears twice, as people differentiate it twice. By its input, with captured weights: sensitivities,
Jacobians, Hessians. By its weights, of a loss: gradients, per-sample gradients, Hessian-vector products.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .problem import Inputs, Problem, Size, Subject

Weights = dict[str, torch.Tensor]
Network = Callable[[Weights, torch.Tensor], torch.Tensor]

BY_INPUT = ("vmap", "jvp", "vmap(jvp)", "jacfwd", "jacrev", "hessian", "linearize", "linearized push")
BY_WEIGHTS = ("jvp", "grad", "vmap(grad)", "vmap(jvp)", "jvp(grad)", "linearize", "linearized push")


def by_input(
    network: Network, weights: Weights, inputs: Inputs, minibatch: tuple[int, ...], example: tuple[int, ...], lanes: int
) -> Problem:
    """The network as a function of its input; the scalar is the mean square of its output."""

    def func(x: torch.Tensor) -> torch.Tensor:
        return network(weights, x)

    def scalar(x: torch.Tensor) -> torch.Tensor:
        return func(x).square().mean()

    return Problem(
        func=func,
        scalar=scalar,
        args=(inputs.normal(*minibatch),),
        tangents=(inputs.normal(*minibatch),),
        directions=(inputs.normal(lanes, *minibatch),),
        batch=(inputs.normal(lanes, *minibatch[1:]),),
        example=(inputs.normal(*example),),
    )


def by_weights(
    loss: Callable[..., torch.Tensor],
    weights: Weights,
    inputs: Inputs,
    data: tuple[torch.Tensor, torch.Tensor],
    lanes: int,
) -> Problem:
    """The loss as a function of the weights; ``vmap`` maps over the examples, so vmap(grad) is per-sample gradients."""
    return Problem(
        func=loss,
        scalar=loss,
        args=(weights, *data),
        tangents=(inputs.like(weights),),
        directions=(inputs.like(weights, lanes),),
        batch=(weights, *data),
        in_dims=(None, 0, 0),
    )


def layer(inputs: Inputs, fan_in: int, *shape: int) -> torch.Tensor:
    """A weight of the usual scale."""
    return inputs.normal(*shape, scale=fan_in**-0.5)


# A multilayer perceptron: three linear layers, tanh between.


def mlp(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """Three linear layers with tanh between them."""
    x = torch.tanh(F.linear(x, weights["w1"], weights["b1"]))
    x = torch.tanh(F.linear(x, weights["w2"], weights["b2"]))
    return F.linear(x, weights["w3"], weights["b3"])


def mlp_weights(inputs: Inputs, width: int) -> Weights:
    """All three layers ``width`` wide."""
    weights = {}
    for i in (1, 2, 3):
        weights[f"w{i}"] = layer(inputs, width, width, width)
        weights[f"b{i}"] = inputs.normal(width)
    return weights


MLP_WIDTH: dict[Size, int] = {"tiny": 3, "time": 256, "memory": 256}
MLP_BATCH: dict[Size, int] = {"tiny": 4, "time": 32, "memory": 2048}


def mlp_by_input(size: Size) -> Problem:
    """The perceptron by its input."""
    inputs, width, rows = Inputs(size), MLP_WIDTH[size], MLP_BATCH[size]
    lanes = 4 if size == "memory" else rows
    return by_input(mlp, mlp_weights(inputs, width), inputs, (rows, width), (width,), lanes)


def mlp_by_weights(size: Size) -> Problem:
    """The perceptron's cross entropy by its weights."""
    inputs, width = Inputs(size), MLP_WIDTH[size]
    # Per-sample gradients of a large minibatch would fill the memory with weights.
    rows = min(MLP_BATCH[size], 64)

    def loss(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(mlp(weights, x), y)

    data = inputs.normal(rows, width), inputs.classes(width, rows)
    return by_weights(loss, mlp_weights(inputs, width), inputs, data, lanes=4)


# A small convolutional net: convolution, relu and pooling twice, then one linear layer.


def conv_net(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """Two convolutions with relu and max pooling, one linear layer; takes one image or several."""
    x = F.max_pool2d(torch.relu(F.conv2d(x, weights["k1"], weights["c1"], padding=1)), 2)
    x = F.max_pool2d(torch.relu(F.conv2d(x, weights["k2"], weights["c2"], padding=1)), 2)
    return F.linear(x.flatten(-3), weights["w"], weights["b"])


def conv_weights(inputs: Inputs, side: int, channels: int) -> Weights:
    """Weights for square images of ``side`` pixels: channels double once, ten classes."""
    flat = 2 * channels * (side // 4) ** 2
    return {
        "k1": layer(inputs, 9, channels, 1, 3, 3),
        "c1": inputs.normal(channels),
        "k2": layer(inputs, 9 * channels, 2 * channels, channels, 3, 3),
        "c2": inputs.normal(2 * channels),
        "w": layer(inputs, flat, 10, flat),
        "b": inputs.normal(10),
    }


CONV_SHAPE: dict[Size, tuple[int, int, int]] = {"tiny": (3, 4, 2), "time": (8, 12, 8), "memory": (64, 28, 8)}
"""Minibatch, side of an image, channels of the first convolution."""


def conv_by_input(size: Size) -> Problem:
    """The convolutional net by its image."""
    inputs = Inputs(size)
    rows, side, channels = CONV_SHAPE[size]
    weights = conv_weights(inputs, side, channels)
    return by_input(conv_net, weights, inputs, (rows, 1, side, side), (1, side, side), min(rows, 8))


def conv_by_weights(size: Size) -> Problem:
    """The convolutional net's cross entropy by its weights."""
    inputs = Inputs(size)
    rows, side, channels = CONV_SHAPE[size]

    def loss(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(conv_net(weights, x), y)

    data = inputs.normal(rows, 1, side, side), inputs.classes(10, rows)
    return by_weights(loss, conv_weights(inputs, side, channels), inputs, data, lanes=4)


# A transformer block: attention and a feed-forward part, each with layer norm before and a residual around.

HEADS = 2


def heads_of(x: torch.Tensor) -> torch.Tensor:
    """Split the last dimension into heads and put them before the sequence."""
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def written_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention written out as two products and a softmax."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v


def block_with(attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> Network:
    """A pre-norm transformer block for sequences ``[..., S, D]`` with this attention."""

    def block(weights: Weights, x: torch.Tensor) -> torch.Tensor:
        dim = x.shape[-1:]
        h = F.layer_norm(x, dim, weights["g1"], weights["h1"])
        q, k, v = F.linear(h, weights["qkv"]).chunk(3, -1)
        mixed = attention(heads_of(q), heads_of(k), heads_of(v)).transpose(-3, -2).flatten(-2)
        x = x + F.linear(mixed, weights["out"])
        h = F.layer_norm(x, dim, weights["g2"], weights["h2"])
        return x + F.linear(F.gelu(F.linear(h, weights["up"])), weights["down"])

    return block


def block_weights(inputs: Inputs, dim: int) -> Weights:
    """Weights of a block ``dim`` wide, its feed-forward part twice as wide."""
    return {
        "g1": inputs.normal(dim) * 0.1 + 1,
        "h1": inputs.normal(dim),
        "qkv": layer(inputs, dim, 3 * dim, dim),
        "out": layer(inputs, dim, dim, dim),
        "g2": inputs.normal(dim) * 0.1 + 1,
        "h2": inputs.normal(dim),
        "up": layer(inputs, dim, 2 * dim, dim),
        "down": layer(inputs, 2 * dim, dim, 2 * dim),
    }


BLOCK_SHAPE: dict[Size, tuple[int, int, int]] = {"tiny": (3, 3, 4), "time": (8, 16, 32), "memory": (16, 128, 64)}
"""Minibatch, length of a sequence, width."""

BLOCK = block_with(written_attention)
FUSED_BLOCK = block_with(F.scaled_dot_product_attention)


def block_by_input(network: Network) -> Callable[[Size], Problem]:
    """A transformer block by its input sequence."""

    def make(size: Size) -> Problem:
        inputs = Inputs(size)
        rows, length, dim = BLOCK_SHAPE[size]
        weights = block_weights(inputs, dim)
        # Jacobians have (4 · dim)² entries at the least: a short sequence keeps them of moderate size.
        return by_input(network, weights, inputs, (rows, length, dim), (min(length, 4), dim), min(rows, 8))

    return make


def block_by_weights(network: Network) -> Callable[[Size], Problem]:
    """A transformer block's mean square error by its weights."""

    def make(size: Size) -> Problem:
        inputs = Inputs(size)
        rows, length, dim = BLOCK_SHAPE[size]

        def loss(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (network(weights, x) - y).square().mean()

        data = inputs.normal(rows, length, dim), inputs.normal(rows, length, dim)
        return by_weights(loss, block_weights(inputs, dim), inputs, data, lanes=4)

    return make


def unfused() -> AbstractContextManager[None]:
    """What torch.func needs for forward mode of fused attention: the kernel turned off, its parts used instead."""
    return sdpa_kernel(SDPBackend.MATH)


SUBJECTS = (
    Subject("mlp by input", "model", 14, mlp_by_input, BY_INPUT),
    Subject("mlp by weights", "model", 10, mlp_by_weights, BY_WEIGHTS),
    Subject("conv net by input", "model", 15, conv_by_input, BY_INPUT),
    Subject("conv net by weights", "model", 11, conv_by_weights, BY_WEIGHTS),
    Subject("transformer by input", "model", 38, block_by_input(BLOCK), BY_INPUT),
    Subject("transformer by weights", "model", 52, block_by_weights(BLOCK), BY_WEIGHTS),
    Subject("fused attention by input", "model", 39, block_by_input(FUSED_BLOCK), BY_INPUT[:3], unfused),
    Subject("fused attention by weights", "model", 34, block_by_weights(FUSED_BLOCK), BY_WEIGHTS[:3], unfused),
)
