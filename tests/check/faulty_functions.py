"""Functions whose fault is in a `torch.autograd.Function`: the wrong backward or jvp."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.check.faulty import fault, real


class WrongSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sin()


@fault("wrong-rule", real(6), operator="WrongSign")
def wrong_sign(x):
    y = x * 2
    z = WrongSign.apply(y)  # fault
    return z.cumsum(0)


class MissingTerm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y + x

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


missing_term_op = MissingTerm.apply


@fault("wrong-rule", real(3, 4), real(3, 4, seed=1), operator="MissingTerm")
def missing_term(x, y):
    return missing_term_op(x.sin(), y).sum(0)  # fault


class Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, x.T @ g


class TransposedLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(real(5, 5, seed=2))
        self.out = nn.Linear(5, 3).double()

    def forward(self, x):
        h = Transposed.apply(x, self.w)  # fault
        return self.out(torch.tanh(h))


@fault("wrong-rule", real(4, 5), operator="Transposed")
def transposed() -> nn.Module:
    return TransposedLayer()


class NoChainRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0].exp()


@fault("wrong-rule", real(7), operator="NoChainRule")
def no_chain_rule(x):
    for _ in range(3):
        x = x.sin()
    return NoChainRule.apply(x) * 3  # fault


class BroadcastGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g.sum(1, keepdim=True) * x.sum(1, keepdim=True)).expand(-1, 4)


@fault("wrong-rule", real(3, 4), real(3, 4, seed=3), operator="BroadcastGradient")
def broadcast_gradient(x, scale):
    return F.softplus(BroadcastGradient.apply(x, scale))  # fault


class ShapeSummed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x[:, 0] - y) ** 2

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = x - y  # [N, 1] - [N] is [N, N], and autograd sums it down again
        return 2 * g * d, -2 * g * (x[:, 0] - y)


@fault("wrong-rule", real(5, 1), real(5, seed=4), operator="ShapeSummed")
def broadcast_shape(x, y):
    e = ShapeSummed.apply(x, y)  # fault
    return e.mean()


class Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a**2 * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * a**2, g * 2 * a * b


@fault("wrong-rule", real(4), real(4, seed=5), operator="Swapped")
def swapped(a, b):
    return torch.stack([Swapped.apply(a, b), a + b])  # fault


class WrongJvp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, t):
        return t * 2 * ctx.saved_tensors[0] ** 2


@fault("wrong-rule", real(5), operator="WrongJvp")
def wrong_jvp(x):
    return WrongJvp.apply(x).flip(0)  # fault


class UnflippedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.conv1d(x, w, padding=1)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return F.conv1d(g, w.transpose(0, 1), padding=1), torch.nn.grad.conv1d_weight(x, w.shape, g, padding=1)


@fault("wrong-rule", real(2, 3, 8), real(3, 3, 3, seed=6), operator="UnflippedConv")
def unflipped_conv(x, w):
    h = F.gelu(x)
    return UnflippedConv.apply(h, w).mean(-1)  # fault


class SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, cols, values, x):
        ctx.save_for_backward(rows, cols, values, x)
        return torch.zeros_like(x).index_add(0, rows, values * x[cols])

    @staticmethod
    def backward(ctx, g):
        rows, cols, values, x = ctx.saved_tensors
        return None, None, g[rows] * x[cols], torch.zeros_like(x).index_add(0, rows, values * g[cols])


ROWS, COLS = torch.tensor([0, 1, 1, 2, 3, 5]), torch.tensor([1, 0, 2, 3, 3, 4])


@fault("wrong-rule", real(6), real(6, seed=7), operator="SparseProduct")
def sparse_product(values, x):
    y = SparseProduct.apply(ROWS, COLS, values, x)  # fault
    return torch.sigmoid(y)


class ClippedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.1, 0.1)


class DeepNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6).double() for _ in range(4)])

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if k == 2:
                x = ClippedGradient.apply(x)  # fault
        return x


@fault("wrong-rule", real(3, 6), operator="ClippedGradient")
def clipped_gradient() -> nn.Module:
    return DeepNet()


class ZeroGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return torch.softmax(q @ k.transpose(-1, -2), -1)

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        p = torch.softmax(q @ k.transpose(-1, -2), -1)
        s = p * g  # the mean under the softmax is not taken off
        return s @ k, s.transpose(-1, -2) @ q


@fault("wrong-rule", real(2, 4, 3), real(2, 4, 3, seed=8), real(2, 4, 3, seed=9), operator="ZeroGradient")
def attention_without_mean(q, k, v):
    p = ZeroGradient.apply(q, k)  # fault
    return p @ v
