"""Atomic writes: a file is whole, or not there."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from gradwire.options import check_type


def save(state: Mapping[str, Any], path: str | Path) -> None:
    """Writes a state dict beside `path`, waits until it is on the disk, and only then gives it its name: whenever a
    host crashes, the file is the old one or the new one, whole. `torch.load(path, map_location="cpu",
    weights_only=True)` reads it."""
    check_type("state", state, (Mapping,), "handle.state_dict()", optional=False)
    check_type("path", path, (str, Path), '"gradwire.pt"', optional=False)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        torch.save(dict(state), file)


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` when all of it is on the disk; after an error it does not."""
    # in the same folder: a rename is atomic within one file system
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        yield file
        file.flush()
        # the content is on the disk before it gets the name, and the name before we return
        os.fsync(file.fileno())
    partial.replace(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Waits until a folder's names are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
