"""DDP's buckets, from which gradients go to the runtime."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.paused import Accumulated
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.autograd import in_backward
from gradwire.torch_private.reducer import copies_together, frees_buckets, is_joining, parts_of


@dataclass(frozen=True)
class BucketPlace:
    """A bucket's address and slots: where they change, DDP has moved the bucket."""

    address: int
    """Of its first element in memory."""
    slots: tuple[int, ...]
    """The slots of its gradients, in the order in which they lie in it."""


class Buckets:
    """The buckets of one DDP, which hand its gradients to the runtime, all on the thread that trains.

    DDP moves its buckets once, after the first step. Until they have stayed for a step, slots are submitted bucket by
    bucket; from then on their places are fixed, and a slot just arrives. With `lazy_bucket_allocation` DDP frees its
    buckets after each step, and no place is fixed.
    """

    one_by_one: bool
    """Hooks see each gradient. Else, when a bucket is complete in a backward pass, all its slots have one."""
    fixed: bool
    """Buckets stay where they are, so a slot arrives without its address."""
    notes: bool
    """The runtime needs the moments when gradients become ready."""
    late: int | None
    """The slot whose gradient a hook saw last, which DDP may not have copied to its bucket yet."""
    seen: set[int]
    """The slots whose gradients this backward pass has made, and which arrive with their bucket: sparse ones, and all
    while places are not fixed, or DDP copies a bucket's gradients together."""
    accumulated: Accumulated
    """Slots and passes whose gradients DDP has only accumulated so far."""

    def __init__(
        self, runtime: Runtime, slot: Mapping[Tensor, int], ddp: DistributedDataParallel, accumulated: Accumulated
    ) -> None:
        self.one_by_one = self.fixed = self.notes = False
        self.late = None
        self.seen = set()
        self.accumulated = accumulated
        self._runtime = runtime
        self._slot = slot
        self._static_graph = ddp.static_graph
        self._frees = frees_buckets(ddp)
        self._may_fix = not (ddp.static_graph or self._frees)
        self._places: dict[int, BucketPlace] = {}
        self._stayed = False

    def wants_each(self, ddp: Any) -> bool:
        """Whether hooks have to see each gradient in the backward pass that follows: on a CPU, where they cost little
        and groups begin earlier; until buckets have stayed where they are; where something asks when each gradient is
        ready; and where a parameter may be unused. With a static graph a parameter's hook may run more than once."""
        early = self._runtime.is_immediate or not self.fixed or self._runtime.wants_readiness()
        return not ddp.static_graph and (early or ddp.find_unused_parameters or is_joining(ddp))

    def arrives_with_bucket(self, ddp: DistributedDataParallel, slot: int) -> bool:
        """Whether a gradient that hooks see arrives with its bucket alone: a sparse one, and any where DDP copies a
        bucket's gradients together."""
        return copies_together(ddp) or self._runtime.slots[slot].name in self._runtime.sparse

    def refuse_frozen(self) -> None:
        """Ends the job where a parameter of the open step was frozen too late: DDP waits for its gradient in vain."""
        missing = {*self._runtime.missing()}
        frozen = [slot for parameter, slot in self._slot.items() if slot in missing and not parameter.requires_grad]
        if frozen:
            self._runtime.refuse(
                f"parameter {self._runtime.slots[frozen[0]].name!r} was frozen after DDP was made, which waits for its "
                "gradient; make DDP with find_unused_parameters=True, or anew"
            )

    def begin(self) -> None:
        """Begins a step, behind one whose backward pass may have failed."""
        self.late = None
        self.seen.clear()
        self._stayed = True
        self.notes = self._runtime.wants_readiness()

    def end(self) -> None:
        """Ends the backward pass, and forgets which gradients it made."""
        self.seen.clear()
        self.accumulated.slots.clear()

    def forget(self) -> None:
        """Forgets where gradients lie, as DDP is about to have new buckets."""
        self._places.clear()
        self.late, self.fixed = None, False
        self._runtime.fix_addresses(False)

    def complete(self, bucket: GradBucket) -> None:
        """Hands a complete bucket to the runtime; all its slots have then arrived, or are known to be absent."""
        if bucket.buffer().is_sparse:
            self._submit_sparse(bucket)
        elif self.fixed:
            self._arrive(bucket)
        else:
            self._submit(bucket)
        if not bucket.is_last():
            return
        # all buckets have stayed since the step before: their places count as fixed
        if self._stayed and not self.fixed and self._may_fix:
            self.fixed = True
            self._runtime.fix_addresses(True)
        # let go of buckets that DDP frees now
        if self._frees:
            self._runtime.backward_done()

    def _submit_sparse(self, bucket: GradBucket) -> None:
        """Submits a sparse gradient, which is alone in its bucket and another tensor in each step."""
        slot = self._slot[bucket.parameters()[0]]
        if self._static_graph:
            self._note(slot)
        self._runtime.submit(slot, bucket.buffer())

    def _submit(self, bucket: GradBucket) -> None:
        """Submits slot by slot, while buckets may move."""
        slots, whole = list[int](), self._is_whole
        # each slot with its place: made by this pass, accumulated before, or without a gradient
        for parameter, part in parts_of(bucket):
            slot = self._slot[parameter]
            gradient = self._runtime.slots[slot].view(part)
            slots.append(slot)
            if slot in self.seen:
                self._runtime.submit(slot, gradient)
            elif whole or self._has_accumulated(slot, parameter):
                self._note(slot)
                self._runtime.submit(slot, gradient)
            else:
                self._runtime.submit_absent(slot, gradient)
        # has the bucket stayed since the step before?
        place, index = BucketPlace(bucket.buffer().data_ptr(), tuple(slots)), bucket.index()
        self._stayed = self._stayed and self._places.get(index) == place
        self._places[index] = place

    def _arrive(self, bucket: GradBucket) -> None:
        """Completes the bucket's slots: those that have not arrived have no gradient of this pass."""
        runtime, place = self._runtime, self._places[bucket.index()]
        # the gradient that a hook saw last is in this bucket by now. In another one it may not be: a bucket of unused
        # parameters alone is ready before DDP has copied the first gradient anywhere
        if self.late is not None and self.late in place.slots:
            late, self.late = self.late, None
            runtime.mark_ready(late)
        there = runtime.arrived
        # means go to the address that is known, so DDP must not have moved the bucket
        if bucket.buffer().data_ptr() != place.address:
            runtime.refuse("DDP moved its buckets in mid-training; call detach() and attach again")
        # the slots that have not arrived: copied just now, accumulated by earlier passes, or absent
        if all(map(there.__getitem__, place.slots)):
            return
        parameters, whole = {self._slot[p]: p for p in bucket.parameters() if p.numel()}, self._is_whole
        for slot in place.slots:
            if there[slot]:
                continue
            if slot in self.seen:
                runtime.mark_ready(slot)
            elif whole or self._has_accumulated(slot, parameters[slot]):
                self._note(slot)
                runtime.mark_ready(slot)
            else:
                runtime.mark_absent(slot)

    @property
    def _is_whole(self) -> bool:
        """Whether all slots of a complete bucket have a gradient. On a rank that has joined the others none has."""
        return self._static_graph or (not self.one_by_one and in_backward())

    def _note(self, slot: int) -> None:
        if self.notes:
            self._runtime.became_ready(slot)

    def _has_accumulated(self, slot: int, parameter: Tensor) -> bool:
        """Whether the slot has a gradient of an earlier, accumulating pass."""
        return slot in self.accumulated.slots and parameter.grad is not None


def reduce_dense(bucket: GradBucket, group: dist.ProcessGroup) -> Future[Tensor]:
    """The mean of a bucket by a plain all-reduce, as DDP makes it without a hook."""
    work = dist.all_reduce(bucket.buffer().div_(group.size()), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
