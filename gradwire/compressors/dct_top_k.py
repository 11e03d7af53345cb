"""Top-k of cosine transforms: DeMo's payload."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.compressors.compressor import Selective, SimpleCodec
from gradwire.compressors.context import GroupContext
from gradwire.ops.backend import backend_for
from gradwire.ops.dct import (
    CosineBlocks,
    cosine_blocks,
    from_coefficients,
    subtract_blocks,
    to_coefficients,
    write_blocks,
)
from gradwire.ops.slices import SliceEntries, Slices
from gradwire.slots import Layout


@dataclass(frozen=True)
class DCTTopK(SimpleCodec, Selective, recordable=True):
    """The `k` largest coefficients of the discrete cosine transform of each block of a gradient as a matrix, as DeMo
    sends (Decoupled Momentum, Peng et al., 2024, https://arxiv.org/abs/2411.19870).

    The matrix is `Slot.matrix`. It is cut into blocks whose sides are the largest divisors of its own that are at most
    `chunk`, a vector into chunks likewise. Each block is transformed along both axes by the orthonormal DCT-II.

    With `Residual(decay=0.999)`, whose residual is the momentum, `AllGather(over_senders=True)` and
    `gw.SignDescent(parameters, lr)` this is DeMo.

    Payload: values float32, then indices within the block, 32 bits where blocks are larger than 65,536 elements,
    16 bits elsewhere: 192 bytes for 32 of 64 x 64, 85 times fewer than in float32. A side whose divisors are small,
    such as a prime, makes small blocks, which send a larger part.
    """

    k: int = 32
    """Coefficients sent of each block; all of a smaller one."""
    chunk: int = 64
    """Elements of a block's longest side."""
    divisible = False
    sized_by_elements = False
    carries_dense: ClassVar[bool] = True
    local_arithmetic = True
    multiplies = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1 or self.chunk < 1:
            raise ValueError(f"k={self.k} coefficients of blocks of chunk={self.chunk} are none; use k=32, chunk=64")

    def blocks(self, layout: Layout) -> tuple[CosineBlocks, ...]:
        """The blocks of a group, shape by shape."""
        return cosine_blocks(layout, self.chunk)

    def payload_bytes(self, n: int) -> int:
        return self.group_bytes(Layout.vector(n), 0)

    def group_bytes(self, layout: Layout, step: int) -> int:
        return self._slices(self.blocks(layout)).nbytes

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        blocks, slices = self._layouts(context)
        flat, spare = self._vectors(context)
        # transform, and move the largest coefficients of each block
        to_coefficients(x, flat, spare, blocks)
        backend_for(x).move_slices(flat, payload, slices)
        # keep what they do not stand for
        if context.error_feedback:
            subtract_blocks(self._transformed_back(self._sums(payload[None], context), context), x, blocks)

    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        sums = self._sums(rows, context)
        write_blocks(self._transformed_back(sums, context), out, self._layouts(context)[0])

    def decode_over_senders(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        sums = self._sums(rows, context)
        self.weigh_by_senders(sums, rows, context)
        write_blocks(self._transformed_back(sums, context), out, self._layouts(context)[0])

    def entries(self, rows: Tensor, context: GroupContext) -> tuple[Tensor, Tensor]:
        return backend_for(rows).unpack_slices(rows, self._layouts(context)[1])

    def _sums(self, rows: Tensor, context: GroupContext) -> Tensor:
        """The sums (n,), block by block, of the coefficients in payloads (ranks, ≥ bytes)."""
        flat, _ = self._vectors(context)
        backend_for(flat).sum_slices(rows, flat, self._layouts(context)[1])
        return flat

    def _transformed_back(self, coefficients: Tensor, context: GroupContext) -> Tensor:
        """The elements (n,), block by block, of coefficients (n,), in their place."""
        from_coefficients(coefficients, self._vectors(context)[1], self._layouts(context)[0])
        return coefficients

    def _layouts(self, context: GroupContext) -> tuple[tuple[CosineBlocks, ...], SliceEntries]:
        """The group's blocks, and the layout of its payload."""

        def make() -> tuple[tuple[CosineBlocks, ...], SliceEntries]:
            blocks = self.blocks(context.layout)
            return blocks, self._slices(blocks)

        return context.buffers.once((self, "layouts"), make)

    def _slices(self, blocks: tuple[CosineBlocks, ...]) -> SliceEntries:
        """The layout of a payload: each block's coefficients are a slice of their vector."""
        return SliceEntries.of(Slices(each.start, each.count, each.size, min(self.k, each.size), 1) for each in blocks)

    def _vectors(self, context: GroupContext) -> tuple[Tensor, Tensor]:
        """Scratch (n,) for the coefficients, and for a half of their transform."""
        shape = (context.layout.numel,)
        return context.scratch.tensor("coefficients", shape), context.scratch.tensor("half transform", shape)
