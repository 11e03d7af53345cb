"""All-gather: every rank gets every payload, and decodes the sum itself."""

from dataclasses import dataclass
from typing import ClassVar

from gradwire.collective import Gather, framed
from gradwire.communicators.communicator import SummingCommunicator
from gradwire.compressors import Codec, Compressor, GroupContext, Reduction, Selective
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout
from gradwire.wire import Wire, all_gather


@dataclass(frozen=True)
class AllGather(SummingCommunicator, recordable=True):
    """Sends each rank's payload to all: N-1 payloads received per rank. For payloads that an all-reduce cannot add."""

    over_senders: bool = False
    """Divides an element's sum, or a coefficient's, by the number of ranks that sent it, as the reference code of
    SparseLoCo and DeMo does, not by that of all ranks, as the papers' formulas do: up to N times as much, where
    selections do not overlap."""
    sends_levels: ClassVar[bool] = True
    decodes_all: ClassVar[bool] = True

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if self.over_senders:
            _selective(compressor)

    def codec_wire(self, codec: Codec, layout: Layout, world: int, step: int) -> Wire:
        return all_gather(framed(codec.group_bytes(layout, step)), world)

    def reduce_codec(self, codec: Codec, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        size = codec.group_bytes(context.layout, context.step)
        send, receive = context.message("send", size), context.message("receive", size, rows=context.world)
        # encode
        codec.encode(vector, send.body[None], context.whole)
        # all-gather
        yield Gather(send, receive)
        # decode and sum over the ranks
        if self.over_senders:
            _selective(codec).decode_over_senders(receive.body, mean.vector(), context)
        else:
            codec.decode(receive.body[None], mean, context.whole)


def _selective(compressor: Compressor) -> Selective:
    """The compressor. Raises ValueError for one that sends all elements."""
    if not isinstance(compressor, Selective):
        raise ValueError(
            f"{type(compressor).__name__} sends all elements from all ranks; pair over_senders with a sparsifier "
            "such as TopK() or ChunkTopK()"
        )
    return compressor
