"""What a communicator is: how the payloads of all ranks become one mean."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.communicators.wire import Wire
from gradwire.compressors import Codec, Compressor, GroupContext, MultiRound, Predictable, RandomK, Reduction, Sparse
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.options import Options
from gradwire.recordable import Recordable
from gradwire.slots import Layout


class Communicator(Options, Recordable, ABC):
    """A frozen dataclass. x is already divided by the number of ranks, so that the sum over the ranks is the mean."""

    name: ClassVar[str]

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming the pairing that works, where this one makes no sense."""
        if isinstance(compressor, MultiRound) and compressor.summable:
            raise ValueError(
                f"{type(compressor).__name__} sums its own factors; pair it with AllReduce(), not {self.name}()"
            )

    def rounds(self, compressor: Compressor, world: int) -> int:
        """How many collectives `reduce` takes among `world` ranks, one after another."""
        return 1

    def init_group(self) -> dict[str, Tensor]:
        """The small tensors on the host that this algorithm keeps for a group: see `GroupContext.group`."""
        return {}

    def phase(self, step: int, world: int) -> int:
        """The phase of a step among `world` ranks, as `Compressor.phase`."""
        return 0

    def dense_dtype(self, compressor: Compressor) -> torch.dtype | None:
        """As which type of numbers a gradient that nothing is kept of may be summed where it lies; None where it may
        not."""
        return None

    @abstractmethod
    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        """What it costs one of `world` ranks to reduce a group at this step, flags included."""

    @abstractmethod
    def reduce(self, compressor: Compressor, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        """Writes the sum of all ranks' x (n,) = `vector.total()`, as compressed, to where the `mean` goes, and leaves
        in x what this rank did not send. Without `context.remember` both may be the same memory, and what is left in x
        does not matter."""


class SummingCommunicator(Communicator):
    """Adds up what codecs encode, by so many `collectives`; of a compressor of several rounds, round by round."""

    collectives: ClassVar[int] = 1

    def rounds(self, compressor: Compressor, world: int) -> int:
        return self.collectives * compressor.rounds

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Predictable)
        messages = compressor.messages(layout, step)
        return sum((self.codec_wire(codec, part, world, step) for codec, part in messages), Wire(0, 0))

    def reduce(self, compressor: Compressor, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        return compressor.reduce(vector, mean, context, self.add_up)

    @abstractmethod
    def codec_wire(self, codec: Codec, layout: Layout, world: int, step: int) -> Wire:
        """What it costs one of `world` ranks to add up what a codec encodes at this step."""

    @abstractmethod
    def add_up(self, codec: Codec, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        """See `AddUp`."""


class SparseCommunicator(Communicator):
    """Moves selected elements by their indices, so it wants a compressor that selects: TopK, DGC and the like.

    Every buffer has a size that the plan alone determines. What does not fit stays in, or goes back to, the
    memory of the rank that had it. Where values are added in flight (`sums_values`), they cannot be codes.
    """

    sums_values: ClassVar[bool] = False

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if isinstance(compressor, RandomK):
            raise ValueError(
                f"RandomK's ranks share their indices already; pair it with AllReduce(), not {self.name}()"
            )
        if not isinstance(compressor, Sparse):
            other = "AllReduce" if compressor.summable else "AllGather"
            raise ValueError(
                f"{self.name}() moves elements by their indices, and {type(compressor).__name__} shows none; "
                f"pair it with {other}(), or {self.name}() with TopK()"
            )
        if self.sums_values and compressor.value_bits != 32:
            raise ValueError(
                f"{self.name}() adds up values in flight, which value_bits={compressor.value_bits} are not; "
                "use value_bits=32, or e.g. SplitGather()"
            )

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Sparse)
        return self.codec_wire(compressor, layout.numel, world)

    def reduce(self, compressor: Compressor, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        assert isinstance(compressor, Sparse)
        return self.add_up(compressor, vector, mean, context)

    @abstractmethod
    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        """What it costs one of `world` ranks to add up what a sparsifier selects of n elements."""

    @abstractmethod
    def add_up(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        """`reduce` for a sparsifier."""
