"""All-gather: every rank gets every payload and adds them up itself."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.collective import Gather, framed
from gradwire.communicators.base import Communicator
from gradwire.communicators.wire import Wire, all_gather
from gradwire.compressors import Codec, Compressor, GroupContext, Reduction
from gradwire.slots import Layout


@dataclass(frozen=True)
class AllGather(Communicator):
    """Sends each rank's payload to all: N-1 payloads received per rank. For payloads that cannot be added."""

    name: ClassVar[str] = "AllGather"

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Codec)
        return all_gather(framed(compressor.group_bytes(layout, step)), world)

    def reduce(self, compressor: Compressor, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        assert isinstance(compressor, Codec)
        size = compressor.group_bytes(context.layout, context.step)
        send, receive = context.message("send", size), context.message("receive", size, rows=context.world)
        compressor.encode(x, send.body, context)
        yield Gather(send, receive)
        compressor.decode(receive.body, out, context)
