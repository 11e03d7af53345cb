"""The four models of the step-time benchmark, on random data of fixed shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

from torch import Generator, nn

from gradwire.lab.models.lstm import LSTM
from gradwire.lab.workloads.narrow_models import GPT, resnet18, vgg16
from gradwire.lab.workloads.task import Batch, RandomTask, random_images, random_windows


class TinyModel(NamedTuple):
    """A model of fixed size, and its data."""

    text: str
    """Its size, and a rank's samples in a step."""
    build: Callable[[], nn.Module]
    """Makes it."""
    draw: Callable[[Generator], Batch]
    """Makes a batch."""


TINY_MODELS = {
    "vgg16": TinyModel("4.1 M parameters, 8 images of 32 x 32", vgg16, partial(random_images, 8, 32, 10)),
    "resnet18": TinyModel("2.8 M parameters, 8 images of 32 x 32", resnet18, partial(random_images, 8, 32, 10)),
    "lstm": TinyModel("6.3 M parameters, 4 x 32 tokens", partial(LSTM, 2000), partial(random_windows, 4, 32, 2000)),
    "gpt": TinyModel("5.3 M parameters, 4 x 64 tokens", partial(GPT, 4096, 64), partial(random_windows, 4, 64, 4096)),
}


@dataclass(frozen=True, kw_only=True)
class Synthetic(RandomTask):
    """A model of fixed size for measuring step times; there is nothing to learn in its data.

    vgg16 (4.1 M parameters) and resnet18 (2.8 M): batches of 8 images of 3 x 32 x 32; lstm (6.3 M): 4 windows
    of 32 tokens out of 2000; gpt (5.3 M): 4 of 64 out of 4096. Raises ValueError for an unknown model.
    """

    name: ClassVar[str] = "synthetic"
    metric: ClassVar[str] = "loss"

    model: Literal["vgg16", "resnet18", "lstm", "gpt"] = "vgg16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in TINY_MODELS:
            raise ValueError(f"model must be vgg16, resnet18, lstm or gpt, got {self.model}")

    def _module(self) -> nn.Module:
        return TINY_MODELS[self.model].build()

    def _draw(self, generator: Generator) -> Batch:
        return TINY_MODELS[self.model].draw(generator)
