"""How the factors of low rank travel as codes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.compressors.nearest import Quantized
from gradwire.ops.lazy_sum import LazySum
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

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        for codec, part, own, sent in self._walk(vector.total(), payload, context):
            codec.encode(LazySum.of(own), sent, part)

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        for codec, part, own, sent, cuts in self._walk_parts(x, rows, bounds, context):
            codec.encode_parts(own, sent, cuts, part)

    def decode_parts(self, rows: Tensor, out: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        for codec, part, own, sent, cuts in self._walk_parts(out, rows, bounds, context):
            codec.decode_parts(sent, own, cuts, part)

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        for codec, part, own, sent in self._walk(out, rows, context):
            codec.decode(sent, own, part)

    def _parts(self, layout: Layout) -> list[tuple[Quantized, int, int]]:
        """The codecs, and from where to where each encodes."""
        n = sum(slot.numel for slot in layout.slots if len(slot.shape) == 2)
        return [part for part in ((Quantized(self.bits), 0, n), (VECTORS, n, layout.numel)) if part[1] < part[2]]

    def _walk(
        self, x: Tensor, payloads: Tensor, context: GroupContext
    ) -> Iterator[tuple[Quantized, GroupContext, Tensor, Tensor]]:
        """Each codec, the context of its part, that part of x (n,) and its bytes (..., m) of the payloads."""
        at = 0
        for codec, a, b in self._parts(context.layout):
            part = context.part(a, b)
            size = codec.group_bytes(part.layout, context.step)
            yield codec, part, x[a:b], payloads[..., at : at + size]
            at += size

    def _walk_parts(
        self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext
    ) -> Iterator[tuple[Quantized, GroupContext, Tensor, Tensor, list[int]]]:
        """As `_walk`, for the parts of x between `bounds`, each with a row: what of each codec begins at the same byte
        of all rows, and the bounds in it. Where a part has factors and vectors, these begin behind its factors."""
        for codec, a, b in self._parts(context.layout):
            cuts = [min(max(bound, a), b) for bound in bounds]
            first = next(i for i, (start, end) in enumerate(pairwise(cuts)) if start < end)
            factors = context.layout.cut(bounds[first], cuts[first]) if bounds[first] < cuts[first] else None
            at = self.group_bytes(factors, context.step) if factors else 0
            shared = first + 1 if at else first
            for i, j, byte in ((first, shared, at), (shared, len(rows), 0)):
                if cuts[i] < cuts[j]:
                    part, own = context.part(cuts[i], cuts[j]), x[cuts[i] : cuts[j]]
                    yield codec, part, own, rows[i:j, byte:], [cut - cuts[i] for cut in cuts[i : j + 1]]
