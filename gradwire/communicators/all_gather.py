"""All-gather: every rank gets every payload and adds them up itself."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.collective import Gather
from gradwire.communicators.base import Communicator, flagged, flags
from gradwire.compressors import Codec, Compressor, Reduction, State


@dataclass(frozen=True)
class AllGather(Communicator):
    """Sends each rank's payload to all: N-1 payloads received per rank. For payloads that cannot be added."""

    name: ClassVar[str] = "AllGather"

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
