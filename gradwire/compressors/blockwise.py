"""Codecs that see the gradient as blocks, each with scales of its own and a code per element."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.ops.tiles import tiles


class Blockwise(Codec):
    """Payload: scales (blocks, `scales`) float32, then `bits` per element, packed.

    A scale per block of neighbours, not per group, for three reasons: layers of different magnitude do not
    share one, the error does not grow with the group, and a tile is read once while it is in cache.
    """

    bits: ClassVar[int]
    scales: ClassVar[int] = 1
    block: int

    def __post_init__(self) -> None:
        if self.block < 8 or self.block % 8:
            raise ValueError(f"block={self.block} elements do not fill bytes; use a multiple of 8, e.g. block=1024")

    def payload_bytes(self, n: int) -> int:
        return 4 * self.scales * -(-n // self.block) + -(-n * self.bits // 8)

    @abstractmethod
    def quantize(self, part: Tensor, scales: Tensor, codes: Tensor, context: GroupContext) -> None:
        """From part (rows, width), which stays as it is, to scales (rows, `scales`) and codes (bytes,)."""

    @abstractmethod
    def dequantize(self, scales: Tensor, codes: Tensor, out: Tensor) -> None:
        """From scales (rows, `scales`) and codes (bytes,) to out (rows, width)."""

    def encode(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        for part, scales, codes in self.tiles(x, payload):
            self.quantize(part, scales, codes, context)
            if context.remember:
                sent = context.scratch.tensor("dequantized", tuple(part.shape))
                self.dequantize(scales, codes, sent)
                part.sub_(sent)

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        walks = [self.tiles(out, row) for row in rows]
        for tile in zip(*walks, strict=True):
            for rank, (part, scales, codes) in enumerate(tile):
                if rank == 0:
                    self.dequantize(scales, codes, part)
                else:
                    other = context.scratch.tensor("dequantized", tuple(part.shape))
                    self.dequantize(scales, codes, other)
                    part.add_(other)

    def tiles(self, x: Tensor, payload: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Cache-sized parts (rows, width) of x (n,) with their scales (rows, `scales`) and codes (bytes,)."""
        blocks = -(-len(x) // self.block)
        scales = payload[: 4 * self.scales * blocks].view(torch.float32).view(blocks, self.scales)
        codes = payload[4 * self.scales * blocks :]
        for start, rows, width in tiles(x, self.block):
            end = start + rows * width
            first = start // self.block
            yield (
                x[start:end].view(rows, width),
                scales[first : first + rows],
                codes[start * self.bits // 8 : -(-end * self.bits // 8)],
            )
