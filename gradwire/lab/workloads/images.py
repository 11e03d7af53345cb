"""Image classification tasks."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from gradwire.lab.models import MODELS, Model
from gradwire.lab.models.hub import require_transformers
from gradwire.lab.workloads import image_files
from gradwire.lab.workloads.base import Batch, Task, epoch
from gradwire.lab.workloads.image_files import ImageSet, Splits
from gradwire.lab.workloads.models import cnn, resnet18, vgg16

ImageModel = Literal["cnn", "vgg16", "resnet18", "published-resnet101", "published-vgg16"]
"""Those that are published have their sizes and heads of 1000 classes."""

_HELD_OUT_IMAGES = 512
_PUBLISHED = "published-"


@dataclass(frozen=True, kw_only=True)
class ImageTask(Task):
    """Classification of a labelled image set; `width` is the channels of the model's first stage.

    Raises ValueError for an unknown model and for a label that the set cannot have.
    """

    metric: ClassVar[Literal["loss", "accuracy"]] = "accuracy"
    classes: ClassVar[int] = 10

    model: ImageModel = "vgg16"
    width: int = 16
    batch: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in get_args(ImageModel):
            raise ValueError(f"model must be {', '.join(get_args(ImageModel))}, got {self.model}")
        if self.published:
            if self.published.by_transformers:
                require_transformers(self.model)
            if self.splits[0].images.shape[1:] != (3, 32, 32):
                raise ValueError(f"{self.model} takes CIFAR's images, in colour; give {self.name} a small model")
        highest = max(int(split.labels.max()) for split in self.splits)
        if highest >= self.classes:
            raise ValueError(f"{self.name} has labels 0 to {self.classes - 1}, the files hold {highest}")

    @property
    def published(self) -> Model | None:
        """The model's row in the table of published ones, if it is one."""
        return MODELS[self.model.removeprefix(_PUBLISHED)] if self.model.startswith(_PUBLISHED) else None

    @property
    @abstractmethod
    def splits(self) -> Splits:
        """The images to train on and the ones held out, read once per process."""

    def _module(self) -> nn.Module:
        _, channels, pixels, _ = self.splits[0].images.shape
        if self.published:
            return self.published.build(self.published.stages, pixels)
        if self.model == "resnet18":
            return resnet18(self.width, self.classes, channels)
        build = cnn if self.model == "cnn" else vgg16
        return build(self.width, self.classes, channels, pixels)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Each epoch deals a new permutation of the training images out to the ranks."""
        train, generator = self.splits[0], Generator().manual_seed(seed)
        while True:
            for index in epoch(generator, len(train.labels), self.batch, rank, world):
                yield _pick(train, index)

    def held_out(self) -> Batch:
        """512 held-out images (fewer where there are fewer), spread evenly over the set."""
        held_out = self.splits[1]
        count = len(held_out.labels)
        index = torch.linspace(0, count - 1, min(count, _HELD_OUT_IMAGES), dtype=torch.float64).long()
        return _pick(held_out, index)


def _pick(images: ImageSet, index: Tensor) -> Batch:
    # bytes to about zero mean and unit variance
    return (images.images[index].float() - 128) / 64, images.labels[index]


@dataclass(frozen=True, kw_only=True)
class Digits(ImageTask):
    """scikit-learn's handwritten digits, 8 x 8 pixels."""

    name: ClassVar[str] = "digits"

    model: ImageModel = "cnn"

    @property
    def splits(self) -> Splits:
        """1437 images to train on, 360 held out."""
        return image_files.digits()


@dataclass(frozen=True, kw_only=True)
class Mnist(ImageTask):
    """MNIST, or any set in its four IDX files, plain or .gz, from `folder`."""

    name: ClassVar[str] = "mnist"

    folder: Path

    @property
    def splits(self) -> Splits:
        """The train and t10k files."""
        return image_files.idx(self.folder)


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Mnist):
    """Fashion-MNIST, by default from where Debian's package dataset-fashion-mnist puts it."""

    name: ClassVar[str] = "fashion-mnist"

    folder: Path = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageTask):
    """CIFAR-10 from its binary version in `folder`."""

    name: ClassVar[str] = "cifar10"

    folder: Path

    @property
    def splits(self) -> Splits:
        """data_batch_1.bin to data_batch_5.bin, and test_batch.bin."""
        return image_files.cifar10(self.folder)


@dataclass(frozen=True, kw_only=True)
class Cifar100(ImageTask):
    """CIFAR-100 with its fine labels, from its binary version in `folder`."""

    name: ClassVar[str] = "cifar100"
    classes: ClassVar[int] = 100

    folder: Path

    @property
    def splits(self) -> Splits:
        """train.bin and test.bin."""
        return image_files.cifar100(self.folder)
