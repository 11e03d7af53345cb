"""The exchange of ranks that share hosts, dense inside a host and compressed between hosts; the exchanges of a plan."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import HOST, Broadcast, Collective, Sum
from gradwire.compressors import Reduction
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import Gradients
from gradwire.plans import Group, Plan
from gradwire.runtime.exchange import GroupExchange, JobContext, ReplicaExchange
from gradwire.runtime.flags import flagged
from gradwire.runtime.group_input import GroupInput
from gradwire.runtime.row_exchange import RowExchange
from gradwire.runtime.store import Store, StoredGroup


class HostExchange(GroupExchange):
    """Sums inside the host, has one of its ranks, the group's leader, reduce the sum with its peers on other hosts, and
    broadcasts the mean inside the host. Groups have leaders in turn. A residual that another rank still has, of a plan
    in which it was the leader, goes out with the next sum."""

    why_not_recorded: ClassVar[str] = 'groups that are summed along the axis "host" are not recorded'

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        assert job.mesh.host is not None
        self._host, self._hosts = job.mesh.host, job.mesh.replica.world
        # between hosts, the rank that leads this group exchanges; groups take turns
        self._between = ReplicaExchange(group, index, stored, job)
        self._leader = index % job.mesh.leaders
        self.group, self.index, self.stored = group, index, stored
        self.context, self.nonfinite = self._between.context, self._between.nonfinite
        self.rounds = self._between.rounds + 2
        self.compresses = self._host.rank == self._leader

    def run(self, given: GroupInput, step: int) -> Reduction:
        self.input = given
        self.nonfinite.zero_()
        # sum inside the host
        message = self.context.numbers("host", self.stored.layout.numel)
        self._accumulate(message.body, given)
        yield from flagged(_one(Sum(message, HOST)), self.nonfinite)
        # the leader reduces between hosts
        if self.compresses:
            sums = GroupInput(
                Gradients.of_vector(self.stored.layout, message.body), given.absent, float_residual=given.float_residual
            )
            self._between.enter(sums, step)
            yield from self._between.reduce(sums)
        else:
            for _ in range(self._between.rounds):
                yield None
        # broadcast inside the host
        yield from flagged(_one(Broadcast(message, self._leader, HOST)), self.nonfinite)
        given.gradients.write_means(message.body, given.scale)

    def commit(self) -> None:
        if self.compresses:
            self._between.commit()
        elif self.stored.has_residual:
            assert self.input is not None
            self.stored.spend(whole=not self.input.absent)

    def _accumulate(self, x: Tensor, given: GroupInput) -> None:
        """x (n,) becomes this rank's part of the host's mean."""
        weight = given.weight(self._host.world, self._hosts)
        gradient = given.lazily(x, weight, self.nonfinite)
        if self.compresses or not self.stored.has_residual:
            given.finish(gradient, weight).total()
            return
        kept, after = self.stored.flat[RESIDUAL]
        part = self.stored.parts[RESIDUAL]
        before = part.numbers_of(kept, self.context.scratch)
        # a residual of this rank, from a plan in which it was the leader: it goes out with the sum
        given.finish(gradient.onto(before, x, self._hosts), weight).total()
        after.zero_()
        # but not that of absent slots
        if given.absent:
            left = torch.zeros_like(x)
            for slot in given.absent:
                self.stored.layout.parts(left)[slot].copy_(self.stored.layout.parts(before)[slot])
            part.keep(left, after, self.context.own_seed())


def exchanges_for(plan: Plan, store: Store, job: JobContext) -> list[GroupExchange]:
    """The exchanges of a plan's groups and of sparse gradients, for which the store is arranged."""
    dense = HostExchange if job.mesh.host else ReplicaExchange
    # where there is a memory, a mean of any group that is not finite makes the step bad for all
    job = replace(job, keeps_state=lambda: store.keeps_state)
    return [
        (dense if index < len(plan.groups) else RowExchange)(group, index, stored, job)
        for index, (group, stored) in enumerate(zip(store.whole(plan).groups, store.groups, strict=True))
    ]


def _one(op: Collective) -> Reduction:
    yield op
