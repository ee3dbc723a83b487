"""Recurrent layers, written out step by step: the fused kernels hide their gates and have no second derivative.

    LSTM  c' = σ(f) c + σ(i) tanh(g),  h' = σ(o) tanh(c')
    GRU   h' = (1 − z) n + z h,  n = tanh(x_n + r h_n)
The products of all inputs with the input weights are one matrix product; only the recurrent one runs in the loop.
Under `vmap` with shared weights the lanes join the batch of the fused kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.level import THREAD
from ..core.traced import Traced
from .derived import pulled_back
from .kinds import Special
from .lanes import in_front, merged_at, parted_at, some_lanes
from .table import row

Tensor = torch.Tensor
linear = torch.nn.functional.linear
State = tuple[Tensor, ...]


def lstm_step(gates: Tensor, recurrent: Tensor, state: State) -> State:
    """(h, c) after one step."""
    i, f, g, o = (gates + recurrent).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_step(gates: Tensor, recurrent: Tensor, state: State) -> State:
    """(h,) after one step; the reset gate acts behind the recurrent product."""
    xr, xz, xn = gates.chunk(3, -1)
    hr, hz, hn = recurrent.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (n + z * (state[0] - n),)


def tanh_step(gates: Tensor, recurrent: Tensor, state: State) -> State:
    """(h,) of a simple cell."""
    del state
    return (torch.tanh(gates + recurrent),)


def relu_step(gates: Tensor, recurrent: Tensor, state: State) -> State:
    """(h,) of a simple cell."""
    del state
    return (torch.relu(gates + recurrent),)


STEPS: dict[str, Callable[..., State]] = {
    "lstm": lstm_step,
    "gru": gru_step,
    "rnn_tanh": tanh_step,
    "rnn_relu": relu_step,
}


def direction(
    cell: str, x: Tensor, weights: Sequence[Tensor], state: State, reverse: bool, sizes: Sequence[int] | None = None
) -> tuple[Tensor, State]:
    """A layer in one direction over `[time, batch, features]`, or over packed rows with a batch size for each step."""
    w_x, w_h = weights[:2]
    b_x, b_h = (weights[2], weights[3]) if len(weights) > 3 else (None, None)
    step = STEPS[cell]
    parts = linear(x, w_x, b_x)
    gates = list(parts.split(list(sizes), 0)) if sizes is not None else list(parts.unbind(0))
    outs: list[Tensor] = []
    for t in reversed(range(len(gates))) if reverse else range(len(gates)):
        n = gates[t].shape[0]
        active = state if sizes is None else tuple(s[:n] for s in state)
        new = step(gates[t], linear(active[0], w_h, b_h), active)
        outs.append(new[0])
        if sizes is not None:
            new = tuple(torch.cat([a, s[n:]]) if n < s.shape[0] else a for a, s in zip(new, state, strict=True))
        state = new
    outs = outs[::-1] if reverse else outs
    if not outs:
        return x.new_zeros(*x.shape[:-1], w_h.shape[1]), state
    return torch.cat(outs) if sizes is not None else torch.stack(outs), state


class Projections(Exception):
    """A network whose states are projected: torch has no fused kernel for it, so there is nothing to write out."""


def layers(
    cell: str,
    x: Tensor,
    states: State,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    sizes: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    """All layers of a recurrent network: the output and the last states, each stacked over layers and directions."""
    ways = 2 if bidirectional else 1
    each = len(params) // (num_layers * ways)  # two weights, two biases, a projection
    per = 4 if has_biases else 2
    if each != per:
        raise Projections
    finals: list[State] = []
    for layer in range(num_layers):
        outs = []
        for way in range(ways):
            k = layer * ways + way
            state = tuple(s[k] for s in states)
            out, last = direction(cell, x, params[k * per : (k + 1) * per], state, way == 1, sizes)
            outs.append(out)
            finals.append(last)
        x = torch.cat(outs, -1) if ways == 2 else outs[0]
        if dropout and train and layer < num_layers - 1:
            x = torch.nn.functional.dropout(x, dropout, training=True)
    return x, *(torch.stack([f[j] for f in finals]) for j in range(len(states)))


def numbers(sizes: Tensor) -> list[int]:
    """Batch sizes as Python numbers, also of a traced value."""
    THREAD.unrepeatable += 1
    return list(sizes._level.inspect(sizes) if isinstance(sizes, Traced) else sizes.tolist())


def recurrent(cell: str) -> Callable[..., tuple[Tensor, ...]]:
    """`torch.lstm` and its kin in elementary operators, for padded and for packed inputs."""

    def function(*args: Any) -> tuple[Tensor, ...]:
        packed = isinstance(args[1], torch.Tensor) and not args[1].is_floating_point()
        if packed:
            x, sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional = args
            states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
            return layers(
                cell, x, states, params, has_biases, num_layers, dropout, train, bidirectional, numbers(sizes)
            )
        x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        x = x.transpose(0, 1) if batch_first else x
        out, *last = layers(cell, x, states, params, has_biases, num_layers, dropout, train, bidirectional)
        return out.transpose(0, 1) if batch_first else out, *last

    return function


def pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """The rows of all sequences (longest first), step by step, and how many each step has."""
    x = x.transpose(0, 1) if batch_first else x
    spans = [int(n) for n in numbers(lengths)]
    sizes = [sum(n > t for n in spans) for t in range(max(spans, default=0))]
    if any(a < b for a, b in itertools.pairwise(spans)):
        msg = "`lengths` must be sorted in decreasing order when `enforce_sorted` is True"
        raise RuntimeError(msg)
    return torch.cat([x[t, :n] for t, n in enumerate(sizes)]), torch.tensor(sizes)


def pad_packed(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Packed rows as `[time, batch, …]` with padding, and the length of each sequence."""
    sizes = numbers(batch_sizes)
    wide = max(sizes, default=0)
    steps = []
    for rows in data.split(sizes, 0):
        short = wide - rows.shape[0]
        pad = torch.full((short, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
        steps.append(torch.cat([rows, pad]) if short else rows)
    empty = torch.full((wide, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    out = torch.stack(steps + [empty] * max(total_length - len(steps), 0))
    lengths = torch.tensor([sum(n > k for n in sizes) for k in range(wide)])
    return out.transpose(0, 1) if batch_first else out, lengths


# -- the fused layer on CPU ------------------------------------------------------------------------------------------


def fused_layer(
    x: Tensor,
    w0: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    hx: Tensor,
    cx: Tensor,
    reverse: bool,
    batch_sizes: Any,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One LSTM layer in one direction; the last result is a workspace of the kernel that nothing here reads."""
    del batch_sizes, mode, hidden_size, num_layers, bidirectional, batch_first, train
    out, h, c = one_direction(x, [w0, w1, w2, w3] if has_biases else [w0, w1], hx, cx, reverse)
    return out, h, c, x.new_zeros(0)


def one_direction(
    x: Tensor, weights: Sequence[Tensor], hx: Tensor, cx: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and last states, these in the sizes of the first."""
    rows = (x.shape[1], -1)
    out, (h, c) = direction("lstm", x, weights, (hx.reshape(rows), cx.reshape(rows)), reverse)
    return out, h.reshape(hx.shape), c.reshape(cx.shape)


def fused_layer_backward(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    w4: Tensor,
    hx: Tensor,
    cx: Tensor,
    output: Tensor,
    hy: Tensor,
    cy: Tensor,
    grad_output: Any,
    grad_hy: Any,
    grad_cy: Any,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """The reverse mode of the written-out layer."""
    del output, hy, cy, mode, hidden_size, num_layers, rest
    weights = [w1, w2, w3, w4] if has_biases else [w1, w2]

    def function(*values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return one_direction(values[0], values[3:], values[1], values[2], reverse)

    by_x, by_h, by_c, *by_w = pulled_back(function, [x, hx, cx, *weights], [grad_output, grad_hy, grad_cy])
    by_w += [torch.zeros_like(w) for w in (w3, w4)] if not has_biases else []
    return by_x, *by_w, by_h, by_c


@some_lanes
def batch_fused_layer(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Any:
    """The lanes join the batch where the weights are shared; a network for each lane runs step by step."""
    del kwargs
    size = level.size
    x, hx, cx = (in_front(args[k], mapped[k], size) for k in (0, 5, 6))
    if any(mapped[1:5]):
        return lanes_of_layers(x, [in_front(args[k], mapped[k], size) for k in range(1, 5)], hx, cx, *args[7:])
    behind = hx.dim() - 3  # states are [batch, features] or [1, batch, features]
    # The kernel reads these as if they were contiguous, whatever their strides.
    x, hx, cx = merged_at(x, 1).contiguous(), merged_at(hx, behind).contiguous(), merged_at(cx, behind).contiguous()
    out, h, c, _ = op(x, *args[1:5], hx, cx, *args[7:])
    return parted_at(out, 1, size), parted_at(h, behind, size), parted_at(c, behind, size), x.new_zeros(size, 0)


def lanes_of_layers(x: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor, reverse: bool, *rest: Any) -> Any:
    """A layer for each lane, `[lanes, …]` throughout: the products are batched ones."""
    has_biases = rest[4]
    n = x.shape[2]
    h, c = (s.reshape(s.shape[0], n, -1) for s in (hx, cx))
    w_x, w_h, *biases = weights
    bias = (biases[0] + biases[1]).unsqueeze(1) if has_biases else 0
    gates = (x.flatten(1, 2) @ w_x.transpose(1, 2) + bias).reshape(*x.shape[:3], -1)
    outs: list[Any] = [None] * x.shape[1]
    for t in reversed(range(len(outs))) if reverse else range(len(outs)):
        h, c = lstm_step(gates[:, t], h @ w_h.transpose(1, 2), (h, c))
        outs[t] = h
    return torch.stack(outs, 1), h.reshape(hx.shape), c.reshape(cx.shape), x.new_zeros(x.shape[0], 0)


row("mkldnn_rnn_layer", Special(), batch=batch_fused_layer, formula=fused_layer)
row("mkldnn_rnn_layer_backward", Special(), formula=fused_layer_backward)
