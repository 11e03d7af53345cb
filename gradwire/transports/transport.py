"""Who carries bytes: the one seam between the algorithms and the network."""

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from gradwire.collective import Collective


class Pending(Protocol):
    """A collective that was started."""

    def wait(self) -> None:
        """Returns once what the collective receives may be read; raises RuntimeError when a rank is lost.

        On CUDA it orders the current stream after the collective and returns at once."""
        ...


class Done:
    """What is complete from the start."""

    def wait(self) -> None:
        """Nothing to wait for."""


class KeyValueStore(Protocol):
    """Where ranks leave words for each other: the one way to meet before any collective is safe."""

    def set(self, key: str, value: str) -> None:
        """Leaves a word."""
        ...

    def get(self, key: str, timeout_s: float) -> str | None:
        """A word, once it is there; None where it is not within `timeout_s`."""
        ...


class Transport(ABC):
    """Runs collectives among `world` ranks, in the order in which every rank starts them."""

    rank: int
    world: int
    store: KeyValueStore
    timeout_s: float = 60.0
    """How long a rank waits for another one."""
    jobs: int = 0
    """How many jobs have begun on it."""
    needs_polling: bool = False
    """Whether a wait may say nothing of a lost rank: on NCCL all return at once. Then `lost` is asked every second."""

    @abstractmethod
    def start(self, op: Collective) -> Pending:
        """Starts `op`; its tensors are the transport's until the wait is over."""

    def run(self, op: Collective) -> None:
        """Starts `op` and waits for it."""
        self.start(op).wait()

    def check(self, device: torch.device) -> None:  # noqa: B027
        """Raises ValueError, naming what works, where it cannot carry tensors of this device."""

    def abort(self, reason: str) -> None:  # noqa: B027
        """Gives up: the other ranks' collectives end with an error instead of waiting for this one."""

    def close(self) -> None:  # noqa: B027
        """Gives back what the transport holds; no collective may be under way."""

    def failure(self) -> str | None:
        """Why another rank gave up, where it could say so."""
        return None

    def lost(self) -> str | None:
        """Of a `silent` transport, why the collectives under way will not end; None while they may. Called on a thread
        of its own."""
        return None
