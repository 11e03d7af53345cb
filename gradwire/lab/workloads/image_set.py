"""Labelled images to train on: what a set of them gives, and one that lies in memory."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor
from torch.nn import functional

_PADDED_SHARE = 8
"""A side's part that is added around an image before it is cut out again."""


@dataclass(frozen=True, kw_only=True)
class Images(ABC):
    """Labelled square images; `labels` are (samples,) in int64."""

    labels: Tensor
    channels: int
    pixels: int

    @abstractmethod
    def load(self, index: Tensor, draw: numpy.random.Generator | None) -> Tensor:
        """These images as (samples, channels, pixels, pixels) in float, of about zero mean and unit variance; with
        `draw` cut out and flipped at random, as is usual in training on such a set."""


Splits = tuple[Images, Images]
"""To train on, and held out."""


@dataclass(frozen=True, kw_only=True)
class ImageSet(Images):
    """Images (samples, channels, pixels, pixels) in uint8."""

    images: Tensor

    def load(self, index: Tensor, draw: numpy.random.Generator | None) -> Tensor:
        """See `Images.load`; cut out of an image that an eighth of a side of black was added to all around."""
        images = self.images[index]
        return ((crop_and_flip(images, draw) if draw else images).float() - 128) / 64


def crop_and_flip(images: Tensor, draw: numpy.random.Generator) -> Tensor:
    """Each image (samples, channels, pixels, pixels) moved by up to an eighth of a side, every other one mirrored."""
    # a random place in the padded image, for each image
    count, channels, pixels, _ = images.shape
    margin = max(1, pixels // _PADDED_SHARE)
    padded = functional.pad(images, (margin,) * 4)
    top, left = torch.from_numpy(draw.integers(2 * margin + 1, size=(2, count, 1)))
    # (samples, pixels)
    rows, columns = top + torch.arange(pixels), left + torch.arange(pixels)
    # every other one mirrored
    mirrored = torch.from_numpy(draw.random((count, 1)) < 0.5)
    columns = torch.where(mirrored, columns.flip(1), columns)
    sample, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    # gathered at once
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]
