"""How the factors of low rank travel as codes."""

from collections.abc import Iterator
from dataclasses import dataclass

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
