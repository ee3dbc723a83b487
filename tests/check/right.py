"""Functions whose derivatives are right; those in `KINKS` are evaluated close by a kink, or on it."""

from __future__ import annotations

import math
import typing

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pushforward as pf

SMOOTH: dict = {}
KINKS: dict = {}


def real(*sizes, seed=0, scale=1.0):
    return scale * torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def smooth(*inputs):
    def keep(made):
        SMOOTH[made.__name__] = (made, inputs)
        return made

    return keep


def kink(*inputs):
    def keep(made):
        KINKS[made.__name__] = (made, inputs)
        return made

    return keep


def built(made):
    """The function, or the module that a factory makes."""
    if typing.get_type_hints(made).get("return") is nn.Module:
        torch.manual_seed(0)
        return made()
    return made


@smooth(real(3, 4))
def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@smooth(torch.randn(3, 4, generator=torch.Generator().manual_seed(2)))
def single_precision() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


@smooth(real(2, 3, 8, 8))
def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.AvgPool2d(2), nn.Conv2d(4, 2, 2), nn.Flatten()).double()


@smooth(real(2, 5, 8))
def transformer_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True).double().eval()


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell(3, 4, batch_first=True).double()

    def forward(self, x):
        return self.cell(x)[0]


@smooth(real(2, 4, 3))
def lstm() -> nn.Module:
    return Recurrent(nn.LSTM)


@smooth(real(2, 4, 3))
def gru() -> nn.Module:
    return Recurrent(nn.GRU)


@smooth(real(2, 6, 4))
def group_norm() -> nn.Module:
    return nn.Sequential(nn.GroupNorm(3, 6), nn.SiLU()).double()


@smooth(real(4, 3, 5))
def batch_norm_eval() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 3, 2), nn.BatchNorm1d(3)).double().eval()


@smooth(real(5))
def shifted_logsumexp(x):
    m = x.max().detach()
    return (x - m).exp().sum().log() + m


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


@smooth(real(4))
def own_function(x):
    return Square.apply(x.sin()).cumsum(0)


@smooth(real(3, 4))
def checkpointed(x):
    return checkpoint(lambda v: torch.tanh(v @ v.T), x, use_reentrant=False)


PATTERN = torch.tensor([[0, 1, 0], [-2, 0, 0.5], [0, 0, 0], [0, 0, 3]], dtype=torch.float64)


@smooth(real(3))
def sparse_pattern(x):
    y = PATTERN @ x
    return torch.stack([y[0] * y[1], y[2:].sum(), y[3] ** 2])


@smooth(real(7), torch.tensor([0, 2, 2, 1]))
def gather_and_scatter(x, index):
    return torch.zeros(5, dtype=x.dtype).index_add(0, index, x[index] ** 2).sinh()


@smooth(real(3, 3))
def linear_solve(a):
    m = a @ a.T + 3 * torch.eye(3, dtype=a.dtype)
    return torch.linalg.solve(m, a).sum(0) + torch.linalg.cholesky(m).diagonal().log()


@smooth(real(6))
def spectrum(x):
    return torch.fft.rfft(x * x.cos()).abs().square()


@smooth(torch.complex(real(4), real(4, seed=1)))
def complex_numbers(z):
    return (z * z.conj() + z.exp()).real


@smooth(real(2, scale=0.3))
def oscillator(y):
    for _ in range(20):
        k = torch.stack([y[1], -torch.sin(y[0])])
        half = y + 0.05 * k
        y = y + 0.1 * torch.stack([half[1], -torch.sin(half[0])])
    return y


@smooth(real(4).abs() + 1)
def newton(a):
    x = torch.ones_like(a)
    while float((x * x - a).detach().abs().max()) > 1e-15:
        previous = x
        x = 0.5 * (x + a / x)
        if torch.equal(previous, x):
            break
    return x


@smooth(real(5))
def built_in_place(x):
    out = torch.zeros(3, 5, dtype=x.dtype)
    for k in range(3):
        out[k] = x ** (k + 1)
    out[1].mul_(2)
    return out


@smooth(real(4), real(4, 4, seed=1))
def nested_gradient(x, a):
    return pf.grad(lambda v: (v @ a @ v).sin())(x)


@smooth(torch.full((4,), 1e-3), torch.ones(4))
def careful_cosine(x, y):
    return 2 * torch.sin(x / 2) ** 2 * y / x**2


@smooth(real(6))
def safe_root(x):
    positive = torch.where(x > 0, x, torch.ones_like(x))
    return torch.where(x > 0, positive.sqrt(), torch.zeros_like(x))


# -- close by a kink ---------------------------------------------------------------------------------------------------

NEAR = 2e-7 * torch.tensor([1.0, -2.0, 3.0, -0.5, 40.0, 5e6]).double()


@kink(NEAR)
def relu_near(x):
    return torch.relu(x) * (1 + x.cos())


@kink(torch.zeros(4, dtype=torch.float64))
def absolute_at_zero(x):
    return x.abs() + x


LEVEL = F.layer_norm(real(8), (8,))[2].item() - 1e-7


@kink(real(8))
def clamp_in_norm(x):
    y = F.layer_norm(x, (8,))
    y = (y - LEVEL).clamp(min=0)
    return y / (y.sum() + 1)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).double()
        with torch.no_grad():
            self.net[0].bias.copy_(-(self.net[0].weight @ real(4)) + 1e-7 * torch.arange(64))

    def forward(self, x):
        return self.net(x)


@kink(real(4))
def network_on_its_kinks() -> nn.Module:
    return Wide()


@kink(torch.tensor([[1.0, 1.0 + 1e-7, 0.5, 2.0]], dtype=torch.float64))
def near_tie(x):
    return x[:, :2].max(dim=1).values * x[:, 3] + x[:, 2]


@kink(torch.tensor([3.0, 1.0, 1.0, 2.0], dtype=torch.float64))
def tie_in_sort(x):
    return x.sort().values * torch.tensor([1.0, -2.0, 0.5, 3.0])


@kink(real(1, 1, 4, 4).mul(1e-7) + 1)
def pool_of_near_ties(x):
    return F.max_pool2d(x**2, 2).sum() * x.mean()


@kink(torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64), torch.tensor([0.0, 0.0, 0.5 + 1e-8], dtype=torch.float64))
def huber(x, y):
    return F.huber_loss(x * 1, y) + F.smooth_l1_loss(x, y) + F.l1_loss(x, y)


@kink(torch.tensor([1.0 - 1e-8, 2.0, -1.0], dtype=torch.float64))
def hinge(score):
    return F.relu(1 - score).square().sum() + F.relu(1 - score).sum()


@kink(torch.tensor([0.2, 1.0 + 1e-8, 1.6, 2.5], dtype=torch.float64))
def interpolated_table(x):
    table = torch.tensor([0.0, 1.0, 0.5, 2.0, -1.0], dtype=x.dtype)
    i = x.detach().floor().long()
    w = x - i
    return table[i] * (1 - w) + table[i + 1] * w


@kink(torch.tensor([0.3, 1.0 - 2e-8, 1.7], dtype=torch.float64))
def spline_by_search(x):
    edges = torch.tensor([0.0, 1.0, 2.0], dtype=x.dtype)
    k = torch.searchsorted(edges, x.detach()) - 1
    return torch.where(k == 0, x, 3 * x - 2)


@kink(torch.tensor([1e-8, 0.5], dtype=torch.float64))
def python_branch(x):
    if x[0] > 0:
        return x[0] * 2 + x[1] ** 2
    return -x[0] + x[1] ** 2


@kink(torch.tensor([3.0, -3.0, 0.0, 6.0], dtype=torch.float64))
def hard_activations(x):
    return F.hardswish(x) + F.hardtanh(x / 3) + F.relu6(x) + F.leaky_relu(x, 0.1) + F.softshrink(x / 6, 0.5)


@kink(torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0 + 1e-9, 2.5], dtype=torch.float64))
def maximum_of_two(a, b):
    return torch.maximum(a, b) * torch.minimum(a * 2, b + 1)


@kink(torch.tensor([0.5, 1.25, 1.0 + 1e-8], dtype=torch.float64))
def phase_wrap(x):
    return torch.cos(2 * math.pi * (x - x.floor())) + x


@kink(torch.tensor([4.0, 1.0, 1.0 + 5e-8, 0.0], dtype=torch.float64))
def top_two(x):
    values, index = x.topk(2)
    return values.prod() + x[index].sum()


@kink(torch.tensor([-1e-8, 2.0, 3.0], dtype=torch.float64))
def masked_sum(x):
    return (x[x > 0] ** 2).sum() + torch.nn.functional.threshold(x, 0.0, 0.0).sum()


@kink(torch.tensor([1e-8, -0.4, 0.7], dtype=torch.float64))
def elastic_penalty(w):
    return torch.linalg.vector_norm(w, 1) + 0.5 * (w**2).sum()


CORRELATION = float(real(2, 4, seed=3)[0] @ real(2, 4, seed=3)[1]) - 1e-8


@kink(real(2, 4, seed=3))
def attention_with_mask(x):
    scores = torch.relu(x @ x.T - CORRELATION)
    return torch.softmax(scores.masked_fill(scores > 50, 0.0), -1) @ x


@kink(
    torch.full((1, 1, 5, 5), 0.5, dtype=torch.float64) + 0.1 * real(1, 1, 5, 5),
    torch.tensor([[[[0.0, 1e-9], [0.31, -0.2]]]], dtype=torch.float64),
)
def warped_image(image, grid):
    return F.grid_sample(image, grid, align_corners=True)


@kink(torch.tensor([0.3, 2.0], dtype=torch.float32))
def single_precision_kink(x):
    return torch.relu(x - 0.3) * 5 + x.sum()
