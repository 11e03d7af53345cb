"""Who carries bytes: the one seam between the algorithms and the network."""

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from gradwire.collective import Broadcast, Collective, Local, Sum


class Pending(Protocol):
    """A collective that was started."""

    def wait(self) -> None:
        """Returns once the collective's `result` may be read; raises RuntimeError when a rank is lost.

        On CUDA it orders the current stream after the collective and returns at once."""
        ...


class Done:
    """What is complete from the start."""

    def wait(self) -> None:
        """Nothing to wait for."""


class Transport(ABC):
    """Runs collectives among `world` ranks, in the order in which every rank starts them.

    Where ranks share hosts, `local` carries what stays inside a host and the transport itself what leaves it;
    then `rank` and `world` count hosts.
    """

    rank: int
    world: int
    local: "Transport | None" = None

    @property
    def ranks(self) -> int:
        """How many ranks there are in all."""
        return self.world * (self.local.world if self.local else 1)

    @property
    def place(self) -> int:
        """This rank's number among all of them."""
        return self.rank * self.local.world + self.local.rank if self.local else self.rank

    @abstractmethod
    def start(self, op: Collective) -> Pending:
        """Starts `op` without waiting for it."""

    def run(self, op: Collective) -> None:
        """Starts `op` and waits for it."""
        self.start(op).wait()

    def sum_over_all(self, tensor: Tensor) -> None:
        """Adds up `tensor` over all ranks, those of the same host included, in place."""
        if self.local:
            self.run(Local(Sum(tensor)))
        self.run(Sum(tensor))

    def from_first(self, tensor: Tensor) -> None:
        """Gives all ranks the `tensor` of the first, in place."""
        if self.local:
            self.run(Local(Broadcast(tensor, 0)))
        self.run(Broadcast(tensor, 0))

    def abort(self, reason: str) -> None:  # noqa: B027
        """Gives up: the other ranks' collectives end with an error instead of waiting for this one."""

    def close(self) -> None:  # noqa: B027
        """Gives back what the transport holds; no collective may be under way."""

    def failure(self) -> str | None:
        """Why another rank gave up, where it could say so."""
        return None
