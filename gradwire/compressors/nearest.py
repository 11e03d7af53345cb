"""Rounding to the nearest of a few levels: every element is sent, in 2 to 8 bits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import Blocks, nearest
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout


@dataclass(frozen=True)
class Quantized(Codec):
    """Whole numbers of `bits` bits (8, 4, 3 or 2), rounded to the nearest, times a scale per `block` elements: the
    block's largest magnitude comes out exactly, but for the scale's rounding to bfloat16. Wants `memory.Residual`.

    Blocks begin where slots do, so that no small gradient, such as a norm's, shares a scale with a large one. 4 bits in
    blocks of 64 are what ZeRO++ sends (Wang et al., 2023, https://arxiv.org/abs/2306.10209), there without a memory.
    """

    bits: int = 4
    block: int = 64
    carries_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        nearest(self.bits, self.block)

    def blocks(self, layout: Layout) -> Blocks:
        """How the payload of these slots is laid out."""
        lengths = (slot.numel for slot in layout.slots)
        return Blocks(tuple(_merged(lengths, self.block)), nearest(self.bits, self.block))

    def payload_bytes(self, n: int) -> int:
        return self.group_bytes(Layout.vector(n), 0)

    def group_bytes(self, layout: Layout, step: int) -> int:
        return self.blocks(layout).nbytes

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        vector.quantise([self.blocks(context.layout)], payload[None], keep=context.remember, seeds=[0])

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        layouts = self._layouts(bounds, context)
        LazySum.of(x).quantise(layouts, rows, keep=context.remember, seeds=[0] * len(layouts))

    def decode_parts(self, rows: Tensor, out: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        backend_for(out).decode_blocks(rows[:, None], out, self._layouts(bounds, context))

    def _layouts(self, bounds: Sequence[int], context: GroupContext) -> list[Blocks]:
        return [self.blocks(context.layout.cut(a, b)) for a, b in pairwise(bounds) if a < b]

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        backend_for(out).decode_blocks(rows[None], out, [self.blocks(context.layout)])

    def decode_to(self, mean: Mean, rows: Tensor, context: GroupContext) -> None:
        backend_for(rows).decode_blocks(rows[None], mean.parts(), [self.blocks(context.layout)])


def _merged(lengths: Iterable[int], block: int) -> Iterator[int]:
    """Joins what fills whole blocks to what follows it: the same payload, of fewer segments."""
    total = 0
    for length in lengths:
        total += length
        if total % block:
            yield total
            total = 0
    if total:
        yield total
