"""The models that are trained, in the sizes that the issue names; nothing is downloaded. Those of transformers are
replaced by VGG-16 where that package is missing."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradwire.lab.models import MODELS as PUBLISHED
from gradwire.lab.models import Size, hub

if find_spec("transformers"):
    # imported now, before a section's turn: that takes seconds
    from transformers import BertConfig, BertForMaskedLM, GPT2LMHeadModel, ResNetForImageClassification  # noqa: F401

Batch = tuple[Tensor, Tensor]
_HELD, _ACTIVATIONS = 32, 5e9
"""Bytes of a training, for each parameter and beside them, at most."""
_TINY = Size(stages=(2,), length=16, width=64, outputs=500)


class Model(NamedTuple):
    """A model, and the batches that it is trained on."""

    name: str
    build: Callable[[bool], nn.Module]
    """Makes it, or a tiny one."""
    batch: Callable[[bool], Batch]
    """Draws inputs and targets, on the CPU."""
    link_gbit: tuple[float, ...]
    """The links that are played for it."""
    at_once: int
    """How many trainings of it fit into 80 GB together."""


class Words(nn.Module):
    """BERT's masked words alone, as its pre-training is mostly measured."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.model = _bert(size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).logits


def _bert(size: Size) -> nn.Module:
    (layers,), width = size.stages, size.width
    heads = {"num_attention_heads": width // 64, "intermediate_size": 4 * width}
    return BertForMaskedLM(
        BertConfig(
            vocab_size=size.outputs, num_hidden_layers=layers, hidden_size=width, max_position_embeddings=512, **heads
        )
    )


def _words(tiny: bool) -> nn.Module:
    return Words(_TINY if tiny else Size(stages=(12,), length=512, width=768, outputs=30522))


def _gpt2_medium(tiny: bool) -> nn.Module:
    return hub.gpt2(_TINY if tiny else Size(stages=(24,), length=256, width=1024, outputs=50257))


def _resnet(tiny: bool) -> nn.Module:
    model = PUBLISHED["resnet18" if tiny else "resnet50"]
    size = model.sized(length=32, width=8) if tiny else model.sized()
    return model.build(size).to(memory_format=torch.channels_last)


def _vgg(tiny: bool) -> nn.Module:
    return PUBLISHED["vgg16"].build(PUBLISHED["vgg16"].sized(length=32 if tiny else 224, width=8 if tiny else 64))


def _tokens(vocabulary: int, batch: int, time: int) -> Callable[[bool], Batch]:
    def draw(tiny: bool) -> Batch:
        tokens = torch.randint(500 if tiny else vocabulary, (2, 16) if tiny else (batch, time))
        return tokens, tokens

    return draw


def _images(batch: int, side: int = 224, classes: int = 1000) -> Callable[[bool], Batch]:
    def draw(tiny: bool) -> Batch:
        count, pixels = (2, 32) if tiny else (batch, side)
        images = torch.randn(count, 3, pixels, pixels).to(memory_format=torch.channels_last)
        return images, torch.randint(classes, (count,))

    return draw


MODELS = {
    "bert": Model("BERT-base, 32 x 128 tokens", _words, _tokens(30522, 32, 128), (25.0, 10.0), 12),
    "resnet": Model("ResNet-50, 64 images", _resnet, _images(64), (10.0, 25.0), 20),
    "gpt2": Model("GPT-2 medium, 8 x 256 tokens", _gpt2_medium, _tokens(50257, 8, 256), (25.0,), 4),
    "bert512": Model("BERT-base, 32 x 512 tokens", _words, _tokens(30522, 32, 512), (25.0,), 5),
}
"""By the sections that train them."""
WITHOUT_TRANSFORMERS = Model("VGG-16, 64 images", _vgg, _images(64), (25.0, 10.0), 8)


def published(name: str, batch: int, size: int) -> Model:
    """A model of the table of published ones, on so many samples of `size` tokens, or pixels on a side."""
    row = PUBLISHED[name]
    images = row.data == "images"
    small = {"layers": len(row.stages), "length": 32, "width": max(8, row.widths[0])}
    small |= {} if images else {"outputs": 500}

    def build(tiny: bool) -> nn.Module:
        sizes = row.sized(**small) if tiny else row.sized(length=size)
        return Words(sizes) if row.data == "pairs" else row.build(sizes).to(memory_format=torch.channels_last)

    draw = _images(batch, size, row.outputs) if images else _tokens(row.outputs, batch, size)
    at_once = int(80e9 / (_HELD * row.parameters + _ACTIVATIONS))
    return Model(f"{name}, {batch} x {size}", build, draw, (), at_once)


def model_of(section: str) -> Model:
    """The model of a section; VGG-16 where transformers is missing."""
    return MODELS[section] if find_spec("transformers") else WITHOUT_TRANSFORMERS
