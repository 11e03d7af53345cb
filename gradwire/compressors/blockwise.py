"""Codecs that see the gradient as blocks, each with scales of its own and a code per element."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import Blocks, Code
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean


class Blockwise(Codec):
    """Payload: scales, then a code per element, packed: see `gradwire.ops.formats.Blocks`.

    A scale per block of neighbours, not per group, for three reasons: layers of different magnitude do not
    share one, the error does not grow with the group, and a tile is read once while it is in cache.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
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
        vector.quantise([self.layout(vector.numel)], payload[None], keep=context.remember, seeds=[context.own_seed()])

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        layouts = self._layouts(bounds)
        seeds = [context.own_seed() for _ in layouts]
        LazySum.of(x).quantise(layouts, rows, keep=context.remember, seeds=seeds)

    def decode_parts(self, rows: Tensor, out: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        backend_for(out).decode_blocks(rows[:, None], out, self._layouts(bounds))

    def _layouts(self, bounds: Sequence[int]) -> list[Blocks]:
        return [self.layout(b - a) for a, b in pairwise(bounds) if a < b]

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        backend_for(out).decode_blocks(rows[None], out, [self.layout(len(out))])

    def decode_to(self, mean: Mean, rows: Tensor, context: GroupContext) -> None:
        backend_for(rows).decode_blocks(rows[None], mean.parts(), [self.layout(context.layout.numel)])
