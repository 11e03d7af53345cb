"""The exchange of ranks that share hosts: dense inside a host, compressed between hosts."""

from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import HOST, Broadcast, Collective, Message, Sum, aligned
from gradwire.communicators.flags import flagged
from gradwire.compressors import DoubleBuffer, Reduction, SlotState
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import Gradients
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group
from gradwire.runtime.exchanges.exchange import GroupExchange, JobContext
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.replica_exchange import ReplicaExchange
from gradwire.runtime.state.stored_group import StoredGroup
from gradwire.torch_private.foreach import copy_each


class HostExchange(GroupExchange):
    """Sums inside the host, has one of its ranks, the group's leader, reduce the sum with its peers on other hosts, and
    broadcasts the mean inside the host, and the small tensors of slots. The ranks of a host lead its groups in turn.
    Where a plan gives a group another leader, the group's next step moves the state there from the rank that led it
    before: each kind of state by a sum inside the host, or, where the plan has no memory, the residual with the
    gradients."""

    why_not_recorded: ClassVar[str] = 'groups that are summed along the axis "host" are not recorded'

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        super().__init__(group, index, stored)
        assert job.mesh.host is not None
        self._host, self._hosts = job.mesh.host, job.mesh.replica.world
        # between hosts, the rank that leads this group exchanges; groups take turns
        self._between = ReplicaExchange(group, index, stored, job)
        self._leader = index % job.mesh.leaders
        self.context, self.nonfinite = self._between.context, self._between.nonfinite
        # state that moves to this leader in this step; the leaders before it; gradients of slots that this rank lacks
        self._moved = list[str]()
        self._led_before = stored.leader_of
        self._unused = dict[int, Tensor]()
        # moved state, the host's sum, the leader's rounds, the mean, and small tensors, if any
        self.rounds = len(stored.kinds) + self._between.rounds + 2 + bool(stored.slot_state.buffers)
        self.compresses = self._host.rank == self._leader

    def run(self, given: GroupInput, step: int) -> Reduction:
        self.input = given = given.sent_by(self.group)
        self._between.check_size(step)
        self._between.begin(given, step)
        yield from self._move_to_leader()
        # sum inside the host
        message = self.context.numbers("host", self.stored.layout.numel)
        self._accumulate(message.body, given)
        yield from flagged(_one(Sum(message, HOST)), self.nonfinite)
        # the leader reduces between hosts
        if self.compresses:
            # no slot is absent: another rank of the host may have used it
            sums = Gradients.of_vector(self.stored.layout, message.body)
            between = GroupInput(sums, sent_scale=given.sent_scale, float_residual=given.float_residual)
            yield from self._between.reduce(between)
        else:
            for _ in range(self._between.rounds):
                yield None
        # broadcast inside the host
        yield from flagged(_one(Broadcast(message, self._leader, HOST)), self.nonfinite)
        self._unused = {slot: given.gradients.slot(slot).clone() for slot in given.absent}
        given.gradients.write_means(message.body, given.scale, self.nonfinite)
        if self.stored.slot_state.buffers:
            yield from self._share_small()

    def drop_gradients(self) -> None:
        super().drop_gradients()
        self._between.drop_gradients()

    def keep_absent(self, used: Tensor) -> None:
        super().keep_absent(used)
        # the means of slots that no rank used have residuals, which stay: as if they were not reduced
        unused, self._unused = self._unused, {}
        for slot, gradient in unused.items():
            mean = self.input.gradients.slot(slot)
            mean.copy_(torch.where(used[self.stored.slots[slot]] > 0, mean, gradient))

    def keep_slot(self, kind: str, before: Tensor, after: Tensor, used: Tensor) -> None:
        # the leader has encoded the slot with its host's sum, which counts where some rank used it
        after.copy_(torch.where(used > 0, after, before))

    def commit(self) -> None:
        self._led_before = self.stored.leader_of
        self.stored.leader_of = self.stored.leader_of | dict.fromkeys(self._moved, self._leader)
        if self.compresses:
            self._between.commit()
            return
        for kind in self._moved:
            self.stored.parts[kind].commit(used=False)
        self.stored.slot_state.commit()
        if self.stored.pending:
            self.stored.drop_pending_residual(whole=not self.input.absent)

    def take_back(self) -> None:
        super().take_back()
        self.stored.leader_of = self._led_before

    def _move_to_leader(self) -> Reduction:
        """Moves state to this group's leader from the rank of the host that led the group before, which keeps zeros."""
        self._moved = [kind for kind in self.stored.kinds if self.stored.leader_of.get(kind) != self._leader]
        for kind in self.stored.kinds:
            if kind not in self._moved:
                yield None
                continue
            # all but one are zeros, unless a state of other hosts was loaded
            part, (before, after) = self.stored.parts[kind], self.stored.flat[kind]
            whole = part.numbers_of(before, self.context.scratch).to(torch.float32, copy=True)
            yield Sum(Message.plain(whole), HOST)
            if self.compresses:
                self.context.flat[kind] = DoubleBuffer(torch.empty_like(before), after)
                part.keep(whole, self.context.flat[kind].read, self.context.shared_seed())
            else:
                after.zero_()

    def _share_small(self) -> Reduction:
        """Has all ranks of the host stage the small tensors that the leader has after this step. They are equal on all
        ranks in a state, and by the next plan another rank may lead the group."""
        small = self.context.buffers.once("small", lambda: SmallTensors(self.stored.slot_state, self.context.buffers))
        if self.compresses:
            small.pack()
        yield Broadcast(small.message, self._leader, HOST)
        if not self.compresses:
            small.stage()

    def _accumulate(self, x: Tensor, given: GroupInput) -> None:
        """x (n,) becomes this rank's part of the host's mean."""
        weight = given.weight(self._host.world, self._hosts)
        gradient = given.lazily(x, weight, self.nonfinite)
        if self.compresses or not self.stored.pending:
            given.finish(gradient, weight).total()
            return
        kept, after = self.stored.flat[RESIDUAL]
        part = self.stored.parts[RESIDUAL]
        before = part.numbers_of(kept, self.context.scratch)
        # a residual of this rank, from a plan in which it was the leader: it goes out with the sum
        given.finish(gradient.onto(given.as_sent(before), x, self._hosts), weight).total()
        after.zero_()
        # but not that of absent slots
        if given.absent:
            left = torch.zeros_like(x)
            for slot in given.absent:
                self.stored.layout.parts(left)[slot].copy_(self.stored.layout.parts(before)[slot])
            part.keep(left, after, self.context.own_seed())


class SmallTensors:
    """The small tensors of a group's slots, of any type and shape, in one message."""

    def __init__(self, state: SlotState, buffers: Workspace) -> None:
        self._state = state
        # each at a multiple of ALIGNED, as a view of any type must be
        kept = [(name, tensor) for name, both in state.buffers.items() for tensor in both.read]
        sizes = [aligned(tensor.nbytes) for _, tensor in kept]
        whole = buffers.tensor("small", (sum(sizes),), torch.uint8)
        self.message, self._places = Message.plain(whole), {name: list[Tensor]() for name in state.buffers}
        for (name, tensor), part in zip(kept, whole.split(sizes), strict=True):
            self._places[name].append(part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape))

    def pack(self) -> None:
        """Copies to the message what the tensors are after this step, if it is good."""
        for name, (now, after) in self._state.buffers.items():
            copy_each(self._places[name], after if name in self._state.staged else now)

    def stage(self) -> None:
        """Stages what has come with the message."""
        for name, (_, after) in self._state.buffers.items():
            copy_each(after, self._places[name])
        self._state.written(*self._state.buffers)


def _one(op: Collective) -> Reduction:
    yield op
