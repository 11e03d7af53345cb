"""Checkpoints of a training, written whole or not at all, and read without pickle.

One lies in a folder `checkpoint-STEP`: a file for every rank, and one for what all ranks share, which is written when
all others are there. So a checkpoint without it is none.
"""

import re
import shutil
from pathlib import Path
from typing import Any

from gradwire import atomic_file
from gradwire.atomic_file import save, sync

SHARED = "shared"
ANEW = "start this run anew, without --resume"
_FOLDER = re.compile(r"checkpoint-(\d+)")


def write(home: Path, step: int, part: str, state: dict[str, Any]) -> None:
    """Writes one file, which gets its name once it is on the disk."""
    save(state, _path(home, step, part))
    sync(home)


def read(home: Path, step: int, part: str) -> dict[str, Any]:
    """Reads one file, its tensors to the CPU. Raises OSError, with its path, if it cannot be read."""
    try:
        return atomic_file.read(_path(home, step, part), ANEW)
    except ValueError as error:
        # of which the command line makes one line, also where it is a rank
        raise OSError(error) from error


def newest(home: Path) -> int:
    """The last step with a whole checkpoint, 0 where there is none."""
    return max((step for step in _steps(home) if _path(home, step, SHARED).is_file()), default=0)


def remove_before(home: Path, step: int) -> None:
    """Removes checkpoints of earlier steps."""
    for older in _steps(home):
        if older < step:
            # another rank may be at it as well
            shutil.rmtree(_path(home, older, SHARED).parent, ignore_errors=True)


def _steps(home: Path) -> list[int]:
    matches = (_FOLDER.fullmatch(entry.name) for entry in home.iterdir()) if home.is_dir() else ()
    return [int(match[1]) for match in matches if match]


def _path(home: Path, step: int, part: str) -> Path:
    return home / f"checkpoint-{step}" / f"{part}.pt"
