"""Atomic writes: a file is whole, or not there."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import torch

from gradwire.options import check_type

STALE_S = 3600.0
"""A file to which nothing was written for so long was left by a writer that was killed."""


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


def read(path: Path, instead: str) -> dict[str, Any]:
    """Loads a file that `save` wrote, to the CPU. Raises ValueError, with the path and what to do `instead`, if that
    fails."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has many kinds
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} cannot be read ({why}); {instead}") from error


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` when all of it is on the disk; after an error it does not."""
    # in the same folder, as a rename is atomic within one file system; another process may write `path`, too
    partial = path.with_name(f".{path.name}.{token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            _remove_stale(path, partial)
            yield file
            file.flush()
            # the content is on the disk before it gets the name, and the name before we return
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _remove_stale(path: Path, own: Path) -> None:
    """Removes what killed writers of `path` have left, by the clock that the file system has given `own`."""
    now = own.stat().st_mtime
    for other in path.parent.glob(f".{escape(path.name)}.*.partial"):
        # another writer may have removed it, or be another user's
        with suppress(OSError):
            if other.stat().st_mtime < now - STALE_S:
                other.unlink()


def sync(folder: Path) -> None:
    """Waits until a folder's names are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
