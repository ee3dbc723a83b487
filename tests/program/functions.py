"""Functions whose programs are printed: their lines appear in the snapshots."""

import torch
import torch.nn.functional as F

WEIGHT = torch.linspace(-1, 1, 12).reshape(4, 3)


def energy(x):
    y = torch.sin(x) * x
    return y.sum()


def scaled(x):
    s = x.sum()
    y = torch.tanh(x) * s
    return y  # noqa: RET504


def network(x):
    h = torch.tanh(x @ WEIGHT.t())
    r = torch.relu(h)
    return r.square().mean()


def two_inputs(weights, x):
    hidden = F.linear(x, weights["w"], weights["b"])
    out = F.softmax(hidden, -1)
    return out.log().sum()


def branches(x):
    if x.sum() > 0:
        doubled = x * 2
        return doubled.sin()
    return x - 1


def buffer(x):
    out = torch.zeros(3)
    out[0] = x[1]
    out += x
    return out


def steps(x):
    for _ in range(2):
        x = x + 0.1 * torch.cos(x)
    return x
