"""Functions with one planted fault each; the line at fault ends in `# fault`."""

from __future__ import annotations

import inspect
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

FAULTS: dict = {}


def fault(kinds, *inputs, operator=None, wrong=True):
    """Register a function (or a factory of a module, marked by its return annotation) with what the report must say."""

    def keep(made):
        FAULTS[made.__name__] = (made, inputs, set(kinds.split()), operator, wrong)
        return made

    return keep


def line_of(made) -> set[str]:
    """The lines marked in the source of a function or class."""
    lines, start = inspect.getsourcelines(made)
    file = inspect.getsourcefile(made).rsplit("/", 1)[-1]
    return {f"{file}:{start + k}" for k, text in enumerate(lines) if "# fault" in text}


def real(*sizes, seed=0, scale=1.0):
    return scale * torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- lost derivatives -------------------------------------------------------------------------------------------------


@fault("lost-derivative", real(2, 5))
def detached_branch(x):
    a = torch.tanh(x)
    b = (x * 2).detach()  # fault
    return a + b**2


class DetachedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4).double() for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 2
        weights = torch.softmax(scores.detach(), -1)  # fault
        return weights @ self.v(x)


@fault("lost-derivative", real(2, 3, 4))
def detached_attention() -> nn.Module:
    return DetachedAttention()


@fault("lost-derivative", real(6))
def data_branch(x):
    scale = x.data.norm()  # fault
    return x / scale


@fault("lost-derivative", real(3, 3))
def no_grad_block(x):
    with torch.no_grad():
        gate = torch.sigmoid(x)  # fault
    return gate * x


@fault("lost-derivative", real(5))
def item_scale(x):
    total = (x**2).sum().item()  # fault
    return x / total


@fault("lost-derivative", real(4))
def float_in_loop(x):
    y = x
    for _ in range(3):
        y = y * 0.9 + 0.1 * float(y[0])  # fault
    return y


@fault("lost-derivative", real(5))
def through_numpy(x):
    table = np.sin(x.detach().numpy())  # fault
    return torch.from_numpy(table) * x


@fault("lost-derivative", real(4))
def through_list(x):
    head = x.tolist()[0]  # fault
    return x * head


@fault("lost-derivative", real(4))
def rewrapped(x):
    y = x.exp()
    z = torch.tensor(y)  # fault
    return z + x


@fault("lost-derivative", real(5, 3))
def truncated_recurrence(x):
    h = torch.zeros(3, dtype=x.dtype)
    for k in range(5):
        h = torch.tanh(x[k] + 0.5 * h)
        if k == 2:
            h = h.detach()  # fault
    return h


@fault("lost-derivative", real(6).abs() + 0.3)
def integer_levels(x):
    levels = (x * 255).long()  # fault
    return levels.double() / 255


@fault("lost-derivative", real(6).abs() + 0.3)
def integer_mean(x):
    y = torch.stack([x, x * 3])
    return y.to(torch.int32).sum(0) * 0.5  # fault


@fault("lost-derivative", real(4), real(4, seed=3))
def grad_without_graph(x, w):
    x = x if x.requires_grad else x.detach().requires_grad_()
    energy = (w * x**3).sum()
    (force,) = torch.autograd.grad(energy, x)  # fault
    return force * 2


@fault("lost-derivative", real(3, 4))
def written_without_grad(x):
    y = x.sin()
    with torch.no_grad():
        y.mul_(2.0)  # fault
    return y.sum(1)


# -- state and randomness ----------------------------------------------------------------------------------------------


class StaleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.lin = nn.Linear(4, 4).double()

    def forward(self, x):
        h = self.lin(x)
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))  # fault
        return h - self.mean


@fault("state", real(6, 4))
def stale_norm() -> nn.Module:
    return StaleNorm()


class TrainingBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3).double()
        self.norm = nn.BatchNorm2d(3).double()

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))  # fault


@fault("state", real(2, 2, 6, 6), wrong=False)
def training_batch_norm() -> nn.Module:
    return TrainingBatchNorm()


class Warming(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.sin() * self.calls  # fault


@fault("state", real(4))
def counts_calls() -> nn.Module:
    return Warming()


@fault("nondeterministic", real(4, 8))
def dropout_left_on(x):
    h = torch.tanh(x)
    return F.dropout(h, 0.5)  # fault


@fault("nondeterministic", real(5))
def noise(x):
    e = torch.randn_like(x)  # fault
    return x + x * e


GENERATOR = np.random.default_rng(3)


@fault("nondeterministic", real(5))
def own_generator(x):
    e = float(GENERATOR.normal())
    return x * e  # fault


@fault("nondeterministic", real(5))
def python_random(x):
    k = random.uniform(1, 2)
    return x.exp() * k  # fault


# -- rounding ----------------------------------------------------------------------------------------------------------


@fault("rounding", torch.full((4,), 1e-4), wrong=False)
def cancelling_cosine(x):
    c = x.cos()
    top = 1 - c  # fault
    return top / x**2


@fault("rounding", 1e4 + torch.linspace(0, 1, 50), wrong=False)
def cancelling_variance(x):
    mean = x.mean()
    square = (x**2).mean()
    variance = square - mean**2  # fault
    return variance * 2


# -- kinks -------------------------------------------------------------------------------------------------------------


@fault("kink", torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), operator="relu", wrong=False)
def kink_at_zero(x):
    y = x * 3
    return torch.relu(y) * x.cos()  # fault


@fault("kink", torch.tensor([[0.5, 0.2, 0.9]], dtype=torch.float64), operator="clamp", wrong=False)
def kink_nearby(x):
    y = x - 0.2 + 3e-8
    return torch.clamp(y, 0, 1).sqrt().sum() + torch.clamp(y, 0, 1).sum() * 3  # fault


@fault("kink", torch.tensor([1.0, 2.0, 2.0, 0.5], dtype=torch.float64), wrong=False)
def tie_in_max(x):
    top = x.max()  # fault
    return top * x.sum()


# -- NaN ---------------------------------------------------------------------------------------------------------------


@fault("nan", torch.zeros(3, dtype=torch.float64))
def normalised_zero(x):
    return x / x.pow(2).sum().sqrt()  # fault


@fault("nan", torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64))
def hidden_root(x):
    r = torch.sqrt(x)  # fault
    return torch.where(x < 2, r * x, x)


# -- overwritten values and hooks --------------------------------------------------------------------------------------


@fault("wrong-rule lost-derivative", real(5))
def overwritten_through_data(x):
    y = x.exp()
    y.data.mul_(2.0)  # fault
    return y * 3


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.kept.cos()


@fault("wrong-rule", real(5))
def overwritten_scratch(x):
    h = x * 1.5
    y = Keeps.apply(h)
    h.add_(1.0)  # fault
    return y + h


@fault("wrong-rule", real(5))
def hook_scales(x):
    y = x.sin()  # fault
    if y.requires_grad:
        y.register_hook(lambda g: 0.5 * g)
    return y * x


CACHE: dict = {}


@fault("lost-derivative wrong-rule state", real(4))
def cached_by_memory(x):
    buffer = CACHE.setdefault("b", np.zeros(4))
    np.copyto(buffer, x.detach().numpy())  # fault
    return torch.from_numpy(buffer) * x
