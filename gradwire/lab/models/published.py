"""The table of the published models: their sizes, and what they were fed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from gradwire.lab.models import hub
from gradwire.lab.models.lstm import LSTM
from gradwire.lab.models.vgg import VGG

Stages = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model in its published size.

    `stages` count what may be cut, part by part: transformer and LSTM layers, residual blocks, convolutions.
    `size` is a side of the image in pixels, or a window's tokens; `sizes` are those that fit. `batch` samples a
    rank and step were used by the system that ran it. `outputs` are classes or words.
    """

    parameters: int
    stages: Stages
    batch: int
    size: int
    sizes: range
    outputs: int
    data: Literal["images", "text", "pairs"]
    build: Callable[[Stages, int], nn.Module]
    by_transformers: bool = True

    def cut(self, layers: int) -> Stages:
        """`layers` in total, taken out of the longest stage first. Raises ValueError where that cannot be."""
        if not len(self.stages) <= layers <= sum(self.stages):
            raise ValueError(f"layers={layers} cannot be had: there are {len(self.stages)} to {sum(self.stages)}")
        stages = list(self.stages)
        while sum(stages) > layers:
            stages[stages.index(max(stages))] -= 1
        return tuple(stages)


def _resnet(parameters: int, stages: Stages, batch: int, *, bottleneck: bool = True) -> Model:
    return Model(
        parameters=parameters, stages=stages, batch=batch, size=224, sizes=range(32, 1025), outputs=1000, data="images",
        build=lambda stages, pixels: hub.resnet(stages, bottleneck=bottleneck),
    )  # fmt: skip


def _vgg(parameters: int, stages: Stages) -> Model:
    return Model(
        parameters=parameters, stages=stages, batch=32, size=224, sizes=range(32, 1025), outputs=1000, data="images",
        build=lambda stages, pixels: VGG(stages), by_transformers=False,
    )  # fmt: skip


def _vit(parameters: int, layers: int, **widths: int) -> Model:
    return Model(
        parameters=parameters, stages=(layers,), batch=8, size=224, sizes=range(16, 1025, 16), outputs=1000,
        data="images", build=lambda stages, pixels: hub.vit(stages, pixels, **widths),
    )  # fmt: skip


def _bert(parameters: int, layers: int, batch: int, **widths: int) -> Model:
    return Model(
        parameters=parameters, stages=(layers,), batch=batch, size=64, sizes=range(2, 513), outputs=30522,
        data="pairs", build=lambda stages, tokens: hub.bert(stages, **widths),
    )  # fmt: skip


def _gpt2(parameters: int, layers: int, **widths: int) -> Model:
    return Model(
        parameters=parameters, stages=(layers,), batch=2, size=1024, sizes=range(2, 1025), outputs=50257,
        data="text", build=lambda stages, tokens: hub.gpt2(stages, **widths),
    )  # fmt: skip


_LSTM = Model(
    parameters=66_034_000, stages=(2,), batch=20, size=35, sizes=range(1, 1025), outputs=10_000, data="text",
    build=lambda stages, tokens: LSTM(stages[0]), by_transformers=False,
)  # fmt: skip

MODELS: dict[str, Model] = {
    "resnet18": _resnet(11_689_512, (2, 2, 2, 2), 64, bottleneck=False),
    "resnet50": _resnet(25_557_032, (3, 4, 6, 3), 64),
    "resnet101": _resnet(44_549_160, (3, 4, 23, 3), 32),
    "resnet152": _resnet(60_192_808, (3, 8, 36, 3), 32),
    "vgg16": _vgg(138_357_544, (2, 2, 3, 3, 3)),
    "vgg19": _vgg(143_667_240, (2, 2, 4, 4, 4)),
    "vit-base": _vit(86_567_656, 12),
    "vit-large": _vit(304_326_632, 24, **hub.LARGE),
    "bert-base": _bert(110_106_428, 12, 32),
    "bert-large": _bert(336_226_108, 24, 8, **hub.LARGE),
    "gpt2": _gpt2(124_439_808, 12),
    "gpt2-large": _gpt2(774_030_080, 36, n_embd=1280, n_head=20),
    "lstm": _LSTM,
}
"""Parameters are torchvision's for the ResNets and VGGs and transformers' for the others, BERT with both heads of
its pre-training. The LSTM is the Penn Treebank's large one, 2 x 1500."""
