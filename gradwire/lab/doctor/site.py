"""The site that checks examine: one rank, and its ways to the others."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gradwire.collective import HOST, REPLICA, Collective, Message, Sum
from gradwire.lab.doctor.facts import Facts, names_of
from gradwire.runtime.meeting import Meeting
from gradwire.transports import Mesh, Pending, Transport
from gradwire.transports.bounded_calls import run_bounded
from gradwire.transports.mesh import ABORT_S
from gradwire.transports.torch_store import TorchStore

ALL, INSIDE, BETWEEN = "all ranks", "inside hosts", "between hosts"


class OverStore(Transport):
    """Ranks that only a store joins: they can meet, each waiting for the others for `patience_s`, but send nothing."""

    def __init__(self, rank: int, world: int, store: TorchStore, patience_s: float) -> None:
        self.rank = rank
        self.world = world
        self.store = store
        self.timeout_s = 2 * patience_s

    def start(self, op: Collective) -> Pending:
        raise RuntimeError("the ranks have no process group yet")


@dataclass
class Groups:
    """The transports of all ranks and, where several hosts have several ranks each, those inside and between them."""

    backend: str
    everyone: Transport
    by_host: Mesh | None = None

    @property
    def axes(self) -> dict[str, Transport]:
        """All transports by the name of their axis."""
        hosts = {} if self.by_host is None else {INSIDE: self.by_host.axes[HOST], BETWEEN: self.by_host.axes[REPLICA]}
        return {ALL: self.everyone, **hosts}

    @property
    def mesh(self) -> Mesh:
        """The mesh on which a model is trained."""
        return self.by_host or Mesh.of(self.everyone)

    def failure(self) -> str | None:
        """The reason that a rank left when it aborted."""
        return next(filter(None, (axis.failure() for axis in self.axes.values())), None)

    def abort(self, reason: str) -> None:
        """Ends all ranks' collectives, within ABORT_S on this one."""
        run_bounded([partial(axis.abort, reason) for axis in self.axes.values()], ABORT_S)

    def close(self) -> None:
        """Closes all transports."""
        for axis in self.axes.values():
            axis.close()


@dataclass
class Site:
    """This rank, its `device`, the `store` by which ranks meet, and `everyone`'s facts once they have met. `groups` are
    there once their check has made them. `doing` says how far a check has come, for one that does not end."""

    rank: int
    world: int
    device: torch.device
    store: Any
    patience_s: float
    everyone: list[Facts] = field(default_factory=list)
    groups: Groups | None = None
    works: bool = True
    """No check has left the groups in the middle of a collective."""
    doing: str = ""

    def meeting(self, name: str) -> Meeting:
        """Meetings of all ranks over the store alone, under a name that no other ones have."""
        store = TorchStore(f"gradwire/doctor/{name}", self.store)
        return Meeting(Mesh.of(OverStore(self.rank, self.world, store, self.patience_s)))

    @property
    def hosts(self) -> list[str]:
        """The ranks' hosts, once they have met."""
        return names_of(self.everyone)

    @property
    def carrying(self) -> Groups:
        """The groups, in a check that needs them."""
        assert self.groups is not None
        return self.groups

    def summed(self, seconds: float, axis: Transport | None = None) -> float:
        """The sum of the ranks' times along an axis, equal on all of them."""
        total = torch.tensor([seconds], dtype=torch.float32, device=self.device)
        (axis or self.carrying.everyone).run(Sum(Message.plain(total)))
        return float(total)
