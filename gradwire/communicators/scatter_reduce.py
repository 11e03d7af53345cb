"""Scatter-reduce: each rank sums one part of the gradient, compresses the sum and shares it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from gradwire.collective import Exchange, Gather
from gradwire.communicators.base import Communicator, flagged, flags, frame
from gradwire.communicators.wire import Wire, all_gather, all_to_all
from gradwire.compressors import Codec, Compressor, Reduction, SignSGD, State
from gradwire.layout import Layout


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
        size = frame(compressor.payload_bytes(chunks(layout.numel, world)[1]))
        return all_to_all(world * size, world) + all_gather(size, world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Codec)
        bounds = chunks(len(x), state.world)
        largest = bounds[1]
        spans = list(pairwise(bounds))
        source = compressor.prepare(x, state)

        send, _ = flagged(state, "send", state.world, compressor, largest)
        for row, (a, b) in zip(send, spans, strict=True):
            if a < b:
                compressor.encode(source[a:b], row[: compressor.payload_bytes(b - a)], state)
        flags(send).copy_(state.flag.expand(state.world, 1))
        receive, _ = flagged(state, "receive", state.world, compressor, largest)
        yield Exchange(send, receive)

        a, b = spans[state.rank]
        total = state.kept.tensor("chunk", (b - a,))
        again, _ = flagged(state, "again", 1, compressor, largest)
        if a < b:
            size = compressor.payload_bytes(b - a)
            compressor.decode(receive[:, :size], total, state)
            compressor.encode(total, again[0, :size], state)
        flags(again).copy_(flags(receive).sum(0))
        yield Gather(again[0], receive)

        state.settle(flags(receive).sum(0))
        out = state.kept.tensor("mean", (len(x),))
        for row, (start, end) in zip(receive, spans, strict=True):
            if start < end:
                compressor.decode(row[None, : compressor.payload_bytes(end - start)], out[start:end], state)
        return out

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        assert isinstance(compressor, Codec)
        if not state.remember:
            return
        bounds = chunks(len(x), state.world)
        send, _ = flagged(state, "send", state.world, compressor, bounds[1])
        for row, a, b in zip(send, bounds[:-1], bounds[1:], strict=True):
            if a < b:
                compressor.commit(row[: compressor.payload_bytes(b - a)], x[a:b], state)
        # what the second compression dropped of this rank's chunk comes back
        a, b = bounds[state.rank], bounds[state.rank + 1]
        total, mean = state.kept.tensor("chunk", (b - a,)), state.kept.tensor("mean", (len(x),))
        state.take(x[a:b], total.neg_().add_(mean[a:b]))


def chunks(n: int, world: int, align: int = 4096) -> list[int]:
    """The bounds (world + 1,) of near-equal parts of n elements, on multiples of `align` where there is room."""
    size = -(-n // world)
    size = -(-size // align) * align if size >= align else size
    return [min(n, rank * size) for rank in range(world + 1)]
