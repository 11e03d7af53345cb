"""A comparison in a run's folder, so that it can go on where it was interrupted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from gradwire.atomic_file import whole
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.jobs import checkpoints
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.network.link import LOOPBACK, link_of
from gradwire.lab.results import Record, read_lines

FILE = "comparison.json"
METRICS = "metrics.jsonl"
_WITHOUT_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)
"""The errors of a file system that has no locks."""


def keep(folder: Path, comparison: Comparison, cluster: LabCluster) -> None:
    """Writes a comparison, so that it can be resumed; one that is resumed is there already."""
    if (folder / FILE).exists():
        return
    where = {"link": str(cluster.link or LOOPBACK), "device": cluster.device, "folder": str(Path.cwd())}
    # what a resumed run needs beside the checkpoints
    with whole(folder / FILE) as file:
        file.write(json.dumps(where | {"comparison": comparison.to_json()}, indent=1).encode() + b"\n")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds the run in a folder, where `keep` has written. Raises OSError where another process holds it."""
    with (folder / FILE).open("r+") as held:
        try:
            flock(held, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"another process trains in {folder}: wait until it ends, or end it") from error
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        yield


def kept(folder: Path) -> tuple[Comparison, LabCluster]:
    """Reads what `keep` wrote. Raises ValueError for a folder of another kind, and for a cluster that cannot be."""
    path = folder / FILE
    parts = [str(part.parent) for part in sorted(folder.glob(f"*/{FILE}"))]
    if parts and not path.is_file():
        raise ValueError(f"{folder} is of a suite: resume its parts one by one: {', '.join(parts)}")
    if not path.is_file():
        raise ValueError(f"no file {path}: a run that can be resumed was started with --checkpoint-every")
    data = _read(path)
    try:
        comparison = Comparison.from_json(data["comparison"])
        return comparison, LabCluster(comparison.ranks, link_of(data["link"]), data["device"], comparison.shard)
    except (AttributeError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} does not say what to resume ({why}); {checkpoints.ANEW}") from error


def begun_in(folder: Path) -> Path:
    """The working folder in which a run was begun, from which its paths of data, models and plans go; this one where
    that is gone."""
    path = folder / FILE
    begun = Path(_read(path).get("folder", ".")) if path.is_file() else Path()
    return begun if begun.is_dir() else Path()


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {checkpoints.ANEW}") from error


def records_kept(home: Path) -> list[Record]:
    """The records up to the newest checkpoint of one configuration; removes later ones, which will come again."""
    newest = checkpoints.newest(home)
    # later records come again when the steps are made again
    lines = [line for line, _ in read_lines(home / METRICS) if line["step"] <= newest]
    # a run that is killed here loses none
    with whole(home / METRICS) as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in lines)
    return [Record.from_line(line) for line in lines]
