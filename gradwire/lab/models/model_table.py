"""The table of the published models: their sizes and data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from gradwire.lab.models import hub, lstm
from gradwire.lab.models.size import Size, Stages
from gradwire.lab.models.vgg import VGG


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model in its published size."""

    parameters: int
    """In the published size."""
    stages: Stages
    """Layers that may be cut, part by part: transformer and LSTM layers, residual blocks, convolutions."""
    batch: int
    """Samples of a rank and step."""
    size: int
    """A side of the image in pixels, or a window's tokens."""
    sizes: range
    """The sizes that it can have."""
    width: int
    """See `Size`."""
    widths: range
    """The widths that it can have."""
    outputs: int
    """Classes or words."""
    data: Literal["images", "text", "pairs"]
    build: Callable[[Size], nn.Module]
    """Makes it in any size that fits."""
    by_transformers: bool = True
    """It needs the package transformers."""

    def samples(self, batch: int | None = None, size: int | None = None) -> str:
        """What a rank computes on in a step, in words; the published batch and size where they are None."""
        batch, size = batch or self.batch, size or self.size
        return (
            f"{batch} images of {size} x {size} a rank" if self.data == "images" else f"{batch} x {size} tokens a rank"
        )

    def cut(self, layers: int) -> Stages:
        """Stages cut to `layers` in total, the longest first. Raises ValueError for too few or too many."""
        if not len(self.stages) <= layers <= sum(self.stages):
            raise ValueError(f"layers={layers} cannot be had: there are {len(self.stages)} to {sum(self.stages)}")
        stages = list(self.stages)
        # the longest stage loses a layer at a time
        while sum(stages) > layers:
            stages[stages.index(max(stages))] -= 1
        return tuple(stages)

    def sized(
        self, *, layers: int | None = None, length: int | None = None, width: int | None = None, **others: Any
    ) -> Size:
        """The published size with these replacements. Raises ValueError for those that do not fit."""
        length, width = length or self.size, width or self.width
        _check("size", length, self.sizes)
        _check("width", width, self.widths)
        stages = self.cut(layers) if layers else self.stages
        return Size(**{"stages": stages, "length": length, "width": width, "outputs": self.outputs} | others)


def _check(name: str, value: int, fitting: range) -> None:
    if value not in fitting:
        step = f" in steps of {fitting.step}" if fitting.step > 1 else ""
        raise ValueError(f"{name}={value} does not fit: it takes {fitting[0]} to {fitting[-1]}{step}")


_PIXELS, _ANY_WIDTH = range(8, 1025), range(1, 4097)
_HEADS = range(64, 4097, 64)
"""Widths of transformers, whose heads have 64 each."""


def _resnet(parameters: int, stages: Stages, batch: int, *, bottleneck: bool = True, small: bool = False) -> Model:
    """One for ImageNet, or a `small` one for CIFAR."""
    return Model(
        parameters=parameters, stages=stages, batch=batch, size=32 if small else 224, sizes=_PIXELS, width=64,
        widths=_ANY_WIDTH, outputs=10 if small else 1000, data="images",
        build=lambda size: hub.resnet(size, bottleneck=bottleneck, small=small),
    )  # fmt: skip


def _vgg(parameters: int, stages: Stages, *, batch_norm: bool = False) -> Model:
    return Model(
        parameters=parameters, stages=stages, batch=32, size=224, sizes=_PIXELS, width=64, widths=_ANY_WIDTH,
        outputs=1000, data="images", build=lambda size: VGG(size, batch_norm=batch_norm), by_transformers=False,
    )  # fmt: skip


def _vit(parameters: int, layers: int, width: int) -> Model:
    return Model(
        parameters=parameters, stages=(layers,), batch=8, size=224, sizes=range(16, 1025, 16), width=width,
        widths=_HEADS, outputs=1000, data="images", build=hub.vit,
    )  # fmt: skip


def _bert(parameters: int, layers: int, batch: int, width: int) -> Model:
    return Model(
        parameters=parameters, stages=(layers,), batch=batch, size=64, sizes=range(2, 513), width=width,
        widths=_HEADS, outputs=30522, data="pairs", build=hub.pretraining,
    )  # fmt: skip


def _gpt2(parameters: int, layers: int, width: int) -> Model:
    return Model(
        parameters=parameters, stages=(layers,), batch=2, size=1024, sizes=range(2, 1025), width=width,
        widths=_HEADS, outputs=50257, data="text", build=hub.gpt2,
    )  # fmt: skip


_LSTM = Model(
    parameters=66_034_000, stages=(2,), batch=20, size=35, sizes=range(1, 1025), width=1500, widths=_ANY_WIDTH,
    outputs=10_000, data="text", build=lstm.published, by_transformers=False,
)  # fmt: skip

MODELS: dict[str, Model] = {
    "resnet18": _resnet(11_689_512, (2, 2, 2, 2), 64, bottleneck=False),
    "resnet50": _resnet(25_557_032, (3, 4, 6, 3), 64),
    "resnet101": _resnet(44_549_160, (3, 4, 23, 3), 32),
    "resnet152": _resnet(60_192_808, (3, 8, 36, 3), 32),
    "cifar-resnet18": _resnet(11_173_962, (2, 2, 2, 2), 32, bottleneck=False, small=True),
    "cifar-resnet50": _resnet(23_520_842, (3, 4, 6, 3), 32, small=True),
    "cifar-resnet101": _resnet(42_512_970, (3, 4, 23, 3), 32, small=True),
    "cifar-resnet152": _resnet(58_156_618, (3, 8, 36, 3), 32, small=True),
    "vgg16": _vgg(138_357_544, (2, 2, 3, 3, 3)),
    "vgg16-bn": _vgg(138_365_992, (2, 2, 3, 3, 3), batch_norm=True),
    "vgg19": _vgg(143_667_240, (2, 2, 4, 4, 4)),
    "vit-base": _vit(86_567_656, 12, 768),
    "vit-large": _vit(304_326_632, 24, 1024),
    "bert-base": _bert(110_106_428, 12, 32, 768),
    "bert-large": _bert(336_226_108, 24, 8, 1024),
    "gpt2": _gpt2(124_439_808, 12, 768),
    "gpt2-large": _gpt2(774_030_080, 36, 1280),
    "lstm": _LSTM,
}
"""Parameters are torchvision's for the ResNets and VGGs and transformers' for the others, BERT with both heads of
its pre-training. The ResNets for CIFAR begin with a convolution of 3 x 3. The LSTM is the Penn Treebank's large one,
2 x 1500."""
