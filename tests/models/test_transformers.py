"""Models of the `transformers` package, in small random configurations: every transform of each is right, none slow.

They are in a group of their own, which `./run models` installs.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.models.agree import CHECKS, Model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="the group `models` is not installed: run ./run models")


class Logits(nn.Module):
    """A language model from tokens, or embedded tokens, to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        name = "inputs_embeds" if x.is_floating_point() else "input_ids"
        return self.model(**{name: x}).logits

    def embed(self, tokens):
        return self.model.get_input_embeddings()(tokens)


class Translation(Logits):
    """An encoder and a decoder: from source and what is written already to logits."""

    def forward(self, x, written):
        name = "inputs_embeds" if x.is_floating_point() else "input_ids"
        return self.model(**{name: x}, decoder_input_ids=written).logits


class Images(nn.Module):
    """A model of images, to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(pixel_values=x).logits


SMALL = {"vocab_size": 17, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}


def gpt2():
    config = transformers.GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=2, n_head=2, use_cache=False)
    return Logits(transformers.GPT2LMHeadModel(config))


def bert():
    config = transformers.BertConfig(**SMALL, max_position_embeddings=8)
    return Logits(transformers.BertForMaskedLM(config))


def llama():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=8, use_cache=False)
    return Logits(transformers.LlamaForCausalLM(config))


def t5():
    config = transformers.T5Config(
        vocab_size=17, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, use_cache=False, decoder_start_token_id=0
    )
    return Translation(transformers.T5ForConditionalGeneration(config))


def vit():
    sizes = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    return Images(transformers.ViTForImageClassification(config))


def tokens(*shape):
    return lambda: (torch.randint(17, shape),)


def embedded(net, inputs):
    return net.embed(inputs[0]), *inputs[1:]


def labels(*shape):
    return lambda: torch.randint(17, shape)


MODELS = {
    "gpt2": Model(gpt2, tokens(3, 6), labels(3, 6), floats=embedded),
    "bert": Model(bert, tokens(3, 6), labels(3, 6), floats=embedded),
    "llama": Model(llama, tokens(3, 6), labels(3, 6), floats=embedded, rounds=True),
    "t5": Model(
        t5,
        lambda: (torch.randint(17, (3, 5)), torch.randint(17, (3, 4))),
        labels(3, 4),
        floats=embedded,
        rounds=True,
    ),
    "vit": Model(vit, lambda: (torch.randn(3, 3, 8, 8, dtype=torch.float64),), lambda: torch.randint(3, (3,))),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("assert_"))
@pytest.mark.parametrize("name", MODELS)
def test_model(name, check):
    check(MODELS[name])
