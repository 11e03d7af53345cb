"""Notes in a job's store of backward passes that raised: by these all ranks know why a step counts for none."""

from contextlib import suppress

from gradwire.transports import Mesh


def note_raised(mesh: Mesh, step: int) -> None:
    """Notes that the backward pass of a step raised on this rank; called before the step is completed with zeros."""
    with suppress(RuntimeError):  # the store is gone
        mesh.store.set(_key(step), str(mesh.rank))
        # once that is answered, the note is there
        mesh.store.get(_key(step), 0)


def raised(mesh: Mesh, step: int) -> str | None:
    """The reason why no rank takes a step whose backward pass raised; None where it did not."""
    with suppress(RuntimeError):
        if rank := mesh.store.get(_key(step), 0):
            return f"since a backward pass raised on rank {rank}"
    return None


def _key(step: int) -> str:
    return f"raised/{step}/rank"
