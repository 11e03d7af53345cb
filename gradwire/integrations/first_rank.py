"""The state in a trainer's checkpoint: rank 0 keeps that of all ranks, and hands it out where training resumes. Other
hosts may see another file, or none."""

import logging
from collections.abc import Callable
from pathlib import Path

from gradwire.atomic_file import read, save
from gradwire.checkpoint import StateDict
from gradwire.frontends import Handle

FILE = "gradwire.pt"
_log = logging.getLogger("gradwire")


def state_of_all(handle: Handle) -> StateDict:
    """The state of all ranks, which call this together; empty after `detach()`, with which memories are gone."""
    return {} if handle.detached else handle.state_dict(all_ranks=True)


def keep_file(handle: Handle, folder: str | Path, first: bool) -> None:
    """Writes the state of all ranks to a folder of the first one's; all of them call this. A detached job has none."""
    if (state := state_of_all(handle)) and first:
        save(state, Path(folder) / FILE)


def read_file(folder: str | Path) -> StateDict | None:
    """Reads the state from gradwire.pt in a folder; None where that is not there, as when training began without
    Gradwire. Raises ValueError, with the path, if it cannot be read."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    # on the host: it may have been saved on another GPU
    return read(path, "resume from an earlier checkpoint")


def load_first(handle: Handle, state: StateDict | None, error: str = "") -> bool:
    """Loads the `state` that rank 0 has, on all ranks, which call this together; returns whether it has one. Raises
    ValueError, on all of them, with rank 0's `error`, or where they cannot load its state. A detached job loads
    nothing, and misses nothing."""
    if handle.detached:
        return True
    state, error = handle.from_first((state, error))
    if error:
        raise ValueError(error)
    if state is not None:
        handle.load_state_dict(state)
    return state is not None


def load_or_warn(handle: Handle, state: StateDict | None) -> None:
    """Loads the `state` that rank 0 has, on all ranks, which call this together, or warns that it has none. Other hosts
    may have files of their own."""
    if not load_first(handle, state):
        _log.warning("the checkpoint has nothing of Gradwire; training goes on without its memories")


def load_read(handle: Handle, first: bool, read: Callable[[], StateDict | None], checkpoint: object) -> None:
    """Has rank 0 `read` the state that the `checkpoint` has, which all ranks load as by `load_first`, or warns that it
    has none. If reading fails, all raise ValueError."""
    state, error = None, ""
    if first:
        try:
            state = read()
        except Exception as failed:  # also those of a framework that fetches files
            error = str(failed) or type(failed).__name__
    if not load_first(handle, state, error) and checkpoint and first:
        _log.warning("%s has no %s; training goes on without that checkpoint's memories", checkpoint, FILE)
