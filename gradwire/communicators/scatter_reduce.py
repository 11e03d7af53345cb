"""Scatter-reduce: each rank sums one part of the gradient, compresses the sum and shares it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from gradwire.collective import AllToAll, Gather, framed
from gradwire.communicators.base import Communicator, payload_message
from gradwire.communicators.wire import Wire, all_gather, all_to_all
from gradwire.compressors import Codec, Compressor, GroupContext, Reduction, SignSGD
from gradwire.slots import Layout


@dataclass(frozen=True)
class ScatterReduce(Communicator):
    """All-to-all, sum in float32, compress again, all-gather: two payloads per rank however many ranks.

    What the second compression drops goes into the memory of the rank that did it, so that nothing is lost.
    """

    name: ClassVar[str] = "ScatterReduce"

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if isinstance(compressor, SignSGD):
            raise ValueError(
                f"{type(compressor).__name__}'s vote may be a tie, which a second compression would make a plus; "
                "pair it with AllGather()"
            )
        if isinstance(compressor, Codec) and not compressor.divisible:
            raise ValueError(f"{type(compressor).__name__} cannot encode parts of a group; pair it with AllGather()")
        if not compressor.biased and compressor.sparse:
            raise ValueError(f"{compressor} would multiply what it sends a second time; pair it with AllReduce()")

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Codec)
        size = framed(compressor.payload_bytes(chunks(layout.numel, world)[1]))
        return all_to_all(world * size, world) + all_gather(size, world)

    def reduce(self, compressor: Compressor, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        assert isinstance(compressor, Codec)
        bounds = chunks(len(x), context.world)
        spans, largest = list(pairwise(bounds)), bounds[1]

        send = payload_message(context, "send", compressor, largest, rows=context.world)
        for row, (a, b) in zip(send.body, spans, strict=True):
            if a < b:
                compressor.encode(x[a:b], row[: compressor.payload_bytes(b - a)], context)
        receive = payload_message(context, "receive", compressor, largest, rows=context.world)
        yield AllToAll(send, receive)

        a, b = spans[context.rank]
        again = payload_message(context, "again", compressor, largest)
        if a < b:
            size = compressor.payload_bytes(b - a)
            total = context.buffers.tensor("chunk", (b - a,))
            compressor.decode(receive.body[:, :size], total, context)
            compressor.encode(total, again.body[:size], context)
            if context.remember:
                x[a:b].add_(total)  # what is left of the sum
        yield Gather(again, receive)

        for row, (start, end) in zip(receive.body, spans, strict=True):
            if start < end:
                compressor.decode(row[None, : compressor.payload_bytes(end - start)], out[start:end], context)


def chunks(n: int, world: int, align: int = 4096) -> list[int]:
    """The bounds (world + 1,) of near-equal parts of n elements, on multiples of `align` where there is room."""
    size = -(-n // world)
    size = -(-size // align) * align if size >= align else size
    return [min(n, rank * size) for rank in range(world + 1)]
