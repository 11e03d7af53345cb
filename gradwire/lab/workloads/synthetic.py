"""The four models of the step-time benchmark, on random data of fixed shapes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, nn

from gradwire.lab.models.lstm import LSTM
from gradwire.lab.workloads.narrow_models import GPT, resnet18, vgg16
from gradwire.lab.workloads.task import Batch, RandomTask

SIZES = {
    "vgg16": "4.1 M parameters, 8 images of 32 x 32",
    "resnet18": "2.8 M parameters, 8 images of 32 x 32",
    "lstm": "6.3 M parameters, 4 x 32 tokens",
    "gpt": "5.3 M parameters, 4 x 64 tokens",
}
"""Of each model, in words."""


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
        if self.model not in SIZES:
            raise ValueError(f"model must be vgg16, resnet18, lstm or gpt, got {self.model}")

    def _module(self) -> nn.Module:
        match self.model:
            case "vgg16":
                return vgg16()
            case "resnet18":
                return resnet18()
            case "lstm":
                return LSTM(vocabulary=2000)
            case "gpt":
                return GPT(vocabulary=4096, context=64)

    def _draw(self, generator: Generator) -> Batch:
        match self.model:
            case "vgg16" | "resnet18":
                images = torch.randn(8, 3, 32, 32, generator=generator)
                return images, torch.randint(10, (8,), generator=generator)
            case "lstm":
                tokens = torch.randint(2000, (4, 33), generator=generator)
            case "gpt":
                tokens = torch.randint(4096, (4, 65), generator=generator)
        # each token is to predict the next
        return tokens[:, :-1], tokens[:, 1:]
