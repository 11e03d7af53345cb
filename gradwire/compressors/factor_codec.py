"""A codec for the factors of low-rank compressors: few bits per element."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from gradwire.compressors.compressor import Codec
from gradwire.compressors.context import Parts
from gradwire.compressors.quantized import Quantized
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout

VECTORS = Quantized(8, block=128)


@dataclass(frozen=True)
class FactorCodec(Codec):
    """The rows of factors, as matrices of one row, in `bits` bits, and behind them vectors in 8 bits.

    A factor's rows are as different as singular values are, so each has blocks of its own.
    """

    bits: int
    """Bits of a factor's element: 8, 4, 3 or 2."""
    sized_by_elements = False

    def payload_bytes(self, n: int) -> int:
        return VECTORS.payload_bytes(n)

    def group_bytes(self, layout: Layout, step: int) -> int:
        return sum(codec.group_bytes(layout.cut(a, b), step) for codec, a, b in self._parts(layout))

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for codec, x, rows, stretch in self._walk(vector.total(), payloads, parts):
            codec.encode(LazySum.of(x), rows, stretch)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        for codec, out, rows, stretch in self._walk(mean.vector(), payloads, parts):
            codec.decode(rows, Mean.of(out), stretch)

    def _parts(self, layout: Layout) -> list[tuple[Quantized, int, int]]:
        """The codecs of factors and vectors, each with the first element that it encodes and the end."""
        n = sum(slot.numel for slot in layout.slots if len(slot.shape) == 2)
        return [part for part in ((Quantized(self.bits), 0, n), (VECTORS, n, layout.numel)) if part[1] < part[2]]

    def _walk(
        self, x: Tensor, payloads: Tensor, parts: Parts
    ) -> Iterator[tuple[Quantized, Tensor, Tensor, Parts]]:  # fmt: skip
        """Each codec with the part of x (n,) that it encodes, the rows (..., ≥ bytes) of payloads, and the parts that
        these are for. What a codec writes begins at the same byte of all these rows: a part that has factors and
        vectors comes by itself, for its vectors begin behind its factors."""
        context, bounds = parts.context, parts.bounds
        for codec, a, b in self._parts(context.layout):
            # the parts' bounds within this codec's elements
            own = [min(max(bound, a), b) for bound in bounds]
            first = next(i for i, (start, end) in enumerate(pairwise(own)) if start < end)
            # the bytes of the factors before the vectors in the first part
            factors = context.layout.cut(bounds[first], own[first]) if bounds[first] < own[first] else None
            at = self.group_bytes(factors, context.step) if factors else 0
            mixed = first + 1 if at else first
            # the mixed part, if there is one, then all others
            for i, j, byte in ((first, mixed, at), (mixed, len(payloads), 0)):
                if own[i] < own[j]:
                    stretch = Parts(context.part(own[i], own[j]), [bound - own[i] for bound in own[i : j + 1]])
                    yield codec, x[own[i] : own[j]], payloads[i:j, ..., byte:], stretch
