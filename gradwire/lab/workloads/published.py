"""The models that the published systems ran, in their published sizes, on random data of the real shape."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, nn

from gradwire.lab.models import MODELS, Model, Size
from gradwire.lab.models.hub import require_transformers
from gradwire.lab.workloads.task import Batch, RandomTask, random_images, random_windows
from gradwire.unknown import unknown


@dataclass(frozen=True, kw_only=True)
class Published(RandomTask):
    """A model in its published size, on random data of the real shape, for measuring step times.

    `layers`, `batch` and `size` (pixels along an image's side, or tokens) replace the published ones. Raises
    ValueError for an unknown model, for layers or a size that it cannot have, and where transformers is needed
    and missing.
    """

    name: ClassVar[str] = "published"
    metric: ClassVar[str] = "loss"

    model: str = "resnet50"
    layers: int | None = None
    batch: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in MODELS:
            raise unknown("model", self.model, MODELS)
        if self.published.by_transformers:
            require_transformers(self.model)
        self.sized  # noqa: B018

    @property
    def published(self) -> Model:
        return MODELS[self.model]

    @property
    def sized(self) -> Size:
        return self.published.sized(layers=self.layers, length=self.size)

    @property
    def shape(self) -> tuple[int, int]:
        """A rank's samples in a step, and their size."""
        return self.batch or self.published.batch, self.sized.length

    def parameters(self) -> int:
        """The number of parameters, counted without making them."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self._module().parameters())

    def _module(self) -> nn.Module:
        return self.published.build(self.sized)

    def _draw(self, generator: Generator) -> Batch:
        outputs, (batch, size) = self.published.outputs, self.shape
        if self.published.data == "images":
            return random_images(batch, size, outputs, generator)
        tokens, following = random_windows(batch, size, outputs, generator)
        if self.published.data == "text":
            return tokens, following
        # whether two sentences follow each other, beside the masked words
        belong = torch.randint(2, (batch, 1), generator=generator)
        return tokens, torch.cat([tokens, belong], 1)
