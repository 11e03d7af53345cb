"""Downloads of public image sets, by torchvision's code, which holds every file against its checksum."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradwire.unknown import unknown

SETS = ("mnist", "fashion-mnist", "cifar10", "cifar100")
_CIFAR = {
    "cifar10": ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    "cifar100": ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
}
"""Archive, MD5 and folder of the binary version, for torchvision's is pickled. https://www.cs.toronto.edu/~kriz/."""
_TORONTO = "https://www.cs.toronto.edu/~kriz/"


def download(name: str, folder: Path) -> Path:
    """Downloads a set into `folder`, but for what is there; returns the folder that the task of this name reads.

    Raises ValueError for an unknown set and without torchvision, and OSError where there is no network."""
    if name not in SETS:
        raise unknown("set to download named", name, SETS)
    try:
        from torchvision import datasets  # pyright: ignore[reportMissingImports]
        from torchvision.datasets.utils import (  # pyright: ignore[reportMissingImports]
            download_and_extract_archive,
            download_url,
        )
    except (ImportError, RuntimeError) as error:  # the latter where it was built for another torch
        raise ValueError(
            f"torchvision downloads, which cannot be imported ({error}): install the one for this torch, or put the "
            f"files into {folder} yourself"
        ) from error
    # CIFAR is an archive, MNIST and what looks like it four files
    try:
        if name in _CIFAR:
            archive, md5, inside = _CIFAR[name]
            download_and_extract_archive(_TORONTO + archive, folder, md5=md5)
            return folder / inside
        known: Any = datasets.MNIST if name == "mnist" else datasets.FashionMNIST
        for file, md5 in known.resources:
            _first_that_answers([(f"{mirror}{file}", folder, file, md5) for mirror in known.mirrors], download_url)
        return folder
    except (OSError, RuntimeError) as error:
        raise OSError(f"{name} cannot be downloaded: {error}; put its files into {folder} yourself") from error


def _first_that_answers(places: Sequence[tuple[Any, ...]], get: Callable[..., None]) -> None:
    """Gets a file from one of several places. Raises what the last of them raises."""
    for number, place in enumerate(places, 1):
        try:
            return get(*place)
        except (OSError, RuntimeError):
            if number == len(places):
                raise
