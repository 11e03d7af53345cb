"""Scatter-reduce: each rank sums one part of the gradient, compresses the sum and shares it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from gradwire.collective import AllToAll, Gather, framed
from gradwire.communicators.communicator import SummingCommunicator
from gradwire.compressors import Codec, Compressor, GroupContext, Parts, Reduction
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout
from gradwire.wire import Wire, all_gather, all_to_all

ALIGN = 4096


@dataclass(frozen=True)
class ScatterReduce(SummingCommunicator, recordable=True):
    """All-to-all, sum in float32, compress again, all-gather: two payloads per rank however many ranks.

    The error of the second compression goes into the memory of the rank that did it, so that nothing is lost.
    """

    collectives: ClassVar[int] = 2

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        # a sum of votes has a zero, which a bit has not
        if compressor.sign_vote:
            raise ValueError(
                f"{type(compressor).__name__}'s vote may be a tie, which a second compression would make a plus; "
                "pair it with AllGather()"
            )
        if not compressor.takes_parts:
            raise ValueError(f"{type(compressor).__name__} cannot encode parts of a group; pair it with AllGather()")
        if not compressor.biased and compressor.sparse:
            raise ValueError(f"{compressor} would multiply what it sends a second time; pair it with AllReduce()")

    def codec_wire(self, codec: Codec, layout: Layout, world: int, step: int) -> Wire:
        size = framed(max(_sizes(codec, layout, part_bounds(layout.numel, world), step)))
        return all_to_all(world * size, world) + all_gather(size, world)

    def reduce_codec(self, codec: Codec, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x, bounds = vector.total(), part_bounds(vector.numel, context.world)
        parts = Parts(context, bounds)
        sizes = _sizes(codec, context.layout, bounds, context.step)

        # encode each rank's part
        send = context.message("send", max(sizes), rows=context.world)
        codec.encode(vector, send.body, parts)
        receive = context.message("receive", max(sizes), rows=context.world)
        yield AllToAll(send, receive)

        # decode and sum this rank's part, encode the sum
        a, b = bounds[context.rank], bounds[context.rank + 1]
        again = context.message("again", max(sizes))
        if a < b:
            size, part = sizes[context.rank], context.part(a, b)
            total = context.buffers.tensor("part", (b - a,))
            codec.decode(receive.body[None, :, :size], Mean.of(total), part.whole)
            codec.encode(LazySum.of(total), again.body[None, :size], part.whole)
            # keep what was not sent of the sum
            if context.error_feedback:
                x[a:b].add_(total)
        yield Gather(again, receive, parts=send)

        # decode the sums of all parts
        codec.decode(receive.body[:, None], mean, parts)


def _sizes(codec: Codec, layout: Layout, bounds: Sequence[int], step: int) -> list[int]:
    """The bytes of the payload of each rank's part."""
    return [codec.group_bytes(layout.cut(a, b), step) if a < b else 0 for a, b in pairwise(bounds)]


def part_bounds(n: int, world: int) -> list[int]:
    """The bounds (world + 1,) of near-equal parts of n elements, on multiples of ALIGN unless parts are smaller."""
    size = -(-n // world)
    size = -(-size // ALIGN) * ALIGN if size >= ALIGN else size
    return [min(n, rank * size) for rank in range(world + 1)]
