"""Image files in ImageNet's layout: train/CLASS/*.jpg and val/CLASS/*.jpg."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt
from pathlib import Path

import numpy
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from gradwire.lab.workloads.image_set import Images, Splits
from gradwire.process_limits import cores_of_one

_MEAN, _DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
_ENDINGS = {".jpeg", ".jpg", ".png", ".webp", ".bmp"}
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
# what is cut off each side of a held-out image: 224 of 256 pixels are left
_BLEED = 1 / 16
_LAYOUT = "an image folder holds train/CLASS/*.jpg and val/CLASS/*.jpg"


@dataclass(frozen=True, kw_only=True)
class FolderImages(Images):
    """Images in files, read when they are needed."""

    paths: tuple[str, ...]

    def load(self, index: Tensor, draw: numpy.random.Generator | None) -> Tensor:
        """See `Images.load`; cut out of 8 to 100 % of an image as in https://arxiv.org/abs/1409.4842. Without `draw`
        it is the middle."""
        # each image has a seed of its own: readers run at the same time
        seeds = draw.integers(1 << 32, size=len(index)) if draw else [None] * len(index)
        images = list(_readers().map(self._read, index.tolist(), seeds))
        return ((torch.stack(images).float() / 255 - _MEAN) / _DEVIATION).permute(0, 3, 1, 2).contiguous()

    def _read(self, number: int, seed: int | None) -> Tensor:
        """Pixels (height, width, channels)."""
        path = self.paths[number]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(f"{path} cannot be read as an image: {error}") from error
        # the middle, to evaluate; a random part, to train
        if seed is None:
            cut = ImageOps.fit(image, (self.pixels, self.pixels), Image.Resampling.BILINEAR, bleed=_BLEED)
        else:
            cut = cut_out(image, self.pixels, numpy.random.default_rng(seed))
        return torch.from_numpy(numpy.array(cut))


@cache
def _readers() -> ThreadPoolExecutor:
    """One for each core that a rank of this machine has; Pillow lets go of the interpreter while it decodes."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return ThreadPoolExecutor(max(1, int(cores_of_one(here))), "images")


def cut_out(image: Image.Image, pixels: int, draw: numpy.random.Generator) -> Image.Image:
    """A random part of the image, every other one mirrored, scaled to `pixels` along a side."""
    # a part of random area and shape
    area = image.width * image.height * draw.uniform(*_SCALE)
    ratio = exp(draw.uniform(log(_RATIO[0]), log(_RATIO[1])))
    width = min(image.width, max(1, round(sqrt(area * ratio))))
    height = min(image.height, max(1, round(sqrt(area / ratio))))
    left, top = int(draw.integers(image.width - width + 1)), int(draw.integers(image.height - height + 1))
    part = image.resize((pixels, pixels), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    return ImageOps.mirror(part) if draw.random() < 0.5 else part


@cache
def image_folder(folder: Path, pixels: int) -> Splits:
    """The images below train and val; the classes are the folders of train, in the order of their names.

    Raises ValueError for a folder without them, and for a class of val that train does not have."""
    classes = [entry.name for entry in _folders(folder / "train")]
    number = {name: label for label, name in enumerate(classes)}
    if unknown := [entry.name for entry in _folders(folder / "val") if entry.name not in number]:
        raise ValueError(f"{folder / 'val' / unknown[0]} is a class that {folder / 'train'} does not have")
    return _split(folder / "train", number, pixels), _split(folder / "val", number, pixels)


def _split(folder: Path, number: dict[str, int], pixels: int) -> FolderImages:
    found = [(path, number[entry.name]) for entry in _folders(folder) for path in _images(entry.path)]
    if not found:
        raise ValueError(f"no image file in {folder}: {_LAYOUT}")
    paths, labels = zip(*found, strict=True)
    return FolderImages(paths=paths, labels=torch.tensor(labels), channels=3, pixels=pixels)


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}: {_LAYOUT}")
    found = sorted((entry for entry in os.scandir(folder) if entry.is_dir()), key=lambda entry: entry.name)
    if not found:
        raise ValueError(f"no class in {folder}: {_LAYOUT}, each class in a folder of its own")
    return found


def _images(folder: str) -> Iterator[str]:
    """In the order of their names."""
    names = sorted(entry.name for entry in os.scandir(folder))
    return (os.path.join(folder, name) for name in names if os.path.splitext(name)[1].lower() in _ENDINGS)
