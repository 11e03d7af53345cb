"""A transport that plays one rank of N: the real step of one rank, behind a network card that is played."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from gradwire.collective import HOST, REPLICA, AllToAll, Broadcast, Collective, Gather, SendReceive, Sum
from gradwire.transports.card import CPU, Card
from gradwire.transports.mesh import Mesh
from gradwire.transports.others import Others
from gradwire.transports.recording import Echo, echo
from gradwire.transports.transport import Pending, Transport
from gradwire.wire import (
    Wire,
    all_gather,
    all_reduce,
    all_reduce_by_trees,
    all_to_all,
    broadcast,
    broadcast_around,
)


@dataclass(frozen=True)
class SentCollective:
    """A collective as its cost sees it: its kind, and bytes that do not depend on the number of ranks."""

    kind: str
    """The class of the collective; "Parts" is a gather of parts of a vector."""
    nbytes: int
    """That one rank sends or, of parts, has in all."""
    nccl: bool = True
    """Over NCCL, which also knows trees for sums, and rings for broadcasts; gloo does not."""

    @classmethod
    def of(cls, op: Collective, world: int) -> Self:
        """The collective among `world` ranks."""
        nbytes, nccl = op.send.whole.nbytes, op.send.whole.device != CPU
        match op:
            case Gather() if op.parts:
                return cls("Parts", world * nbytes, nccl)
            case SendReceive(target=None, source=None):
                # a turn in which this rank has no part
                return cls("SendReceive", 0, nccl)
            case _:
                return cls(type(op).__name__, nbytes, nccl)

    def ways(self, world: int, hosts: int) -> list[Wire]:
        """The ways in which a backend may carry it among `world` ranks, of which it takes the fastest. Ranks that share
        one of the `hosts`, each with a card, pass on inside it for nothing."""
        match self.kind:
            case Sum.__name__:
                # all ranks are in one ring, whose latency is that between hosts
                ring = Wire(all_reduce(0, hosts).messages, all_reduce(self.nbytes, world).wire_bytes)
                return [ring, all_reduce_by_trees(self.nbytes, hosts)] if self.nccl else [ring]
            case Gather.__name__:
                return [all_gather(self.nbytes, world)]
            case "Parts":
                return [all_gather(self.nbytes // world, world)]
            case AllToAll.__name__:
                return [all_to_all(self.nbytes, world)]
            case Broadcast.__name__:
                down = broadcast(self.nbytes, hosts)
                return [down, broadcast_around(self.nbytes, hosts)] if self.nccl else [down]
            case _:
                # one message in each direction, at once
                return [Wire(1 if self.nbytes else 0, self.nbytes)]


class Played(Transport):
    """Rank 0 of `world`, without the others. A collective takes the time that its messages need on the `card`, by the
    costs of rings, trees and all-to-all; the payloads that come are as many and as large as N ranks would send, and all
    of them this rank's own: this step's or, with `others`, those of other batches.

    So a step takes what one rank computes and what the bytes need. Slower ranks, congestion and the computing of a
    backend's own threads are not played.
    """

    def __init__(self, world: int, card: Card, hosts: int | None = None, others: Others | None = None) -> None:
        if world < 1:
            raise ValueError(f"{world} ranks cannot be played; use e.g. Played(8, Card(50e-6, 1e9))")
        self.rank = 0
        self.world = world
        self.hosts = hosts or world
        self.card = card
        self.store = Echo(world)
        self.others = others
        self.sent: Counter[SentCollective] = Counter()

    def by_host(self, ranks_per_host: int, inside: Card) -> Mesh:
        """The axes of a host at each of these ranks, and of so many ranks on each, which pass messages among themselves
        `inside`. It plays a rank that leads all groups: one that waits for another leader would have nothing to wait
        for."""
        axes = {REPLICA: self, HOST: Played(ranks_per_host, inside)}
        return Mesh(axes, Echo(self.world * ranks_per_host), leaders=1)

    def start(self, op: Collective) -> Pending:
        sent = SentCollective.of(op, self.world)
        self.sent[sent] += 1
        seconds = self.card.seconds(sent.ways(self.world, self.hosts))
        return self.card.carry(seconds, op.send.whole.device, partial(self._arrive, op))

    def _arrive(self, op: Collective) -> None:
        # payloads of groups alone: their messages are kept from step to step, and have flags
        others = self.others if op.receive.flags is not None else None
        match op:
            case Gather(parts=None) if others:
                others.send(op.send, op.receive, self.rank)
            case AllToAll() if others:
                others.send(op.send.row(self.rank), op.receive, self.rank)
            case _:
                echo(op, self.rank, self.world)

    def open(self, device: torch.device) -> None:
        """Measures a GPU's clock, before the first step."""
        self.card.carry(0.0, device, lambda: None).wait()
