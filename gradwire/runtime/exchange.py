"""One group's exchange: its gradients become the mean over the ranks, in place.

    turn 0       gradients and old residual are summed into the new residual and encoded; the first collective starts
    turns after  the collective before is over on this rank; the next one starts
    last turn    what remains is the new residual, rounded if it is kept in another type than float32; the mean is
                 decoded to where the gradients were
    commit       all groups are reduced and the step is good: the new state counts; where it is bad, forget
    take_back    until the next step begins, the user may skip this one: the old state holds again

Turns run on the worker alone and need no lock; commit, take_back and forget under `Steps.changing`, on any thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Message, Sum
from gradwire.compressors import DoubleBuffer, GroupContext, Reduction
from gradwire.memories import RESIDUAL
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.noise import count_step
from gradwire.ops.vectors import Scalar
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group, payload_bytes
from gradwire.runtime.flags import flagged
from gradwire.runtime.group_input import GroupInput
from gradwire.runtime.store import StoredGroup
from gradwire.transports import Mesh

EncodeHook = Callable[[GroupContext, LazySum], None]
"""Sees each vector (n,) that is about to be encoded, gradient and residual."""


@dataclass(frozen=True)
class JobContext:
    """The context of all exchanges of one job."""

    mesh: Mesh
    seed: int
    scratch: Workspace
    keeps_state: Callable[[], bool] = lambda: True
    """Whether some rank may keep state of gradient size from step to step; the same on all."""
    look: EncodeHook | None = None


class GroupExchange(ABC):
    """The exchange of one group. A step reads the old state and writes the new one; whether it counts is decided when
    all groups are reduced."""

    group: Group
    index: int
    stored: StoredGroup
    context: GroupContext
    nonfinite: Tensor
    """(1,) NaN where some rank's gradient was not finite, else 0; in the end the same on all ranks."""
    rounds: int
    """The collectives that a step takes."""
    compresses: bool = True
    """This rank encodes, and its memory is in use."""
    why_not_recorded: ClassVar[str] = ""
    """Why its turns are never recorded on a GPU; empty where they may be."""
    input: GroupInput | None = None
    """The present step's."""

    @cached_property
    def rounds_residual(self) -> bool:
        """The residual is computed in float32, and kept in another type."""
        return RESIDUAL in self.stored.kinds and self.stored.flat[RESIDUAL].write.dtype != torch.float32

    def __str__(self) -> str:
        first, *others = self.stored.layout.slots
        more = f" and {len(others)} more" if others else ""
        return f"the group of {first.name!r}{more} ({self.group.compressor})"

    @abstractmethod
    def run(self, given: GroupInput, step: int) -> Reduction:
        """The collectives of a step; afterwards the means are where the gradients were."""

    def keep_absent(self, used: Tensor) -> None:
        """Keeps the state of slots without a gradient on this rank. `used` (job slots,): 1 where some rank had one."""
        assert self.input is not None
        for kind in self.context.flat if self.input.absent and self.compresses else ():
            part, (read, written), scratch = self.stored.parts[kind], self.context.flat[kind], self.context.scratch
            old, new = part.numbers_of(read, scratch), part.numbers_of(written, scratch, "new")
            before, after = map(self.stored.layout.parts, (old, new))
            for slot in self.input.absent:
                self.keep_slot(kind, before[slot], after[slot], used[self.stored.slots[slot]])
            if new is not written:
                part.keep(new, written, self.context.own_seed())

    def keep_slot(self, kind: str, before: Tensor, after: Tensor, used: Tensor) -> None:
        """Makes `after` (n,) the next state of a slot without a gradient, of which nothing was encoded."""
        # some rank used the slot: keep the old residual, and add what this rank dropped of the others' sums
        if kind == RESIDUAL:
            torch.addcmul(before, after, used, out=after)
        else:  # velocity and the like stay as they were
            after.copy_(before)

    def poison(self) -> None:
        """Makes the means NaN."""
        assert self.input is not None
        self.input.gradients.poison()

    def firsts(self) -> Sequence[Tensor]:
        """One element (1,) of each slot's mean."""
        assert self.input is not None
        return self.input.gradients.firsts

    def means(self) -> dict[str, Tensor]:
        """The step's means by parameter."""
        assert self.input is not None
        return {slot.name: self.input.gradients.slot(i) for i, slot in enumerate(self.stored.layout.slots)}

    def let_go(self) -> None:
        """The means are in place: their tensors are the framework's alone."""
        self.input = self.input and self.input.without_gradients()

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
        self.group = group
        self.index = index
        self.stored = stored
        self._job = job
        axis = job.mesh.replica
        self.context = GroupContext(
            stored.layout, axis.rank, axis.world, stored.buffers, job.scratch, stored.slot_state, stored.group_state,
            error_feedback=group.memory.error_feedback, seed=job.seed * 65_537 + index,
        )  # fmt: skip
        self.rounds = group.communicator.rounds(group.compressor, axis.world)
        self.nonfinite = torch.zeros(1, dtype=torch.float32, device=stored.buffers.device)
        self._was_good = True
        self._sizes = [payload_bytes(group.compressor, stored.layout, step) for step in range(group.compressor.period)]

    def run(self, given: GroupInput, step: int) -> Reduction:
        self.check_size(step)
        self.begin(given, step)
        yield from self.turns(given)

    def begin(self, given: GroupInput, step: int) -> None:
        """Begins a step: all that is done anew even where its turns are replayed."""
        self.enter(given, step)
        count_step(step, self.context.scratch)
        if not self._was_good:  # else it is 0
            self.nonfinite.zero_()
        # bad until `commit` says otherwise
        self._was_good = False

    def enter(self, given: GroupInput, step: int) -> None:
        """Sets the step, its input and its state for the turns that follow."""
        # draws of a step are counted from 0
        self.input = given
        self.context.step = step
        self.context.draws = count()
        self.context.flat = self.stored.flat

    def turns(self, given: GroupInput) -> Reduction:
        """The collectives of a step that has begun, by the context's state and step."""
        dense_dtype = self.group.communicator.dense_dtype(self.group.compressor)
        if dense_dtype and not self.group.memory.error_feedback:
            return self._reduce_dense(dense_dtype, given)
        return self.reduce(given)

    def commit(self) -> None:
        assert self.input is not None
        self._was_good = True
        # the residual that an earlier plan had left is sent
        if self.stored.pending:
            self.stored.drop_pending_residual(whole=not self.input.absent)
        self.stored.commit()

    def reduce(self, given: GroupInput) -> Reduction:
        """Accumulates, compresses, exchanges, and writes the means."""
        # accumulate: gradient and residual
        flat = self._computed_state(given)
        x = self._accumulate(given, flat)
        if self._job.look:
            self._job.look(self.context, x)
        # compress and exchange
        mean = Mean(self._scratch(x), given.gradients)
        yield from flagged(self.group.communicator.reduce(self.group.compressor, x, mean, self.context), self.nonfinite)
        # keep the residual, write the means
        if (nonfinite := self.context.slots.nonfinite) is not None:
            # the same on all ranks already
            self.nonfinite.add_(nonfinite)
        self.group.memory.sent(flat)
        self._keep(flat)
        mean.write_means(given.scale, self.nonfinite)

    def check_size(self, step: int) -> None:
        """Raises ValueError where a user's codec would send another size than the other ranks expect: gloo ends the
        process of a rank that receives more than it expects."""
        size = payload_bytes(self.group.compressor, self.stored.layout, step)
        planned = self._sizes[step % len(self._sizes)]
        if size != planned:
            raise ValueError(
                f"its payload has {size} bytes in step {step}, and {planned} by the plan; have payload_bytes() follow "
                "from the number of elements and the codec's own arguments alone"
            )

    # Dense groups without memory: summed where the gradients lie, or in one copy

    def _reduce_dense(self, dtype: torch.dtype, given: GroupInput) -> Reduction:
        if self._job.look:
            old = self._old_residual() if self.stored.pending else None
            scratch = self.context.scratch.tensor("looked at", (self.stored.layout.numel,))
            self._job.look(self.context, given.copied(old, scratch, self.context.world))
        # divide first: the sum is the mean
        gradients, whole = given.gradients, given.gradients.one_vector
        gradients.scale(torch.nan if given.lost else given.part(self.context.world))
        # sum where the gradients lie, if they are one vector of the type that travels; else in a copy
        x = whole
        if x is None or x.dtype != dtype or self.stored.pending:
            x = self.context.buffers.tensor("dense", (self.stored.layout.numel,), dtype)
            gradients.copy_to(x)
        if self.stored.pending:
            self._add_pending(x, given)
        # the same collective on ranks that have nothing pending
        yield Sum(Message.plain(x))
        nonfinite = self.nonfinite if self._job.keeps_state() else None
        if nonfinite is not None:  # a mean that is not finite makes the step bad for all memories
            nonfinite.add_(x.sum(dtype=torch.float32).mul_(0))
        if x is not whole:
            gradients.write_means(x, None, nonfinite)

    def _add_pending(self, x: Tensor, given: GroupInput) -> None:
        """Adds the residual that an earlier plan had left to x (n,), but for that of absent slots."""
        old = self._old_residual()
        x.add_(old if given.scale is None else old * given.scale)
        for slot in given.absent:  # zeros, or what an earlier pass has left
            self.stored.layout.parts(x)[slot].copy_(given.gradients.slot(slot).flatten())
        self.context.flat[RESIDUAL].write.zero_()

    def _old_residual(self) -> Tensor:
        """The residual (n,) before this step: of int8 decoded to scratch, which holds it until that is used again."""
        return self.stored.parts[RESIDUAL].numbers_of(self.context.flat[RESIDUAL].read, self.context.scratch)

    # All other groups

    def _computed_state(self, given: GroupInput) -> Mapping[str, DoubleBuffer]:
        """The state as a step reads and writes it: the next residual is computed in float32, in whatever type it is
        kept."""
        flat = self.context.flat
        if not self.rounds_residual:
            return flat
        # in a vector that groups share; alone, without a job, in a buffer of the group's own
        if (computed := given.float_residual) is None:
            computed = self.context.buffers.tensor("next residual", (self.stored.layout.numel,))
        return flat | {RESIDUAL: DoubleBuffer(self._old_residual(), computed)}

    def _keep(self, flat: Mapping[str, DoubleBuffer]) -> None:
        """Rounds the next residual to the type in which it is kept."""
        if self.rounds_residual:
            part, kept = self.stored.parts[RESIDUAL], self.context.flat[RESIDUAL].write
            part.keep(flat[RESIDUAL].write, kept, self.context.own_seed())

    def _accumulate(self, given: GroupInput, flat: Mapping[str, DoubleBuffer]) -> LazySum:
        """The vector to compress: weighted gradients, and the residual."""
        weight, ranks = given.weight(self.context.world), self.context.world
        if self.group.memory.error_feedback:
            # with a memory: gradient and residual are summed into the new residual
            gradient = given.lazily(flat[RESIDUAL].write, weight, self.nonfinite)
            return self._added(self.group.memory.add(flat, gradient, self.stored.layout, ranks), given, weight)
        # without: in the gradients, if they lie side by side, or in a buffer, with what an earlier plan has left
        if (scratch := given.gradients.flat) is None:
            scratch = self.context.buffers.tensor("x", (self.stored.layout.numel,))
        old = self._old_residual() if self.stored.pending else None
        if old is not None:
            flat[RESIDUAL].write.zero_()
        gradient = given.lazily(scratch, weight, self.nonfinite)
        return self._added(gradient.onto(old, scratch), given, weight)

    def _added(self, x: LazySum, given: GroupInput, weight: Scalar) -> LazySum:
        """Sums x where slots are absent, or where the old residual lies in scratch that others need from here on."""
        given.finish(x, weight)
        if (part := self.stored.parts.get(RESIDUAL)) and part.codes:
            x.total()
        return x

    def _scratch(self, x: LazySum) -> Callable[[], Tensor]:
        """Scratch for the mean (n,): all groups' own; without a memory that of x, which is not needed any more."""
        if self.group.memory.error_feedback:
            return lambda: self.context.scratch.tensor("mean", (x.numel,))
        return lambda: x.next
