"""What a compressor is: hyperparameters, and how they turn a gradient into bytes and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.collective import Collective
from gradwire.compressors.context import GroupContext, GroupState, Halves, Parts, SlotState
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.workspace import Workspace
from gradwire.options import Options
from gradwire.recordable import Recordable
from gradwire.slots import Layout, Slot

Reduction = Generator[Collective | None, None, None]
"""Yields collectives, and goes on when their results are there; None for a round in which this rank takes no part."""

LONGEST_PERIOD = 1000
"""Steps of a period, of which each one's bytes are added up."""


class Compressor(Options, Recordable, ABC):
    """A frozen dataclass of hyperparameters. To change one: `dataclasses.replace(compressor, ratio=0.1)`.

    `biased` compressors drop what they do not send and want a memory. `sparse` ones send some coordinates exactly
    and none of the others. Those that `carries_dense` send biases and norm scales well enough beside the rest, so
    that these need no group of their own. `flat_state` names tensors of gradient size that the algorithm keeps. A
    step's sum takes `rounds` of adding something up; it is `summable` where an all-reduce can do that, of numbers
    of `wire_dtype`. Steps may differ in the bytes that they send; `period` of them in a row are as many as any
    others. Those with `local_arithmetic` let every rank compute what all must have alike, so their hardware must be
    alike as well. A compressor that `is_cast` changes the numbers' type and nothing else; one that `votes` sends
    what only counts together with the others'. What is not `divisible` works on whole groups only.
    """

    biased: ClassVar[bool] = True
    is_cast: ClassVar[bool] = False
    votes: ClassVar[bool] = False
    divisible: ClassVar[bool] = True
    rounds: ClassVar[int] = 1
    summable: ClassVar[bool] = False
    wire_dtype: ClassVar[torch.dtype] = torch.float32
    period: ClassVar[int] = 1
    sparse: ClassVar[bool] = False
    carries_dense: ClassVar[bool] = False
    local_arithmetic: ClassVar[bool] = False
    flat_state: ClassVar[tuple[str, ...]] = ()

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The tensors of other than gradient size that this algorithm keeps for a (rows, columns) slot, equal on all
        ranks: see `GroupContext.slots`."""
        return {}

    def init_group(self) -> dict[str, Tensor]:
        """The small tensors on the host that this algorithm keeps for a group: see `GroupContext.group`."""
        return {}

    def phase(self, step: int) -> int:
        """The phase of a step: where this is `recordable`, steps of one phase launch the same work."""
        return step % self.period

    @abstractmethod
    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, add_up: "AddUp") -> Reduction:
        """Writes the sum of all ranks' x (n,) = `vector.total()` to where the `mean` goes, and leaves in x what this
        rank did not send. `add_up` does that for what a codec encodes."""


class Predictable(Compressor):
    """A compressor whose messages follow from layout and step alone, and that knows what it would lose of a slot sent
    by itself."""

    @abstractmethod
    def messages(self, layout: Layout, step: int) -> "Sequence[tuple[Codec, Layout]]":
        """What the rounds of a step encode, and with what."""

    def group_bytes(self, layout: Layout, step: int) -> int:
        """Bytes of all messages of a whole group, or of a part of one, at this step, the same on all ranks."""
        return sum(codec.group_bytes(part, step) for codec, part in self.messages(layout, step))

    def slot_bytes(self, slot: Slot) -> float:
        """A slot's share of a group's bytes, without what a group costs; the mean over steps that differ."""
        return fmean(self.group_bytes(Layout((slot,)), step) for step in range(self.period))

    @classmethod
    @abstractmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        """|x - what each of `choices`, all of this class, sends of it|², or about that, for a slot's x (n,)."""


class Codec(Predictable):
    """A compressor that turns n numbers into a fixed count of bytes without talking to anybody.

    The payload's size does not depend on the numbers, so that what is declared is what is sent. `summable`
    payloads are vectors of `wire_dtype` that may be all-reduced. A codec that is not `divisible` encodes whole
    groups only: it looks at whole slots, or does not do the same at every step.
    """

    @abstractmethod
    def payload_bytes(self, n: int) -> int:
        """Bytes that `encode` writes for n elements of a single vector, at most, where steps differ; a multiple
        of 4 where the payload holds float32."""

    def group_bytes(self, layout: Layout, step: int) -> int:
        return self.payload_bytes(layout.numel)

    def messages(self, layout: Layout, step: int) -> "Sequence[tuple[Codec, Layout]]":
        return [(self, layout)]

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return [choice._left_of(x, slot) for choice in choices]

    def _left_of(self, x: Tensor, slot: Slot) -> float:
        """The square norm of what `encode` leaves."""
        context = context_for(Layout((slot,)), self, x.device)
        size = self.group_bytes(context.layout, 0)
        payload = torch.zeros(size // 4 * 4 + 4, dtype=torch.uint8, device=x.device)[:size]
        left = x.clone()
        self.encode(LazySum.of(left), payload[None], context.whole)
        return float(left.double().square().sum())

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, add_up: "AddUp") -> Reduction:
        return add_up(self, vector, mean, context)

    @abstractmethod
    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        """Writes to a row of payloads (parts, ≥ bytes) uint8 what is sent of each part of x (n,) = `vector.total()`,
        and leaves in x what is not: x minus what the payloads stand for. Without `context.remember` what is left in x
        does not matter."""

    @abstractmethod
    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        """Decodes payloads (parts, ranks, ≥ bytes), and writes each part's sum over the ranks where the mean goes. An
        all-gather has one part and several ranks, a ScatterReduce ends with several parts of one rank."""


class SimpleCodec(Codec):
    """A codec that is written for one vector; parts are gone through one by one. To write your own, say how many
    `payload_bytes` n elements take, and define `compress` and `decompress`."""

    @abstractmethod
    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        """Writes to payload (bytes,) uint8 what is sent of x (n,), and leaves in x what is not."""

    @abstractmethod
    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        """Decodes payloads (ranks, bytes), and writes their sum to out (n,)."""

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for x, payload, context in zip(vector.total().split(parts.lengths), payloads, parts.contexts, strict=False):
            self.compress(x, self._cut(payload, context, parts), context)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        for out, rows, context in zip(mean.vector().split(parts.lengths), payloads, parts.contexts, strict=False):
            self.decompress(self._cut(rows, context, parts), out, context)

    def _cut(self, rows: Tensor, context: GroupContext, parts: Parts) -> Tensor:
        """Payloads (..., ≥ bytes) of a part, which may be shorter than others."""
        return rows if parts.is_whole else rows[..., : self.group_bytes(context.layout, context.step)]


AddUp = Callable[[Codec, LazySum, Mean, GroupContext], Reduction]
"""add_up(codec, vector, mean, context) writes the sum over the ranks of what `codec` sends of x (n,) = `vector.total()`
to where the `mean` goes, and leaves in x what this rank did not send."""


class Selective(Codec):
    """A codec that sends some elements, each by its place."""

    @abstractmethod
    def entries(self, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Places (m,) int64 and values (m,) of the elements of n that payloads (ranks, ·) hold, one payload after
        another; what is left of their room has value 0."""


class MultiRound(Compressor):
    """A compressor with `rounds` collectives of its own: a two-round algorithm reads like its paper."""


def context_for(layout: Layout, compressor: Compressor, device: torch.device) -> GroupContext:
    """The context of a rank alone, with fresh state: for using a compressor without a job."""
    generator = torch.Generator().manual_seed(0)
    slots = [compressor.init_slot(*slot.matrix, generator) for slot in layout.slots]
    buffers = Workspace(device)
    context = GroupContext(
        layout, 0, 1, buffers, Workspace(device), SlotState(slots), GroupState(compressor.init_group())
    )
    for name in compressor.flat_state:
        context.flat[name] = Halves(*torch.zeros(2, layout.numel, dtype=torch.float32, device=device))
    return context
