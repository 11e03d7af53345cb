"""One group's exchange: its gradients become the mean over the ranks, in place.

    turn 0       gradients and the old residual are added up in the new one and encoded; the first collective starts
    turns after  the collective before is over on this rank; the next one starts
    last turn    the mean is decoded to where the gradients were
    commit       all groups are reduced and the verdict is known: the new halves of the state count, or forget: none
    take_back    until the next step begins, the user may skip this one: the old halves hold again

Turns run on the worker alone and need no lock; commit, take_back and forget under `Steps.changing`, on any thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from gradwire.collective import Collective, Message, SendReceive, Sum
from gradwire.compressors import GroupContext, Reduction
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import Gradients
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.vectors import Share
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group, sized_by_elements
from gradwire.runtime.store import StoredGroup
from gradwire.transports import Mesh

Look = Callable[[GroupContext, LazySum], None]
"""Looks at what is about to be encoded, gradient and residual (n,)."""


@dataclass(frozen=True)
class Given:
    """What a group was given in a step: its gradients, which of its slots had none on this rank, the factor that the
    loss was multiplied by, and whether backward failed, so that no rank is to take the step."""

    gradients: Gradients
    absent: Sequence[int] = ()
    scale: Share | None = None
    lost: bool = False

    def share(self, ranks: int) -> Share:
        """What a gradient counts in a mean over so many ranks."""
        return 1 / ranks if self.scale is None else 1 / ranks / self.scale

    def lazily(self, room: Tensor, share: Share, nonfinite: Tensor) -> LazySum:
        """The gradients, each times its `share`, to be added up in room (n,)."""
        return LazySum(room, None, self.gradients.vectors(room), 1.0, share, nonfinite)

    def finish(self, x: LazySum, share: Share) -> LazySum:
        """Adds x up where its absent slots keep what they have, or nothing of it counts."""
        if self.lost:
            x.drop()
        elif self.absent:
            self.without_absent(x.total(), share)
        return x

    def without_absent(self, x: Tensor, share: Share) -> None:
        """Leaves nothing in x (n,) of what is kept for slots without a gradient: that stays where it is."""
        parts = self.gradients.pieces.layout.views(x) if self.absent else []
        for slot in self.absent:
            torch.mul(self.gradients.slot(slot), share, out=parts[slot])


@dataclass(frozen=True)
class JobContext:
    """What the exchanges of one job share. `remembers` says that some group keeps state from step to step."""

    mesh: Mesh
    seed: int
    scratch: Workspace
    remembers: bool = True
    look: Look | None = None


class GroupExchange(ABC):
    """A group at work. A step reads the old halves of its state and writes the new ones; whether it counts is decided
    when all groups are reduced.

    `nonfinite` (1,) is NaN where some rank's gradient was not finite, else 0, the same on all ranks in the end.
    `rounds` are the collectives that a step takes. `compresses` says whether this rank's memory is in use.
    """

    group: Group
    index: int
    stored: StoredGroup
    context: GroupContext
    nonfinite: Tensor
    rounds: int
    compresses: bool = True
    given: Given | None = None

    def __str__(self) -> str:
        first, *others = self.stored.layout.slots
        more = f" and {len(others)} more" if others else ""
        return f"the group of {first.name!r}{more} ({self.group.compressor})"

    @abstractmethod
    def run(self, given: Given, step: int) -> Reduction:
        """The collectives of a step; afterwards the means are where the gradients were."""

    def keep_absent(self, used: Tensor) -> None:
        """A slot without a gradient keeps its residual, with what this rank has sent of it or dropped of others' sums
        there, unless no rank had a gradient and the mean is nobody's: used (slots of the job,) is 0 then. It keeps all
        else."""
        assert self.given is not None
        for kind in self.context.flat if self.given.absent and self.compresses else ():
            before, after = map(self.stored.layout.parts, self.context.flat[kind])
            for slot in self.given.absent:
                if kind == RESIDUAL:
                    torch.addcmul(before[slot], after[slot], used[self.stored.slots[slot]], out=after[slot])
                else:
                    after[slot].copy_(before[slot])

    @abstractmethod
    def commit(self) -> None:
        """The step was good."""

    def take_back(self) -> None:
        """The step was good, and counts no more."""
        self.stored.take_back()

    def forget(self) -> None:
        """The step was not good."""
        self.stored.forget()


class ReplicaExchange(GroupExchange):
    """Reduces a group along the axis "replica"."""

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        self.group, self.index, self.stored, self._job = group, index, stored, job
        axis = job.mesh.replica
        self.context = GroupContext(
            stored.layout, axis.rank, axis.world, stored.buffers, job.scratch, stored.slot_state, stored.group_state,
            remember=group.memory.remembers, seed=job.seed * 65_537 + index,
        )  # fmt: skip
        self.rounds = group.communicator.rounds(group.compressor, axis.world)
        self.nonfinite = torch.zeros(1, dtype=torch.float32, device=stored.buffers.device)
        self._was_good = True
        self._sizes = [self._payload_bytes(step) for step in range(group.compressor.period)]

    def run(self, given: Given, step: int) -> Reduction:
        self.begin()
        dense_dtype = self.group.communicator.dense_dtype(self.group.compressor)
        if dense_dtype and not (self.group.memory.remembers or self.stored.pending):
            return self._reduce_dense(dense_dtype, given)
        return self.reduce(given, step)

    def begin(self) -> None:
        """Nothing is known yet to be not finite. After a good step that is so, and nothing is launched."""
        if not self._was_good:
            self.nonfinite.zero_()
        self._was_good = False

    def commit(self) -> None:
        assert self.given is not None
        self._was_good = True
        if self.stored.pending:
            self.stored.spend(whole=not self.given.absent)
        self.stored.commit()

    def reduce(self, given: Given, step: int) -> Reduction:
        """Takes the gradients in, compresses, exchanges and hands the means out."""
        self._check_size(step)
        self.given, self.context.step, self.context.draws = given, step, count()
        self.context.flat = self.stored.flat
        x = self._take_in(given)
        if self._job.look:
            self._job.look(self.context, x)
        mean = Mean(self._room(x), given.gradients)
        yield from flagged(self.group.communicator.reduce(self.group.compressor, x, mean, self.context), self.nonfinite)
        if (nonfinite := self.context.slots.nonfinite) is not None:  # the same on all ranks: none has to be told
            self.nonfinite.add_(nonfinite)
        self.group.memory.sent(self.context.flat)
        mean.hand_out(given.scale)

    def _payload_bytes(self, step: int) -> int | None:
        """Bytes that a codec sends of the group at a step; None for compressors whose rounds differ in size."""
        codec = self.group.compressor
        return codec.group_bytes(self.stored.layout, step) if sized_by_elements(codec) else None

    def _check_size(self, step: int) -> None:
        """Raises ValueError where a user's codec would send another size than the other ranks wait for: gloo ends the
        process of a rank to which more comes than it waits for."""
        size, planned = self._payload_bytes(step), self._sizes[step % len(self._sizes)]
        if size != planned:
            raise ValueError(
                f"its payload has {size} bytes in step {step}, and {planned} by the plan; have payload_bytes() follow "
                "from the number of elements and the codec's own arguments alone"
            )

    # What is only cast, and keeps nothing, is summed where it lies, or in one copy

    def _reduce_dense(self, dtype: torch.dtype, given: Given) -> Reduction:
        self.given = given
        gradients, whole = given.gradients, given.gradients.whole
        gradients.scale(torch.nan if given.lost else 1 / self.context.world)
        x = whole
        if whole is None or whole.dtype != dtype:
            x = self.context.buffers.tensor("dense", (self.stored.layout.numel,), dtype)
            gradients.copy_to(x)
        assert x is not None
        yield Sum(Message.plain(x))
        if self._job.remembers:  # a mean that is not finite spoils the step for all memories
            self.nonfinite.add_(x.sum(dtype=torch.float32).mul_(0))
        if x is not whole:
            gradients.take(x, None)

    # All else

    def _take_in(self, given: Given) -> LazySum:
        """What is compressed: the gradients' share of the mean, and what the memory kept."""
        share, flat, ranks = given.share(self.context.world), self.context.flat, self.context.world
        if self.group.memory.remembers:
            gradient = given.lazily(flat[RESIDUAL].new, share, self.nonfinite)
            return given.finish(self.group.memory.add(flat, gradient, self.stored.layout, ranks), share)
        room = self._own_buffer(given.gradients)
        pending = flat[RESIDUAL] if self.stored.pending else None
        if pending:
            pending.new.zero_()
        return given.finish(given.lazily(room, share, self.nonfinite).onto(pending and pending.old, room), share)

    def _own_buffer(self, gradients: Gradients) -> Tensor:
        """Where a group without memory computes: where its gradients lie, if they can be replaced there."""
        return (
            self.context.buffers.tensor("x", (self.stored.layout.numel,)) if gradients.flat is None else gradients.flat
        )

    def _room(self, x: LazySum) -> Callable[[], Tensor]:
        """Room for the mean (n,): without a memory where x is, which nobody needs then."""
        if self.group.memory.remembers:
            return lambda: self.context.buffers.tensor("mean", (x.numel,))
        return lambda: x.next


def flagged(reduction: Reduction, nonfinite: Tensor) -> Reduction:
    """The same collectives; each message takes `nonfinite` (1,) along, and adds what came with the others' to it.

    NaN stays NaN whatever is added, so that once every rank has heard of every other, all have the same.
    """
    for op in reduction:
        if op is not None and op.send.flags is not None:
            op.send.flags.copy_(nonfinite.expand_as(op.send.flags))
        yield op
        flags = _heard(op)
        if flags is not None and len(flags) > 1:  # this rank's own is among them
            torch.sum(flags[:, 0], 0, keepdim=True, out=nonfinite)
        elif flags is not None:
            nonfinite.add_(flags.view(1))


def _heard(op: Collective | None) -> Tensor | None:
    """The flags that came with a collective."""
    if op is None or (isinstance(op, SendReceive) and op.source is None):
        return None
    return op.receive.flags
