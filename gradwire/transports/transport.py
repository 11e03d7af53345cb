"""The interface of transports, the one seam between the algorithms and the network."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from gradwire.collective import Collective

OF_THIS_RANK = ("invalid usage", "out of memory")
"""NCCL's words for wrong use, and for a call of CUDA that found no memory."""


class Lost(RuntimeError):
    """A collective ended because of another rank, which failed or is gone."""


@contextmanager
def of_others() -> Iterator[None]:
    """A context of a transport's calls, whose errors are other ranks', and become `Lost`; but not those of this rank's
    memory and device, also in NCCL, nor of wrong use, as where two ranks have one GPU."""
    try:
        yield
    except (Lost, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (RuntimeError, ConnectionError, TimeoutError) as error:
        if any(words in str(error) for words in OF_THIS_RANK):
            raise
        raise Lost(str(error)) from error


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Returns when the received tensors may be read; raises RuntimeError when a rank is lost.

        On CUDA it orders the current stream after the collective and returns at once."""
        ...


class Done:
    """A collective that is complete from the start."""

    def wait(self) -> None:
        """Nothing to wait for."""


class KeyValueStore(Protocol):
    """A store of texts for all ranks, by which they meet before any collective is safe."""

    def set(self, key: str, value: str) -> None:
        """Sets a key's text."""
        ...

    def get(self, key: str, timeout_s: float) -> str | None:
        """A key's text, once it is there; None where it is not within `timeout_s`."""
        ...

    def add(self, key: str, number: int) -> int:
        """Adds to a key's number, which is 0 at first; returns the sum."""
        ...

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all the keys have texts; one question."""
        ...

    def delete(self, key: str) -> None:
        """Deletes a key and its text."""
        ...


class Transport(ABC):
    """A carrier of collectives among `world` ranks, which start them in the same order."""

    rank: int
    """This rank's number."""
    world: int
    """The number of ranks."""
    store: KeyValueStore
    timeout_s: float = 60.0
    """How long a rank waits for another one."""
    jobs: int = 0
    """How many jobs have begun on it."""
    needs_polling: bool = False
    """A wait may not notice a lost rank, as on NCCL, where all return at once. Then `lost` is asked every second."""
    look_s: float = 1.0
    """Seconds between two questions for `lost`: more where thousands of ranks ask one store."""
    silent: int | None = None
    """The rank without a sign of life, where `lost` has found one."""

    @property
    def gives_up_s(self) -> float:
        """Seconds after which the others go on without a rank that does not run."""
        return self.timeout_s

    @property
    def carrier(self) -> object:
        """What carries one job at a time: by default this object."""
        return self

    @abstractmethod
    def start(self, op: Collective) -> Pending:
        """Starts `op`; its tensors are the transport's until the wait is over."""

    def run(self, op: Collective) -> None:
        """Starts `op` and waits for it."""
        self.start(op).wait()

    def open(self, device: torch.device) -> None:  # noqa: B027
        """Makes, before the first step, the connections that a collective of such tensors would make. All ranks call
        this together."""

    def check(self, device: torch.device) -> None:  # noqa: B027
        """Raises ValueError, naming what works, where it cannot carry tensors of this device."""

    def abort(self, reason: str) -> None:  # noqa: B027
        """Ends all ranks' collectives with an error."""

    def close(self) -> None:  # noqa: B027
        """Closes the transport; no collective may be under way."""

    def failure(self) -> str | None:
        """The reason that another rank left when it aborted, if any."""
        return None

    def lost(self, waits: bool) -> str | None:
        """The reason why the collectives under way will not end; None while they may. Asked where the transport
        `needs_polling`, every `look_s` seconds, on a thread of its own; `waits`: whether this rank has waited for
        others for some time."""
        return None
