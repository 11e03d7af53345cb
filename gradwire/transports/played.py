"""A transport that plays one rank of N: the real step of one rank, behind a network card that is played."""

from functools import partial

import torch

from gradwire.collective import HOST, REPLICA, AllToAll, Broadcast, Collective, Gather, SendReceive, Sum
from gradwire.transports.card import Card
from gradwire.transports.echo import Echo, echo
from gradwire.transports.mesh import Mesh
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


class Played(Transport):
    """Rank 0 of `world`, without the others. A collective takes the time that its messages need on the `card`, by the
    costs of rings, trees and all-to-all; the payloads that come are as many and as large as N ranks would send, and all
    of them this rank's own. Ranks that share `hosts`, with a card each, pass on inside them for nothing.

    So a step takes what one rank computes and what the bytes need. It does not know of other ranks that are slower, of
    jitter, of congestion, or of what a backend's own threads compute.
    """

    def __init__(self, world: int, card: Card, hosts: int | None = None) -> None:
        if world < 1:
            raise ValueError(f"{world} ranks cannot be played; use e.g. Played(8, Card(50e-6, 1e9))")
        self.rank, self.world, self.hosts, self.card, self.store = 0, world, hosts or world, card, Echo(world)

    @classmethod
    def by_host(cls, hosts: int, ranks_per_host: int, card: Card, inside: Card) -> Mesh:
        """The axes of `hosts` with a `card` each and so many ranks, which pass messages among themselves `inside`. It
        plays a rank that leads all groups: one that waits for another leader would have nothing to wait for."""
        axes = {REPLICA: cls(hosts, card), HOST: cls(ranks_per_host, inside)}
        return Mesh(axes, Echo(hosts * ranks_per_host), leaders=1)

    def start(self, op: Collective) -> Pending:
        seconds = self.card.seconds(self.ways(op))
        return self.card.carry(seconds, op.send.whole.device, partial(echo, op, self.rank, self.world))

    def ways(self, op: Collective) -> list[Wire]:
        """The ways in which a backend may carry it, of which it takes the fastest."""
        match op:
            case Sum(message):
                # all ranks are in one ring, whose latency is that between hosts
                ring = all_reduce(message.whole.nbytes, self.world).wire_bytes
                around = Wire(all_reduce(0, self.hosts).messages, ring)
                return [around, all_reduce_by_trees(message.whole.nbytes, self.hosts)]
            case Gather(send):
                return [all_gather(send.whole.nbytes, self.world)]
            case AllToAll(send):
                return [all_to_all(send.whole.nbytes, self.world)]
            case Broadcast(message):
                return [
                    broadcast(message.whole.nbytes, self.world), broadcast_around(message.whole.nbytes, self.world)
                ]  # fmt: skip
            case SendReceive(send, _, target, source):
                # one in each direction, at once
                alone = target is None and source is None
                return [Wire(0, 0) if alone else Wire(1, send.whole.nbytes)]

    def open(self, device: torch.device) -> None:
        """Measures a GPU's clock, before the first step."""
        self.card.carry(0.0, device, lambda: None).wait()
