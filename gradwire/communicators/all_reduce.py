"""All-reduce: the collective adds up the payloads."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.collective import Sum
from gradwire.communicators.all_gather import AllGather
from gradwire.communicators.communicator import SummingCommunicator
from gradwire.communicators.scatter_reduce import ScatterReduce
from gradwire.compressors import Codec, Compressor, GroupContext, Reduction
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout
from gradwire.wire import Wire, all_reduce


@dataclass(frozen=True)
class AllReduce(SummingCommunicator, recordable=True):
    """Sums payloads in flight: 2·(N-1)/N payloads sent per rank. For casts, low rank, and values at coordinates that
    all ranks share."""

    sends_levels: ClassVar[bool] = True

    def check(self, compressor: Compressor) -> None:
        if not compressor.summable:
            others = " or ".join(f"{way.called}()" for way in (AllGather(), ScatterReduce()) if way.takes(compressor))
            raise ValueError(f"the payloads of {compressor} cannot be added by an all-reduce; pair it with {others}")

    def dense_dtype(self, compressor: Compressor) -> torch.dtype | None:
        return compressor.wire_dtype if compressor.is_cast else None

    def codec_wire(self, codec: Codec, layout: Layout, world: int, step: int) -> Wire:
        return all_reduce(codec.group_bytes(layout, step) + codec.wire_dtype.itemsize, world)

    def reduce_codec(self, codec: Codec, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        size = codec.group_bytes(context.layout, context.step)
        message = context.numbers("payload", size // codec.wire_dtype.itemsize, codec.wire_dtype)
        payload = message.body.view(torch.uint8)
        # encode
        codec.encode(vector, payload[None], context.whole)
        # all-reduce
        yield Sum(message)
        # decode the sum
        codec.decode(payload[None, None], mean, context.whole)
