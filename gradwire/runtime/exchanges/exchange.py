"""One group's exchange: its gradients become the mean over the ranks, in place.

    turn 0       gradients and old residual are summed into the new residual and encoded; the first collective starts
    turns after  the collective before is over on this rank; the next one starts
    last turn    what remains is the new residual, rounded if it is kept in another type than float32; the mean is
                 decoded to where the gradients were
    commit       all groups are reduced and the step is good: the new state counts; where it is bad, forget
    take_back    until the next step begins, the user may skip this one: the old state is the present one again

Turns run on the worker alone and need no lock; commit, take_back and forget under `Steps.changing`, on any thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import GroupContext, Reduction
from gradwire.memories import RESIDUAL
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.state.stored_group import StoredGroup
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
    encode_hook: EncodeHook | None = None


class GroupExchange(ABC):
    """The exchange of one group. A step reads the old state and writes the new one; whether it counts is decided when
    all groups are reduced."""

    context: GroupContext
    nonfinite: Tensor
    """(1,) NaN where some rank's gradient was not finite, else 0; in the end the same on all ranks."""
    rounds: int
    """The collectives that a step takes."""
    compresses: bool = True
    """This rank encodes, and its memory is in use."""
    why_not_recorded: ClassVar[str] = ""
    """Why its turns are never recorded on a GPU; empty where they may be."""
    input: GroupInput
    """The present step's, from its turn 0 on; without gradients once the means are in place."""

    def __init__(self, group: Group, index: int, stored: StoredGroup) -> None:
        self.group, self.index, self.stored = group, index, stored

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
        for kind in self.context.flat if self.input.absent and self.compresses else ():
            part, (read, written), scratch = self.stored.parts[kind], self.context.flat[kind], self.context.scratch
            # sums are float32: bfloat16 would round them to the nearest
            old, new = part.numbers_of(read, scratch), part.numbers_of(written, scratch, "new").float()
            before, after = map(self.stored.layout.parts, (old, new))
            for slot in self.input.absent:
                self.keep_slot(kind, before[slot], after[slot], used[self.stored.slots[slot]])
            if new is not written:
                part.keep(new, written, self.context.own_seed())

    def keep_slot(self, kind: str, before: Tensor, after: Tensor, used: Tensor) -> None:
        """Makes `after` (n,) the next state of a slot that had no gradient here, so that nothing of it was encoded."""
        # some rank used the slot: keep the old residual, and add what this rank dropped of the others' sums
        if kind == RESIDUAL:
            torch.addcmul(before, after, used, out=after)
        else:  # velocity and the like stay as they were
            after.copy_(before)

    def poison(self) -> None:
        """Makes the means NaN."""
        self.input.gradients.poison()

    def firsts(self) -> Sequence[Tensor]:
        """One element (1,) of each slot's mean."""
        return self.input.gradients.firsts

    def means(self) -> dict[str, Tensor]:
        """The step's means by parameter."""
        return {slot.name: self.input.gradients.slot(i) for i, slot in enumerate(self.stored.layout.slots)}

    def drop_gradients(self) -> None:
        """Drops the gradients' tensors: the means are in place, and the framework may free them."""
        self.input = self.input.without_gradients()

    @abstractmethod
    def commit(self) -> None:
        """The step was good."""

    def take_back(self) -> None:
        """The step was good, and the user skips it after all."""
        self.stored.take_back()

    def forget(self) -> None:
        """The step was not good."""
        self.stored.forget()
