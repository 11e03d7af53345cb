"""How the factors of low rank travel as codes."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import Parts
from gradwire.compressors.nearest import Quantized
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout

VECTORS = Quantized(8, block=128)


@dataclass(frozen=True)
class FactorCodec(Codec):
    """Matrices of one row, a factor's, in `bits` bits, and behind them vectors in 8 bits.

    A factor's rows are as different as singular values are, so each has blocks of its own.
    """

    bits: int

    def payload_bytes(self, n: int) -> int:
        return VECTORS.payload_bytes(n)

    def group_bytes(self, layout: Layout, step: int) -> int:
        return sum(codec.group_bytes(layout.cut(a, b), step) for codec, a, b in self._parts(layout))

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for codec, x, rows, own in self._walk(vector.total(), payloads, parts):
            codec.encode(LazySum.of(x), rows, own)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        for codec, out, rows, own in self._walk(mean.vector(), payloads, parts):
            codec.decode(rows, Mean.of(out), own)

    def _parts(self, layout: Layout) -> list[tuple[Quantized, int, int]]:
        """The codecs, and from where to where each encodes."""
        n = sum(slot.numel for slot in layout.slots if len(slot.shape) == 2)
        return [part for part in ((Quantized(self.bits), 0, n), (VECTORS, n, layout.numel)) if part[1] < part[2]]

    def _walk(
        self, x: Tensor, payloads: Tensor, parts: Parts
    ) -> Iterator[tuple[Quantized, Tensor, Tensor, Parts]]:  # fmt: skip
        """Each codec with what it encodes of x (n,), the rows (..., ≥ bytes) of payloads, and the parts that these are
        for: what of each codec begins at the same byte of all rows. Where a part has factors and vectors, these begin
        behind its factors."""
        context, bounds = parts.context, parts.bounds
        for codec, a, b in self._parts(context.layout):
            cuts = [min(max(bound, a), b) for bound in bounds]
            first = next(i for i, (start, end) in enumerate(pairwise(cuts)) if start < end)
            factors = context.layout.cut(bounds[first], cuts[first]) if bounds[first] < cuts[first] else None
            at = self.group_bytes(factors, context.step) if factors else 0
            shared = first + 1 if at else first
            for i, j, byte in ((first, shared, at), (shared, len(payloads), 0)):
                if cuts[i] < cuts[j]:
                    own = Parts(context.part(cuts[i], cuts[j]), [cut - cuts[i] for cut in cuts[i : j + 1]])
                    yield codec, x[cuts[i] : cuts[j]], payloads[i:j, ..., byte:], own
