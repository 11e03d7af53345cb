"""Low rank as an estimate of the gradient: what PowerSGD and ACP-SGD have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from torch import Tensor

from gradwire.compressors.compressor import Codec, ReduceCodec, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.dense import FP32
from gradwire.compressors.factor_codec import FactorCodec
from gradwire.compressors.low_rank import LowRank
from gradwire.ops.formats import nearest
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import even
from gradwire.slots import Layout, Slot


@dataclass(frozen=True)
class LowRankEstimate(LowRank):
    """Low-rank approximation M ≈ Pᵀ Q of each matrix; those for which that saves too little travel as vectors do."""

    min_compression_rate: float = 2.0
    """A matrix is factored where it takes more than so many times the bits of both factors."""
    start_step: int = 0
    """Before this step everything travels as it is."""
    bits: int = 32
    """Of a factor's element: 32 for float32, or 8, 4, 3 or 2 for codes with a scale per 64 elements of a row; then
    what is not factored travels in 8 bits. The codes' error stays in the memory. Use 3 or more bits with
    `ScatterReduce`, as of `Quantized`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_compression_rate >= 1:
            raise ValueError(
                f"min_compression_rate={self.min_compression_rate} would send more than the gradient; use 1 or more"
            )
        if self.start_step < 0:
            raise ValueError(f"start_step={self.start_step} is before the first; use 0 to compress from the start")
        if self.bits != 32:
            nearest(self.bits)

    @property
    def summable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bits == 32

    @property
    def coarse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bits == 2

    @property
    def codec(self) -> Codec:
        return FP32() if self.bits == 32 else FactorCodec(self.bits)

    def factor_rank(self, rows: int, columns: int) -> int:
        r = super().factor_rank(rows, columns)
        # bits of an element and its part of a scale: a bfloat16 per 64 elements of a factor, per 128 of a vector
        factor, other = (32, 32) if self.bits == 32 else (self.bits + 16 / 64, 8 + 16 / 128)
        pays = r * (rows + columns) * factor * self.min_compression_rate < rows * columns * other
        return r if pays and r < min(rows, columns) else 0

    def messages(self, layout: Layout, step: int) -> Sequence[tuple[Codec, Layout]]:
        if step < self.start_step:
            return [(FP32(), layout.cut(start, end)) for start, end in pairwise(even(layout.numel, self.rounds))]
        return super().messages(layout, step)

    def slot_bytes(self, slot: Slot) -> float:
        steps = range(self.start_step, self.start_step + self.period)
        return fmean(self.group_bytes(Layout((slot,)), step) for step in steps)

    def phase(self, step: int) -> int:
        return -1 if step < self.start_step else super().phase(step)

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec) -> Reduction:
        # dense at first
        if context.step < self.start_step:
            return self._reduce_dense(vector.total(), mean, context, reduce_codec)
        return super().reduce(vector, mean, context, reduce_codec)

    def _reduce_dense(self, x: Tensor, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec) -> Reduction:
        """`reduce` of a step before `start_step`, in as many rounds as later: the sequence of collectives must not
        depend on the step."""
        out = context.buffers.tensor("dense sums", (len(x),))
        for start, end in pairwise(even(len(x), self.rounds)):
            yield from reduce_codec(FP32(), LazySum.of(x[start:end]), Mean.of(out[start:end]), context.part(start, end))
        mean.vector().copy_(out)
