"""Rounding to the nearest of a few levels: every element is sent, in 2 to 8 bits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors.blockwise import Blockwise
from gradwire.compressors.context import Parts
from gradwire.ops.formats import Code, nearest
from gradwire.ops.noise import Seed
from gradwire.slots import Layout

NO_NOISE = Seed(0)


@dataclass(frozen=True)
class Quantized(Blockwise, recordable=True):
    """Whole numbers of few bits, rounded to the nearest, times a scale per block: the block's largest magnitude comes
    out exactly, but for the scale's rounding to bfloat16. Wants `memory.Residual`.

    Blocks begin where slots do, so that no small gradient, such as a norm's, shares a scale with a large one. ZeRO++
    sends gradients in blocks of 4 bits as well, without a memory (Wang et al., 2023, https://arxiv.org/abs/2306.10209).
    """

    bits: int = 4
    """Of an element: 8, 4, 3 or 2. Use 3 or more with `ScatterReduce`, which compresses twice: of 2 bits errors build
    up there, until means are more than three times as long as gradients."""
    block: int = 64
    """Elements that share a scale."""
    carries_dense: ClassVar[bool] = True
    for_shards = "yes"
    sized_by_elements = False

    @property
    def coarse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bits == 2

    @property
    def code(self) -> Code:
        return nearest(self.bits, self.block)

    def parts(self, layout: Layout) -> tuple[int, ...]:
        return tuple(_merged((slot.numel for slot in layout.slots), self.block))

    def seeds(self, parts: Parts) -> list[Seed]:
        return [NO_NOISE] * len(parts.lengths)


def _merged(lengths: Iterable[int], block: int) -> Iterator[int]:
    """Joins a part that fills whole blocks with the one behind it: the same payload, of fewer parts."""
    total = 0
    for length in lengths:
        total += length
        # a part that does not end with a block: the next one starts a block of its own
        if total % block:
            yield total
            total = 0
    if total:
        yield total
