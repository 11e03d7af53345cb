"""A command's ranks, and the folder for its files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from errno import ENOSPC
from pathlib import Path
from shutil import disk_usage
from tempfile import gettempdir
from typing import Any

from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.network.link import LOOPBACK, REAL, link_of
from gradwire.launched import is_launched, started

_FULL_BYTES = 1 << 20
"""Less than this is a full disk."""


def ranks_of(hosts: int | None, shard: int = 1) -> int:
    """The number of ranks, `shard` to a host: those that run already, or by default 2 hosts. Raises ValueError where
    those cannot find each other."""
    if hosts is None and is_launched():
        return started()[1]
    return (2 if hosts is None else hosts) * shard


def cuts_here(cuts: dict[str, Any]) -> dict[str, Any]:
    """A suite's cuts; where ranks run already, their number and their own network in place of the published ones."""
    if not is_launched():
        return cuts
    return cuts | {"ranks": ranks_of(cuts["ranks"]), "link": cuts["link"] or REAL}


def leads() -> bool:
    """Whether this process, and not another rank of the same job, shows the results."""
    return not is_launched() or os.environ["RANK"] == "0"


def cluster_of(hosts: int | None, link: str | None, device: str, shard: int = 1) -> LabCluster:
    """The ranks and their links. Raises ValueError for bad numbers and links."""
    return LabCluster(ranks_of(hosts, shard), link_of(link or LOOPBACK), device, shard)


def run_folder(out: Path, name: str) -> Path:
    """A folder of a run's own, named by the time. The process that leads makes it at once, so that a disk that cannot
    be written is noticed before hours of measuring, not after."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    folder, number = out / stem, 1
    if not leads():
        return folder
    if out.exists() and not out.is_dir():
        raise OSError(f"{out} is no folder: name one for --out")
    # the first free name
    out.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another run began in the same second
            number += 1
            folder = out / f"{stem}-{number}"


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Prints the folder on the process that leads, and again where the run is stopped; removes it where nothing is in
    it then.

    Raises OSError, naming the folder, where its disk is full."""
    if not leads():
        yield
        return
    try:
        print(f"writing to {folder}", file=sys.stderr)
        with named_if_full(folder):
            yield
    except (KeyboardInterrupt, SystemExit):
        there = f"what there is by now is in {folder}" if any(folder.glob("*")) else "nothing was measured yet"
        print(f"stopped; {there}", file=sys.stderr)
        raise
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def named_if_full(path: Path) -> Iterator[None]:
    """Names the disk where something fails because it is full: this path's, or that of temporary files."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # which disk is full?
        full = [where for where in (path.parent, Path(gettempdir())) if disk_usage(where).free < _FULL_BYTES]
        if not full and getattr(error, "errno", None) != ENOSPC:
            raise
        raise OSError(f"no space is left on the disk of {full[0] if full else path}: {error}") from error
