"""Models that people train, defined here: every transform of each is right, and none takes a slow way."""

from __future__ import annotations

import pytest
import torch

import pushforward as pf
from tests.models.agree import CHECKS, Model, cross_entropy, like, parameters, recorded_gradient, slope
from tests.models.sequences import GPT, GraphNet, Seq2Seq, Tagger
from tests.models.vision import ResNet18, UNet, ViT


def normal(*shape):
    return lambda: (torch.randn(shape, dtype=torch.float64),)


def integers(below, *shape):
    return lambda: torch.randint(below, shape)


def pixels(logits, target):
    return cross_entropy(logits.movedim(1, -1), target)


def graphs():
    return torch.randn(3, 5, 3, dtype=torch.float64), torch.randint(5, (3, 2, 8))


MODELS = {
    "resnet18": Model(ResNet18, normal(2, 3, 16, 16), integers(5, 2)),
    "unet": Model(UNet, normal(2, 1, 8, 8), integers(3, 2, 8, 8), pixels),
    "vit": Model(ViT, normal(3, 3, 8, 8), integers(4, 3)),
    "lstm": Model(
        Tagger,
        lambda: (torch.randint(11, (3, 5)),),
        integers(3, 3, 5),
        floats=lambda net, inputs: (net.embed(inputs[0]),),
    ),
    "gru": Model(
        Seq2Seq,
        lambda: (torch.randint(9, (3, 5)), torch.randint(9, (3, 4))),
        integers(9, 3, 4),
        floats=lambda net, inputs: (net.embed(inputs[0]), inputs[1]),
    ),
    "graph": Model(GraphNet, graphs, integers(2, 3), single=True),
    "gpt": Model(
        GPT,
        lambda: (torch.randint(13, (3, 6)),),
        integers(13, 3, 6),
        floats=lambda net, inputs: (net.tokens(inputs[0]),),
    ),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("assert_"))
@pytest.mark.parametrize("name", MODELS)
def test_model(name, check):
    check(MODELS[name])


def test_resnet_with_the_statistics_of_the_batch():
    model = Model(ResNet18, normal(4, 3, 32, 32), integers(5, 4))
    net = model.built().train()
    inputs, target = model.examples()
    params = parameters(net)
    direction = like(params, 5)

    def total(p):
        return model.loss(pf.functional_call(net, p, (inputs,)), target)

    with pf.frozen_statistics(net, use="batch"):
        _, change = pf.jvp(total, (params,), (direction,))
        torch.testing.assert_close(change, slope(total, params, direction), **model.near)
        _, product = pf.hvp(total, (params,), (direction,))
        leaves, grads = recorded_gradient(total, params)
        along = sum((g * direction[k]).sum() for k, g in grads.items())
        expected = dict(zip(leaves, torch.autograd.grad(along, tuple(leaves.values())), strict=True))
    for name in params:
        torch.testing.assert_close(product[name], expected[name], **model.exact)
    assert all(torch.equal(b, torch.zeros_like(b)) for name, b in net.named_buffers() if name.endswith("running_mean"))
