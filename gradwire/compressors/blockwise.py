"""Codecs that quantise in blocks: each has scales of its own and a code per element."""

from abc import abstractmethod
from functools import cached_property

from torch import Tensor

from gradwire.compressors.compressor import Codec
from gradwire.compressors.context import Parts
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import Blocks, Code
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.noise import Seed
from gradwire.slots import Layout


class Blockwise(Codec):
    """A codec whose payload is scales, then a packed code per element: see `gradwire.ops.formats.Blocks`.

    A block of neighbours has a scale of its own, not the group, for three reasons: few elements of layers of different
    magnitude share one, the error does not grow with the group, and a tile is read once while it is in cache.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.code  # raises for hyperparameters that make no code

    @property
    @abstractmethod
    def code(self) -> Code:
        """How a block becomes scales and codes. Raises ValueError for hyperparameters that make no code."""

    def blocks(self, layout: Layout) -> Blocks:
        """The layout of the payload of these slots."""
        parts = self.parts(layout)
        if parts not in self._blocks:
            self._blocks[parts] = Blocks(parts, self.code)
        return self._blocks[parts]

    def parts(self, layout: Layout) -> tuple[int, ...]:
        """The lengths of the parts of these slots that blocks do not cross: by default all is one part."""
        return (layout.numel,)

    @cached_property
    def _blocks(self) -> dict[tuple[int, ...], Blocks]:
        """Each `Blocks` that was made, by its parts: its sizes are computed once."""
        return {}

    def payload_bytes(self, n: int) -> int:
        return self.group_bytes(Layout.vector(n), 0)

    def group_bytes(self, layout: Layout, step: int) -> int:
        return self.blocks(layout).nbytes

    def seeds(self, parts: Parts) -> list[Seed]:
        """A seed for the noise of each part."""
        return [parts.context.own_seed() for _ in parts.lengths]

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        layouts = [self.blocks(layout) for layout in parts.layouts]
        # add up, quantise, pack, and keep the error, in one pass where a kernel can
        vector.quantise(layouts, payloads, keep=parts.context.error_feedback, seeds=self.seeds(parts))

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        layouts = [self.blocks(layout) for layout in parts.layouts]
        # dequantise and sum over the ranks
        backend_for(payloads).sum_blocks(payloads, parts.output(mean), layouts)
