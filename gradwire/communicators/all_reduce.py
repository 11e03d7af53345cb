"""All-reduce: payloads that may be added are added on the way."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import FLAG_BYTES, Sum
from gradwire.communicators.base import Communicator
from gradwire.communicators.wire import Wire, all_reduce
from gradwire.compressors import Codec, Compressor, GroupContext, LowRank, MultiRound, Reduction
from gradwire.slots import Layout


@dataclass(frozen=True)
class AllReduce(Communicator):
    """Sums payloads in flight: 2·(N-1)/N payloads sent per rank. For casts, shared indices and low rank."""

    name: ClassVar[str] = "AllReduce"

    def check(self, compressor: Compressor) -> None:
        if isinstance(compressor, Codec) and not compressor.summable:
            raise ValueError(
                f"the payloads of {type(compressor).__name__} cannot be added by an all-reduce; "
                "pair it with AllGather() or ScatterReduce()"
            )

    def rounds(self, compressor: Compressor, world: int) -> int:
        return compressor.rounds if isinstance(compressor, MultiRound) else 1

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Codec | LowRank)
        size = compressor.group_bytes(layout, step)
        if isinstance(compressor, LowRank):
            flags = FLAG_BYTES * compressor.rounds
            return Wire(2 * (world - 1) * compressor.rounds, all_reduce(size + flags, world).wire_bytes)
        return all_reduce(size + compressor.wire_dtype.itemsize, world)

    def reduce(self, compressor: Compressor, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        if isinstance(compressor, MultiRound):
            return compressor.reduce(x, out, context)
        assert isinstance(compressor, Codec)
        return self._sum(compressor, x, out, context)

    def _sum(self, codec: Codec, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        size = codec.group_bytes(context.layout, context.step)
        message = context.numbers("payload", size // codec.wire_dtype.itemsize, codec.wire_dtype)
        payload = message.body.view(torch.uint8)
        codec.encode(x, payload, context)
        yield Sum(message)
        codec.decode(payload[None], out, context)
