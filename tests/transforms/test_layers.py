"""Layers of torch.nn under nested transforms, in their input and in their parameters, against torch's double backward."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import pushforward as pf

D = torch.float64
PICKED = torch.tensor([2, 0])
MASK = nn.Transformer.generate_square_subsequent_mask(3, dtype=D)
SEEN = torch.tensor([[False, False, True], [False, False, False]])


class Called(nn.Module):
    """A layer that is called otherwise than on its input alone."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


def of(make, call):
    return lambda: Called(make(), call)


def twice(make):
    return of(make, lambda layer, x: layer(x, x * 0.5))


def against(make, target):
    """A loss, and what it compares with."""
    return of(make, lambda layer, x: layer(x, target))


def attention(**masks):
    make = lambda: nn.MultiheadAttention(4, 2, batch_first=True, bias=masks == {})
    return of(make, lambda layer, x: layer(x, x, x, need_weights=False, **masks)[0])


def encoder(**options):
    return lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **options)


NUMBERS = torch.linspace(-1, 1, 12, dtype=D).reshape(3, 4)
SHARES = NUMBERS.softmax(-1)
SEQUENCE, ROWS, IMAGE, STRIP = (2, 3, 4), (3, 4), (1, 2, 4, 4), (2, 2, 5)
LAYERS = {
    "GRU": (lambda: nn.GRU(4, 3, 2, bidirectional=True, batch_first=True), SEQUENCE),
    "GRU without bias": (lambda: nn.GRU(4, 3, bias=False), SEQUENCE),
    "LSTM": (lambda: nn.LSTM(4, 3, bidirectional=True), SEQUENCE),
    "LSTM projected": (lambda: nn.LSTM(4, 3, proj_size=2), SEQUENCE),
    "RNN": (lambda: nn.RNN(4, 3, nonlinearity="relu"), SEQUENCE),
    "GRUCell": (lambda: nn.GRUCell(4, 3), ROWS),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), ROWS),
    "RNNCell": (lambda: nn.RNNCell(4, 3), ROWS),
    "MultiheadAttention": (attention(), SEQUENCE),
    "MultiheadAttention masked": (attention(attn_mask=MASK), SEQUENCE),
    "MultiheadAttention padded": (attention(key_padding_mask=SEEN), SEQUENCE),
    "TransformerEncoderLayer": (encoder(), SEQUENCE),
    "TransformerEncoderLayer norm first": (encoder(norm_first=True, activation="gelu"), SEQUENCE),
    "TransformerDecoderLayer": (twice(lambda: nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True)), SEQUENCE),
    "Transformer": (twice(lambda: nn.Transformer(4, 2, 1, 1, 6, 0.0, batch_first=True)), SEQUENCE),
    "BatchNorm1d eval": (lambda: nn.BatchNorm1d(4).eval(), ROWS),
    "LayerNorm": (lambda: nn.LayerNorm(4), ROWS),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4, 2)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, affine=True), (3, 4, 5)),
    "RMSNorm": (lambda: nn.RMSNorm(4), ROWS),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (2, 4, 3)),
    "spectral_norm": (lambda: spectral_norm(nn.Linear(4, 3)).eval(), ROWS),
    "Linear": (lambda: nn.Linear(4, 3), ROWS),
    "Bilinear": (twice(lambda: nn.Bilinear(4, 4, 3)), ROWS),
    "Conv1d": (lambda: nn.Conv1d(2, 4, 2, groups=2), STRIP),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2, padding=1, padding_mode="circular"), IMAGE),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), IMAGE),
    "Unfold": (lambda: nn.Unfold(2), IMAGE),
    "Fold": (lambda: nn.Fold((3, 3), 2), (1, 4, 4)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(3), IMAGE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(3), IMAGE),
    "LPPool2d": (of(lambda: nn.LPPool2d(3, 2), lambda layer, x: layer(x.square() + 0.1)), IMAGE),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (1, 4, 2, 2)),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), IMAGE),
    "PReLU": (lambda: nn.PReLU(), ROWS),
    "Softmax2d": (lambda: nn.Softmax2d(), IMAGE),
    "SiLU in place": (lambda: nn.SiLU(inplace=True), ROWS),
    "ELU in place": (lambda: nn.ELU(inplace=True), ROWS),
    "Hardswish in place": (lambda: nn.Hardswish(inplace=True), ROWS),
    "Mish in place": (lambda: nn.Mish(inplace=True), ROWS),
    "LeakyReLU in place": (lambda: nn.LeakyReLU(inplace=True), ROWS),
    "GLU": (lambda: nn.GLU(), ROWS),
    "CosineSimilarity": (twice(nn.CosineSimilarity), ROWS),
    "PairwiseDistance": (twice(nn.PairwiseDistance), ROWS),
    "Embedding": (of(lambda: nn.Embedding(4, 4), lambda layer, x: layer(PICKED) * x[:2]), ROWS),
    "AdaptiveLogSoftmaxWithLoss": (
        of(lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2, 4], 1.5), lambda layer, x: layer(x, torch.tensor([0, 3, 5])).output),
        ROWS,
    ),
    "MSELoss": (against(nn.MSELoss, NUMBERS), ROWS),
    "L1Loss": (against(nn.L1Loss, NUMBERS), ROWS),
    "SmoothL1Loss": (against(nn.SmoothL1Loss, NUMBERS), ROWS),
    "HuberLoss": (against(nn.HuberLoss, NUMBERS), ROWS),
    "BCEWithLogitsLoss": (against(nn.BCEWithLogitsLoss, SHARES), ROWS),
    "BCELoss": (of(nn.BCELoss, lambda layer, x: layer(x.sigmoid(), SHARES)), ROWS),
    "CrossEntropyLoss": (against(lambda: nn.CrossEntropyLoss(label_smoothing=0.1), torch.tensor([0, 3, 1])), ROWS),
    "NLLLoss": (of(nn.NLLLoss, lambda layer, x: layer(x.log_softmax(-1), torch.tensor([0, 3, 1]))), ROWS),
    "KLDivLoss": (against(lambda: nn.KLDivLoss(reduction="batchmean"), SHARES), ROWS),
    "PoissonNLLLoss": (against(nn.PoissonNLLLoss, SHARES), ROWS),
    "GaussianNLLLoss": (of(nn.GaussianNLLLoss, lambda layer, x: layer(x, NUMBERS, x.square() + 0.5)), ROWS),
    "SoftMarginLoss": (against(nn.SoftMarginLoss, NUMBERS.sign()), ROWS),
    "MultiLabelSoftMarginLoss": (against(nn.MultiLabelSoftMarginLoss, (NUMBERS > 0).to(D)), ROWS),
    "CosineEmbeddingLoss": (
        of(nn.CosineEmbeddingLoss, lambda layer, x: layer(x, x.roll(1, 0), torch.tensor([1.0, -1, 1]))),
        ROWS,
    ),
    "TripletMarginLoss": (of(nn.TripletMarginLoss, lambda layer, x: layer(x, x.roll(1, 0), x.roll(2, 0))), ROWS),
    **{
        f"Upsample {mode}": (lambda mode=mode: nn.Upsample(scale_factor=2, mode=mode), shape)
        for mode, shape in (("nearest", IMAGE), ("linear", STRIP), ("bilinear", IMAGE), ("bicubic", IMAGE))
    },
    # bags of embeddings have no second derivative in torch; LPPool2d has none at 0; FractionalMaxPool draws where it looks
}


def score(out):
    """One number, with a curvature of its own, of what a layer gives."""
    out = out[0] if isinstance(out, tuple) else out
    return (out * torch.linspace(0.5, 1.5, out.numel(), dtype=D).reshape(out.shape)).pow(2).sum()


def curved(f, at, along):
    """H v by torch's double backward; zeros where the gradient is constant."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no double backward
        inputs = {k: x.detach().clone().requires_grad_() for k, x in at.items()}
        grads = torch.autograd.grad(f(inputs), list(inputs.values()), create_graph=True, allow_unused=True)
        parts = [(g * v).sum() for g, v in zip(grads, along.values(), strict=True) if g is not None and g.requires_grad]
        if not parts:
            return {k: torch.zeros_like(x) for k, x in at.items()}
        found = torch.autograd.grad(sum(parts), list(inputs.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(at, found, strict=True))


def inner(a, b):
    return sum((a[k] * b[k]).sum() for k in a)


def stacked(tree, scales=(1.1, 1.0)):
    return {k: torch.stack([s * x for s in scales]) for k, x in tree.items()}


def lane(tree):
    return {k: x[1] for k, x in tree.items()}


def push(f, along):
    """The derivative of f along a direction, as a function."""
    return lambda x: pf.jvp(f, (x,), (along,))[1]


COMPOSITIONS = {
    "grad(jvp)": lambda f, x, v: pf.grad(push(f, v))(x),
    "vjp(jvp)": lambda f, x, v: pf.vjp(push(f, v), x)[1](torch.ones((), dtype=D))[0],
    "jvp(grad)": lambda f, x, v: pf.jvp(pf.grad(f), (x,), (v,))[1],
    "grad(grad)": lambda f, x, v: pf.grad(lambda x: inner(pf.grad(f)(x), v))(x),
    "hvp": lambda f, x, v: pf.hvp(f, (x,), (v,))[1],
    "vmap(grad(jvp))": lambda f, x, v: lane(pf.vmap(pf.grad(push(f, v)))(stacked(x))),
    "vmap(jvp(grad))": lambda f, x, v: lane(pf.vmap(push(pf.grad(f), v))(stacked(x))),
    "grad(vmap(jvp))": lambda f, x, v: pf.grad(lambda x: pf.vmap(lambda v: push(f, v)(x))(stacked(v))[1])(x),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double().requires_grad_(False)
    x, v = torch.randn(2, *shape, dtype=D)
    parameters = {k: p.detach() for k, p in layer.named_parameters()}
    along = {k: torch.randn_like(p) for k, p in parameters.items()}
    of_input = lambda tree: score(layer(tree["x"] * 1.0))  # layers in place write into the product
    of_parameters = lambda tree: score(pf.functional_call(layer, tree, (x * 1.0,)))
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f, at, direction in ((of_input, {"x": x}, {"x": v}), (of_parameters, parameters, along)):
            if not at:
                continue
            expected = curved(f, at, direction)
            for how, composed in COMPOSITIONS.items():
                got = composed(f, at, direction)
                if not all(torch.allclose(got[k], expected[k], rtol=1e-8, atol=1e-10) for k in expected):
                    wrong.append((how, list(at)))
    assert not wrong


@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_weight_norm(dim):
    """Torch's own second derivative takes the norms for constants, so the reference is written out."""
    torch.manual_seed(0)
    layer = weight_norm(nn.Linear(4, 3), dim=dim).double().requires_grad_(False)
    parameters = {k: p.detach() for k, p in layer.named_parameters()}
    along, x = {k: torch.randn_like(p) for k, p in parameters.items()}, torch.randn(2, 4, dtype=D)

    def written(tree):
        g, v = (tree[f"parametrizations.weight.original{k}"] for k in (0, 1))
        others = {0: [1], 1: [0]}.get(dim, [0, 1])
        return score(x @ (v * (g / v.square().sum(others, keepdim=True).sqrt())).mT + tree["bias"])

    f = lambda tree: score(pf.functional_call(layer, tree, (x,)))
    torch.testing.assert_close(f(parameters), written(parameters))
    expected = curved(written, parameters, along)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how, composed in COMPOSITIONS.items():
            got = composed(f, parameters, along)
            for k, e in expected.items():
                torch.testing.assert_close(got[k], e, rtol=1e-8, atol=1e-10, msg=f"{how}: {k}")
