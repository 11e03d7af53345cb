"""All-gather: every rank gets every payload and adds them up itself."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.collective import Gather, framed
from gradwire.communicators.base import SummingCommunicator
from gradwire.communicators.wire import Wire, all_gather
from gradwire.compressors import Codec, GroupContext, Reduction
from gradwire.slots import Layout


@dataclass(frozen=True)
class AllGather(SummingCommunicator):
    """Sends each rank's payload to all: N-1 payloads received per rank. For payloads that cannot be added."""

    name: ClassVar[str] = "AllGather"

    def codec_wire(self, codec: Codec, layout: Layout, world: int, step: int) -> Wire:
        return all_gather(framed(codec.group_bytes(layout, step)), world)

    def add_up(self, codec: Codec, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        size = codec.group_bytes(context.layout, context.step)
        send, receive = context.message("send", size), context.message("receive", size, rows=context.world)
        codec.encode(x, send.body, context)
        yield Gather(send, receive)
        codec.decode(receive.body, out, context)
