"""All-gather: every rank gets every payload and adds them up itself."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.collective import Gather
from gradwire.communicators.base import Communicator, flagged, flags, frame
from gradwire.communicators.wire import Wire, all_gather
from gradwire.compressors import Codec, Compressor, Reduction, State
from gradwire.layout import Layout


@dataclass(frozen=True)
class AllGather(Communicator):
    """Sends each rank's payload to all: N-1 payloads received per rank. For payloads that cannot be added."""

    name: ClassVar[str] = "AllGather"

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Codec)
        return all_gather(frame(compressor.group_bytes(layout, step)), world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Codec)
        n = len(x)
        send, payload = flagged(state, "send", 1, compressor, n)
        compressor.encode(compressor.prepare(x, state), payload[0], state)
        flags(send)[0].copy_(state.flag)
        receive, payloads = flagged(state, "receive", state.world, compressor, n)
        yield Gather(send[0], receive)
        state.settle(flags(receive).sum(0))
        out = state.kept.tensor("mean", (n,))
        compressor.decode(payloads, out, state)
        return out

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        assert isinstance(compressor, Codec)
        if state.remember:
            _, payload = flagged(state, "send", 1, compressor, len(x))
            compressor.commit(payload[0], x, state)
