"""Codecs that see the gradient as blocks, each with scales of its own and a code per element."""

from abc import abstractmethod

from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.ops.formats import Blocks, Code
from gradwire.ops.kernels import decode_blocks
from gradwire.ops.lazy_sum import LazySum


class Blockwise(Codec):
    """Payload: scales, then a code per element, packed: see `gradwire.ops.formats.Blocks`.

    A scale per block of neighbours, not per group, for three reasons: layers of different magnitude do not
    share one, the error does not grow with the group, and a tile is read once while it is in cache.
    """

    def __post_init__(self) -> None:
        _ = self.code  # which refuses what cannot be coded

    @property
    @abstractmethod
    def code(self) -> Code:
        """How a block becomes scales and codes. Raises ValueError for what is none."""

    def layout(self, n: int) -> Blocks:
        """Where in the payload of n elements what lies."""
        return Blocks((n,), self.code)

    def payload_bytes(self, n: int) -> int:
        return self.layout(n).nbytes

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        vector.quantise(self.layout(vector.numel), payload, keep=context.remember, seed=context.own_seed())

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        decode_blocks(rows, out, self.layout(len(out)))
