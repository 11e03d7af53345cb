"""The interfaces of compressors: hyperparameters, and how they turn a gradient into bytes and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from statistics import fmean
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradwire.collective import Collective
from gradwire.compressors.context import DoubleBuffer, GroupContext, GroupState, Parts, SlotState
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.tiles import at_once
from gradwire.ops.vectors import equal_parts
from gradwire.ops.workspace import Workspace
from gradwire.options import Options
from gradwire.recordable import Recordable
from gradwire.slots import Layout, Slot

Reduction = Generator[Collective | None, None, None]
"""Yields collectives, and goes on when their results are there; None for a round in which this rank takes no part."""

LONGEST_PERIOD = 1000
"""The most steps of a period; the bytes of each of them are added up."""


class Compressor(Options, Recordable, ABC):
    """A compression algorithm: a frozen dataclass of its hyperparameters, with its properties as class variables.

    To change a hyperparameter: `dataclasses.replace(compressor, ratio=0.1)`.
    """

    biased: ClassVar[bool] = True
    """Drops what it does not send, and so wants a memory."""
    is_cast: ClassVar[bool] = False
    """Changes the numbers' type and nothing else."""
    sign_vote: ClassVar[bool] = False
    """Sends votes on signs, which estimate no gradient, so that no memory can subtract them."""
    is_update: ClassVar[bool] = False
    """Decodes updates, which an optimizer subtracts times its rate, in place of estimates of the mean gradient."""
    divisible: ClassVar[bool] = True
    """Works on parts of a group as well; else on whole groups only."""
    rounds: ClassVar[int] = 1
    """How many reductions a step takes, one after another."""
    own_collectives: ClassVar[bool] = False
    """Runs collectives by itself, in place of a communicator's."""
    summable: ClassVar[bool] = False
    """An all-reduce can add up its payloads."""
    wire_dtype: ClassVar[torch.dtype] = torch.float32
    """The type of the numbers in a summable payload."""
    period: ClassVar[int] = 1
    """The bytes and the work of a step repeat every so many steps."""
    has_levels: ClassVar[bool] = False
    """`MultiLevel` can select with it, and further among what it has selected, if it is `biased`."""
    coarse: ClassVar[bool] = False
    """Its error may be as long as what it encodes, in the Euclidean norm: an unbiased one's builds up in a memory, a
    biased one's where `ScatterReduce` compresses twice."""
    sparse: ClassVar[bool] = False
    """Sends some coordinates exactly, and nothing of the others."""
    may_send_all: ClassVar[bool] = False
    """Sends everything in some steps."""
    sized_by_elements: ClassVar[bool] = False
    """The bytes of a group depend only on how many elements it has, not on the shapes or lengths of its slots."""
    carries_dense: ClassVar[bool] = False
    """Sends biases and norm scales well enough beside the rest, so that these need no group of their own;
    votes have none either."""
    local_arithmetic: ClassVar[bool] = False
    """Every rank computes by itself a result that must be equal on all ranks, so all need the same hardware."""
    multiplies: ClassVar[bool] = False
    """That result comes from products or bases of matrices, which on CPUs differ with the number of threads."""
    shares_buffers: ClassVar[bool] = False
    """The buffers of another of its kind, as of another ratio, serve as well."""
    flat_state: ClassVar[tuple[str, ...]] = ()
    """The names of the tensors of gradient size that the algorithm keeps."""
    for_shards: ClassVar[Literal["no", "with memory", "yes"]] = "no"
    """Whether `compress_shards` may send FSDP2's shards with it; "with memory": gradients with a memory only."""

    @property
    def once_only(self) -> bool:
        """Whether its errors would build up where each element is compressed twice, as by `ScatterReduce`."""
        return self.biased and self.coarse

    @property
    def decodes_means(self) -> bool:
        """Whether what it decodes estimates the mean gradient; votes and updates do not."""
        return not (self.is_update or self.sign_vote)

    def makes_update(self, rows: int, columns: int) -> bool:
        """Whether what it decodes for a (rows, columns) slot is an update, of which the residual is the momentum."""
        return self.is_update

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The tensors of other than gradient size that this algorithm keeps for a (rows, columns) slot, equal on all
        ranks: see `GroupContext.slots`."""
        return {}

    def init_group(self) -> dict[str, Tensor]:
        """The small tensors on the host that this algorithm keeps for a group: see `GroupContext.group`. What is
        equal on all ranks has a name that begins with `COMMON`."""
        return {}

    @property
    def state_names(self) -> set[str]:
        """The names of all state that it keeps."""
        of_slot = self.init_slot(2, 2, torch.Generator().manual_seed(0))
        return {*self.flat_state, *of_slot, *self.init_group()}

    @property
    def takes_parts(self) -> bool:
        """Whether parts of a group can be encoded by themselves. State is kept for whole groups, so not with any."""
        if not self.divisible or self.own_collectives:
            return self.divisible
        try:
            return not self.state_names
        except Exception:  # a user's may keep state of larger slots alone
            return False

    def phase(self, step: int) -> int:
        """The phase of a step: where this is `recordable`, steps of one phase launch the same work."""
        return step % self.period

    @abstractmethod
    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, reduce_codec: "ReduceCodec") -> Reduction:
        """Writes the sum of all ranks' x (n,) = `vector.total()` to where the `mean` goes, and leaves in x what this
        rank did not send. `reduce_codec` does that for the payloads of a codec."""


class FixedSizeCompressor(Compressor):
    """A compressor whose messages follow from layout and step alone, and that can compute its error on a slot."""

    @abstractmethod
    def messages(self, layout: Layout, step: int) -> "Sequence[tuple[Codec, Layout]]":
        """The codec of each round of a step, and the vector that it encodes."""

    def group_bytes(self, layout: Layout, step: int) -> int:
        """Bytes of all messages of a whole group, or of a part of one, at this step, the same on all ranks."""
        return sum(codec.group_bytes(part, step) for codec, part in self.messages(layout, step))

    def slot_bytes(self, slot: Slot) -> float:
        """The bytes that a slot adds to a group's, without what a group costs; the mean over steps that differ."""
        return fmean(self.group_bytes(Layout((slot,)), step) for step in range(self.period))

    @classmethod
    @abstractmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        """|x - what each of `choices`, all of this class, sends of it|², or about that, for a slot's x (n,)."""


class Codec(FixedSizeCompressor):
    """A compressor that turns n numbers into a fixed count of bytes, by itself on each rank.

    The payload's size does not depend on the numbers, so that ranks need not tell each other how much comes. A codec
    that is not `divisible` encodes whole groups only: it looks at whole slots, or does not do the same at every step.
    One that looks at slots in its `group_bytes` is not `sized_by_elements`.
    """

    sized_by_elements = True

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
        return [choice._square_error(x, slot) for choice in choices]

    def _square_error(self, x: Tensor, slot: Slot) -> float:
        """The square norm of what `encode` leaves."""
        # encode a copy, and measure what is left
        context = context_for(Layout((slot,)), self, x.device)
        size = self.group_bytes(context.layout, 0)
        payload = torch.zeros(size // 4 * 4 + 4, dtype=torch.uint8, device=x.device)[:size]
        left = x.clone()
        self.encode(LazySum.of(left), payload[None], context.whole)
        return float(left.double().square().sum())

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, reduce_codec: "ReduceCodec") -> Reduction:
        return reduce_codec(self, vector, mean, context)

    @abstractmethod
    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        """Writes to a row of payloads (parts, ≥ bytes) uint8 what is sent of each part of x (n,) = `vector.total()`,
        and leaves in x what is not: x minus what the payloads stand for. Without `context.error_feedback` what is left
        in x does not matter."""

    @abstractmethod
    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        """Decodes payloads (parts, ranks, ≥ bytes) uint8, and writes each part's sum over the ranks where the mean
        goes. An all-gather has one part and several ranks, a ScatterReduce ends with several parts of one rank."""


class SimpleCodec(Codec):
    """A codec written for one vector; a group's parts take turns. To write your own, say how many `payload_bytes` n
    elements take, and define `compress` and `decompress`."""

    @abstractmethod
    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        """Writes to payload (bytes,) uint8 what is sent of x (n,), and leaves in x what is not."""

    @abstractmethod
    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        """Decodes payloads (ranks, bytes) uint8, and writes their sum to out (n,)."""

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for x, payload, context in self._each(vector.total(), payloads, parts):
            self.compress(x, payload, context)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        for out, rows, context in self._each(mean.vector(), payloads, parts):
            self.decompress(rows, out, context)

    def _each(self, x: Tensor, payloads: Tensor, parts: Parts) -> Iterator[tuple[Tensor, Tensor, GroupContext]]:
        """Each part of x (n,), with the bytes of its row of payloads (parts, ..., ≥ bytes) that it fills, for it may be
        shorter than others, and its context."""
        for part, row, context in zip(x.split(parts.lengths), payloads, parts.contexts, strict=False):
            yield part, row if parts.is_whole else row[..., : self.group_bytes(context.layout, context.step)], context


class Rowwise(SimpleCodec):
    """A simple codec written for vectors of equal length, as the rows of a matrix: few launches on a GPU. On a CPU each
    part is a matrix of one row. It compresses x (m, n) to payloads (m, ≥ bytes), and decompresses payloads
    (m, ranks, ≥ bytes) to out (m, n)."""

    def _each(self, x: Tensor, payloads: Tensor, parts: Parts) -> Iterator[tuple[Tensor, Tensor, GroupContext]]:
        for part, rows in equal_parts(x, payloads, parts.bounds):
            yield part, rows, parts.context


ReduceCodec = Callable[[Codec, LazySum, Mean, GroupContext], Reduction]
"""reduce_codec(codec, vector, mean, context): each rank sends x (n,) = `vector.total()` as `codec` encodes it. The sum
over the ranks is written to `mean`; x keeps the part that this rank did not send."""


class Selective(Codec):
    """A codec that sends some elements, or some coefficients of a transform, each with its index."""

    @abstractmethod
    def entries(self, rows: Tensor, context: GroupContext) -> tuple[Tensor, Tensor]:
        """Indices (m,) int64 and values (m,) of the elements of n that payloads (ranks, ·) hold, one payload after
        another. Entries that a payload did not fill have value 0."""

    def decode_over_senders(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        """Decodes payloads (ranks, ≥ bytes) uint8 to out (n,): `world` times an element's sum over the ranks, by the
        number of those that sent it."""
        self.decode(rows[None], Mean.of(out), context.whole)
        self.weigh_by_senders(out, rows, context)

    def weigh_by_senders(self, sums: Tensor, rows: Tensor, context: GroupContext) -> None:
        """Multiplies each of sums (n,), over the ranks, by `world`, and divides it by the number of payloads (ranks, ·)
        that have it."""
        # count the senders of each
        senders = context.buffers.tensor("senders", (len(sums),)).zero_()
        for some in at_once(rows):
            places, values = self.entries(some, context)
            senders.index_add_(0, places, values.ne(0).float())
        # divide by them
        sums.mul_(context.world).div_(senders.clamp_(min=1))


class MultiRound(Compressor):
    """A compressor with `rounds` collectives of its own: a two-round algorithm reads like its paper."""

    own_collectives = True


def context_for(layout: Layout, compressor: Compressor, device: torch.device) -> GroupContext:
    """The context of a rank alone, with fresh state: for using a compressor without a job."""
    # the state that a job would keep
    generator = torch.Generator().manual_seed(0)
    slots = [compressor.init_slot(*slot.matrix, generator) for slot in layout.slots]
    buffers = Workspace(device)
    context = GroupContext(
        layout, 0, 1, buffers, Workspace(device), SlotState(slots), GroupState(compressor.init_group())
    )
    # two buffers of each tensor of gradient size
    for name in compressor.flat_state:
        context.flat[name] = DoubleBuffer(*torch.zeros(2, layout.numel, dtype=torch.float32, device=device))
    return context
