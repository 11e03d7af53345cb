"""Image classification tasks."""

from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

import numpy
from torch import Tensor, nn

from gradwire.lab.models import any_model
from gradwire.lab.workloads import image_files
from gradwire.lab.workloads.image_folder import image_folder
from gradwire.lab.workloads.image_set import Splits
from gradwire.lab.workloads.named import ModelOptions
from gradwire.lab.workloads.narrow_models import cnn, lenet, resnet18, vgg16
from gradwire.lab.workloads.task import Batch, DealtTask

_WIDTH = 16


@dataclass(frozen=True, kw_only=True)
class ImageTask(ModelOptions, DealtTask):
    """Classification of a labelled image set.

    `model` is cnn, lenet, vgg16 or resnet18, narrow ones whose first stage has `width` channels, by default 16; a
    published one, such as published-resnet50; or one of transformers, such as hf:convnext. `augment` cuts out and flips
    the images to train on at random. Of published models `layers`, `width` and `dropout` replace the published ones.
    `outputs` are the model's, by default the set's classes.

    Raises ValueError for an unknown model and for a label that the set cannot have.
    """

    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 10
    narrow: ClassVar[tuple[str, ...]] = ("cnn", "lenet", "vgg16", "resnet18")
    data: ClassVar[str] = "images"

    model: str = "vgg16"
    batch: int = 16
    augment: bool = False
    outputs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_model()
        highest = max(int(split.labels.max()) for split in self.splits)
        outputs = self.outputs or self.labels
        if highest >= outputs:
            raise ValueError(f"{self.name} has labels 0 to {outputs - 1}, the files hold {highest}")

    @property
    @abstractmethod
    def splits(self) -> Splits:
        """The images to train on and the ones held out, read once per process."""

    @property
    def labels(self) -> int:
        return self.classes

    def _module(self) -> nn.Module:
        # weights, a published model, one of transformers, or a narrow one
        train, outputs = self.splits[0], self.outputs or self.labels
        if self.pretrained:
            return any_model.pretrained("images", self.pretrained, num_labels=outputs)
        if self.published:
            return self.published.build(self.sized(length=train.pixels, outputs=outputs, channels=train.channels))
        if self.model.startswith(any_model.PREFIX):
            sizes = {"num_labels": outputs, "num_channels": train.channels, "image_size": train.pixels}
            return any_model.chosen("images", self.model, **sizes)
        if self.model == "resnet18":
            return resnet18(self.width or _WIDTH, outputs, train.channels)
        build = {"cnn": cnn, "lenet": lenet, "vgg16": vgg16}[self.model]
        return build(self.width or _WIDTH, outputs, train.channels, train.pixels)

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Each epoch deals a new permutation of the training images out to the ranks."""
        train = self.splits[0]
        # augmentation draws by step and rank, so that a resumed run draws the same
        for step, index in zip(count(start), self.dealt(rank, world, seed, start), strict=False):
            draw = numpy.random.default_rng([seed, step, rank]) if self.augment else None
            yield train.load(index, draw), train.labels[index]

    @property
    def train_size(self) -> int:
        return len(self.splits[0].labels)

    @property
    def held_out_size(self) -> int:
        return len(self.splits[1].labels)

    def held_out_batch(self, index: Tensor) -> Batch:
        held_out = self.splits[1]
        return held_out.load(index, None), held_out.labels[index]


@dataclass(frozen=True, kw_only=True)
class Digits(ImageTask):
    """scikit-learn's handwritten digits, 8 x 8 pixels."""

    name: ClassVar[str] = "digits"

    model: str = "cnn"

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
        return image_files.cifar10(self.folder)


@dataclass(frozen=True, kw_only=True)
class Cifar100(ImageTask):
    """CIFAR-100 with its fine labels, from its binary version in `folder`."""

    name: ClassVar[str] = "cifar100"
    classes: ClassVar[int] = 100

    folder: Path

    @property
    def splits(self) -> Splits:
        return image_files.cifar100(self.folder)


@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageTask):
    """Image files in ImageNet's layout, train/CLASS/*.jpg and val/CLASS/*.jpg in `folder`, scaled to `size` pixels."""

    name: ClassVar[str] = "images"

    folder: Path
    size: int = 224
    model: str = "published-resnet50"
    batch: int = 32

    @property
    def splits(self) -> Splits:
        return image_folder(self.folder, self.size)

    @property
    def labels(self) -> int:
        """The folders of train."""
        return int(self.splits[0].labels.max()) + 1

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Read while the step before is computed."""
        return _prefetched(super().batches(rank, world, seed, start))


def _prefetched(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The endless batches, each made on a thread while the one before is in use."""
    with ThreadPoolExecutor(1, "prefetch") as pool:
        coming = pool.submit(next, batches)
        while True:
            batch = coming.result()
            coming = pool.submit(next, batches)
            yield batch
