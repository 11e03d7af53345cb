"""Ranks share hosts: dense inside a host, compressed between hosts."""

from gradwire.collective import Collective, Idle, Local
from gradwire.transports.base import Done, Pending, Transport


class Hierarchical(Transport):
    """Two levels: `local` joins the ranks of this host, `between` joins this rank's peers, one per host.

    A group's gradients are first summed inside each host. One local rank, in turn from group to group, then
    reduces the sum with its peers on the other hosts and hands the mean to its host. So each host sends what
    one rank would, all local ranks share the compressing, and memories lie with the rank that compresses.
    """

    def __init__(self, local: Transport, between: Transport) -> None:
        self.local, self.between = local, between
        self.rank, self.world = between.rank, between.world

    def start(self, op: Collective) -> Pending:
        if isinstance(op, Local):
            assert self.local is not None
            return self.local.start(op.inner)
        if isinstance(op, Idle):
            return Done()
        return self.between.start(op)

    def abort(self, reason: str) -> None:
        assert self.local is not None
        self.local.abort(reason)
        self.between.abort(reason)

    def close(self) -> None:
        assert self.local is not None
        self.local.close()
        self.between.close()

    def failure(self) -> str | None:
        assert self.local is not None
        return self.local.failure() or self.between.failure()
