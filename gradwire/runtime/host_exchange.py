"""Ranks that share hosts: dense inside a host, compressed between hosts."""

from torch import Tensor

from gradwire.collective import HOST, Broadcast, Collective, Sum
from gradwire.compressors import Reduction
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import Gradients
from gradwire.plans import Group
from gradwire.runtime.exchange import Given, GroupExchange, JobContext, ReplicaExchange, flagged
from gradwire.runtime.store import StoredGroup


class HostExchange(GroupExchange):
    """Sums inside the host, lets one of its ranks reduce the sum with its peers on other hosts, and hands the mean
    out inside the host. Which rank does takes turns from group to group; what another one still keeps for a group, of
    a plan in which it was its turn, goes out with the next sum."""

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        assert job.mesh.host is not None
        self._host, self._hosts = job.mesh.host, job.mesh.replica.world
        self._between = ReplicaExchange(group, index, stored, job)
        self._leader = index % self._host.world
        self.group, self.index, self.stored = group, index, stored
        self.context, self.nonfinite = self._between.context, self._between.nonfinite
        self.rounds = self._between.rounds + 2
        self.compresses = self._host.rank == self._leader

    def run(self, given: Given, step: int) -> Reduction:
        self.given = given
        self.nonfinite.zero_()
        message = self.context.numbers("host", self.stored.layout.numel)
        self._take_in(message.body, given)
        yield from flagged(_one(Sum(message, HOST)), self.nonfinite)
        if self.compresses:
            yield from self._between.reduce(
                Given(Gradients.of_vector(self.stored.layout, message.body), given.absent), step
            )
        else:
            for _ in range(self._between.rounds):
                yield None
        yield from flagged(_one(Broadcast(message, self._leader, HOST)), self.nonfinite)
        given.gradients.take(message.body, given.scale)

    def commit(self) -> None:
        if self.compresses:
            self._between.commit()
        elif self.stored.has_residual:
            assert self.given is not None
            self.stored.spend(whole=not self.given.absent)

    def _take_in(self, x: Tensor, given: Given) -> None:
        """This rank's part of the host's mean, (n,)."""
        share = given.share(self._host.world)
        gradient = given.lazily(x, share, self.nonfinite)
        if self.compresses or not self.stored.has_residual:
            given.finish(gradient, share).total()
            return
        before, after = self.stored.flat[RESIDUAL]
        given.finish(gradient.onto(before, x, self._hosts), share).total()
        after.zero_()
        for slot in given.absent:
            self.stored.layout.parts(after)[slot].copy_(self.stored.layout.parts(before)[slot])


def _one(op: Collective) -> Reduction:
    yield op
