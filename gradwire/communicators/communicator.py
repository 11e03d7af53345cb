"""The interfaces of communicators: collectives by which all ranks' payloads become one mean."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import Codec, Compressor, FixedSizeCompressor, GroupContext, Reduction, Sparse
from gradwire.compressors.companion import Companion
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout
from gradwire.wire import Wire


class Communicator(Companion):
    """An algorithm that reduces a group over the ranks: a frozen dataclass of its options. Gradients come divided by
    the number of ranks, so that the sum over the ranks is the mean."""

    sends_levels: ClassVar[bool] = False
    """Sends `MultiLevel`'s payloads."""
    decodes_all: ClassVar[bool] = False
    """Every rank decodes the payloads of all, which takes longer with more ranks."""

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming a pairing that works, for a compressor that this one cannot reduce."""
        if compressor.own_collectives and compressor.summable:
            raise ValueError(
                f"{type(compressor).__name__} sums its own factors; pair it with AllReduce(), not {self.called}()"
            )

    def rounds(self, compressor: Compressor, world: int) -> int:
        """The collectives that `reduce` runs among `world` ranks, one after another."""
        return 1

    def init_group(self) -> dict[str, Tensor]:
        """The small tensors on the host that this algorithm keeps for a group: see `GroupContext.group`. What is
        equal on all ranks has a name that begins with `COMMON`."""
        return {}

    def phase(self, step: int, world: int) -> int:
        """The phase of a step among `world` ranks, as `Compressor.phase`."""
        return 0

    def dense_dtype(self, compressor: Compressor) -> torch.dtype | None:
        """The type of numbers as which a gradient without a memory may be summed where it lies; None where it may
        not."""
        return None

    @abstractmethod
    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        """The cost for one of `world` ranks to reduce a group at this step, flags included."""

    @abstractmethod
    def reduce(self, compressor: Compressor, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        """Writes the sum of all ranks' x (n,) = `vector.total()`, as compressed, to where the `mean` goes, and leaves
        in x what this rank did not send. Without `context.error_feedback` both may be the same memory, and what is left
        in x does not matter."""


class SummingCommunicator(Communicator):
    """A communicator that sums the payloads of any codec; of a compressor of several rounds, round by round."""

    collectives: ClassVar[int] = 1
    """That a round takes."""

    def rounds(self, compressor: Compressor, world: int) -> int:
        return self.collectives * compressor.rounds

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, FixedSizeCompressor)
        messages = compressor.messages(layout, step)
        return sum((self.codec_wire(codec, part, world, step) for codec, part in messages), Wire(0, 0))

    def reduce(self, compressor: Compressor, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        return compressor.reduce(vector, mean, context, self.reduce_codec)

    @abstractmethod
    def codec_wire(self, codec: Codec, layout: Layout, world: int, step: int) -> Wire:
        """The cost for one of `world` ranks to sum a codec's payloads at this step."""

    @abstractmethod
    def reduce_codec(self, codec: Codec, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        """See `ReduceCodec`."""


class SparseCommunicator(Communicator):
    """A communicator that moves selected elements by their indices: for TopK, DGC and the like.

    Every buffer has a size that the plan alone determines. Elements beyond that capacity stay in, or go back to, the
    memory of the rank that had them.
    """

    sums_values: ClassVar[bool] = False
    """Values are added in flight, so they cannot be codes."""

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        # no indices need to travel
        if compressor.sparse and compressor.summable:
            raise ValueError(
                f"{type(compressor).__name__}'s ranks share their indices already; pair it with AllReduce(), not "
                f"{self.called}()"
            )
        # sums of codes are no codes
        bits = self._sparse(compressor).value_bits
        if self.sums_values and bits != 32:
            raise ValueError(
                f"{self.called}() adds up values in flight, which value_bits={bits} are not; "
                "use value_bits=32, or e.g. SplitGather()"
            )

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        return self.codec_wire(self._sparse(compressor), layout.numel, world)

    def reduce(self, compressor: Compressor, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        return self.reduce_codec(self._sparse(compressor), vector, mean, context)

    def _sparse(self, compressor: Compressor) -> Sparse:
        """The compressor. Raises ValueError for one that sends no indices."""
        if not isinstance(compressor, Sparse):
            other = "AllReduce" if compressor.summable else "AllGather"
            raise ValueError(
                f"{self.called}() moves elements by their indices, and {type(compressor).__name__} shows none; "
                f"pair it with {other}(), or {self.called}() with TopK()"
            )
        return compressor

    @abstractmethod
    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        """The cost for one of `world` ranks to sum a sparsifier's selections of n elements."""

    @abstractmethod
    def reduce_codec(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        """`reduce` for a sparsifier."""
