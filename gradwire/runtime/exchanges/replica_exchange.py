"""The exchange of one group along the axis "replica": by a compressor and a communicator, or as a dense sum."""

from collections.abc import Callable, Mapping
from itertools import count

import torch
from torch import Tensor

from gradwire.collective import Message, Sum
from gradwire.communicators.flags import flagged
from gradwire.compressors import DoubleBuffer, GroupContext, Reduction
from gradwire.memories import RESIDUAL
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.noise import count_step
from gradwire.ops.vectors import Scalar, leave_out
from gradwire.plans import Group, payload_bytes
from gradwire.runtime.exchanges.exchange import GroupExchange, JobContext
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.state.stored_group import StoredGroup


class ReplicaExchange(GroupExchange):
    """Reduces a group along the axis "replica".

        begin   what is done at every step; `enter` is its part that sets input, step and state
        turns   the collectives: `reduce`, or for a dense group without memory one sum

    On a GPU a recorded step is `begin`, then what was recorded of `turns` (`recordings.py`). On a host with several
    ranks all call `begin`, and the leader alone `reduce`, with the host's sum (`HostExchange`)."""

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        super().__init__(group, index, stored)
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
        """Begins a step: what is done at every step, also where its turns are replayed."""
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
        return self.reduce(given.sent_by(self.group))

    def commit(self) -> None:
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
        if self._job.encode_hook:
            scale = given.sent_scale
            self._job.encode_hook(self.context, x if scale is None else LazySum.of(x.total() / scale))
        # compress and exchange
        mean = Mean(self._scratch(x), given.gradients)
        yield from flagged(self.group.communicator.reduce(self.group.compressor, x, mean, self.context), self.nonfinite)
        # keep the residual, write the means
        if (nonfinite := self.context.slots.nonfinite) is not None:
            # the same on all ranks already
            self.nonfinite.add_(nonfinite)
        self.group.memory.sent(flat)
        self._keep(flat)
        if given.sent_scale is not None and self._job.keeps_state():
            self._note_unless_finite(mean.vector())
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
        if self._job.encode_hook:
            old = self._old_residual() if self.stored.pending else None
            scratch = self.context.scratch.tensor("looked at", (self.stored.layout.numel,))
            self._job.encode_hook(self.context, given.copied(old, scratch, self.context.world))
        # divide before the sum, which is the mean then: in float32 where that travels, else before the cast
        gradients, whole = given.gradients, given.gradients.one_vector
        part = torch.nan if given.given_up else given.part(self.context.world)
        if dtype != torch.float32:
            gradients.scale(part)
        # sum where the gradients lie, if they are one vector of the type that travels; else in a copy
        x = whole
        if x is None or x.dtype != dtype:
            x = self.context.buffers.tensor("dense", (self.stored.layout.numel,), dtype)
            gradients.copy_to(x)
        if dtype == torch.float32:
            x.mul_(part)
        leave_out([x], part)
        if self.stored.pending:
            self._add_pending(x, given)
        # the same collective on ranks that have nothing pending
        yield Sum(Message.plain(x))
        nonfinite = self.nonfinite if self._job.keeps_state() else None
        if nonfinite is not None:
            self._note_unless_finite(x)
        if x is not whole:
            gradients.write_means(x, None, nonfinite)

    def _note_unless_finite(self, mean: Tensor) -> None:
        """Makes the step bad for all memories where a mean (n,) that all ranks have is not finite."""
        self.nonfinite.add_(mean.sum(dtype=torch.float32).mul_(0))

    def _add_pending(self, x: Tensor, given: GroupInput) -> None:
        """Adds the residual that an earlier plan had left to x (n,), but for that of absent slots."""
        old, parts = self._old_residual(), self.stored.layout.parts(x)
        absent = {slot: parts[slot].clone() for slot in given.absent}  # zeros, or what an earlier pass has left
        x.add_(old if given.scale is None else old * given.scale)
        for slot, own in absent.items():
            parts[slot].copy_(own)
        self.context.flat[RESIDUAL].write.zero_()

    def _old_residual(self) -> Tensor:
        """The residual (n,) before this step. In int8 it is decoded to scratch "mean", and valid until the next use."""
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
            old = given.as_sent(old)
        gradient = given.lazily(scratch, weight, self.nonfinite)
        return self._added(gradient.onto(old, scratch), given, weight)

    def _added(self, x: LazySum, given: GroupInput, weight: Scalar) -> LazySum:
        """Sums x now where slots are absent, or where the old residual was decoded to scratch, which the mean needs."""
        given.finish(x, weight)
        if (part := self.stored.parts.get(RESIDUAL)) and part.codes:
            x.total()
        return x

    def _scratch(self, x: LazySum) -> Callable[[], Tensor]:
        """Scratch for the mean (n,): shared by all groups; without a memory that of x, which is not needed any more."""
        if self.group.memory.error_feedback:
            return lambda: self.context.scratch.tensor("mean", (x.numel,))
        return lambda: x.next
