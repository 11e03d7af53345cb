"""Arrays that take minutes to make from files, kept on disk between runs and shared by the ranks of a machine."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import warn

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor


def cached(
    name: str, files: Sequence[Path], make: Callable[[], Mapping[str, NDArray[numpy.generic]]]
) -> dict[str, Tensor]:
    """The arrays that `make` makes of `files`, mapped into memory; `name` has all else that they depend on.

    They are made anew when a file's size or time changes, and lie below $XDG_CACHE_HOME/gradwire,
    by default ~/.cache/gradwire. Where they cannot be kept, they are made by each process, with a warning."""
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    home = _cache() / f"{name.partition(' ')[0]}-{sha256(repr((name, stats)).encode()).hexdigest()[:16]}"
    # made once, by the first rank that needs them
    if not os.path.isdir(home):  # or this user may not look
        arrays = make()
        try:
            _keep(home, arrays)
        except OSError as error:
            warn(
                f"arrays are made anew by each process: {error}; set XDG_CACHE_HOME to a folder to keep them",
                stacklevel=2,
            )
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
    # copy-on-write: torch wants memory that may be written to
    return {path.stem: torch.from_numpy(numpy.load(path, mmap_mode="c")) for path in home.glob("*.npy")}


def _cache() -> Path:
    # a user without a name or HOME has the home that containers give such a one: /
    home = os.path.expanduser("~").removeprefix("~") or "/"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache")) / "gradwire"


def _keep(home: Path, arrays: Mapping[str, NDArray[numpy.generic]]) -> None:
    """Writes the arrays beside and renames their folder, so that other ranks see all of them or none."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent) as beside:
        made = Path(beside, "arrays")
        made.mkdir()
        for name, array in arrays.items():
            numpy.save(made / f"{name}.npy", array, allow_pickle=False)
        # renaming is atomic; where another rank was first, its arrays are the same
        with suppress(OSError):
            made.rename(home)
