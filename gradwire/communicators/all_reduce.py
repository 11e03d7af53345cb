"""All-reduce: payloads that may be added are added on the way."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Sum
from gradwire.communicators.base import Communicator
from gradwire.communicators.wire import Wire, all_reduce
from gradwire.compressors import Cast, Codec, Compressor, LowRank, Reduction, Rounds, State
from gradwire.layout import Layout


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
        return compressor.rounds if isinstance(compressor, Rounds) else 1

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Codec | LowRank)
        size = compressor.group_bytes(layout, step)
        if isinstance(compressor, LowRank):
            return Wire(2 * (world - 1) * compressor.rounds, all_reduce(size, world).wire_bytes)
        return all_reduce(size + compressor.wire_dtype.itemsize, world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        if isinstance(compressor, Rounds):
            return (yield from compressor.reduce(x, state))
        assert isinstance(compressor, Codec)
        if isinstance(compressor, Cast) and x.dtype == compressor.wire_dtype and not state.remember:
            return (yield Sum(x))
        size = compressor.group_bytes(state.layout, state.step)
        payload = state.kept.tensor("payload", (size // compressor.wire_dtype.itemsize + 1,), compressor.wire_dtype)
        compressor.encode(compressor.prepare(x, state), payload[:-1].view(torch.uint8), state)
        payload[-1:].copy_(state.flag)
        total = yield Sum(payload)
        state.settle(total[-1:])
        out = state.kept.tensor("mean", (len(x),))
        compressor.decode(total[None, :-1].view(torch.uint8), out, state)
        return out

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        if isinstance(compressor, Rounds):
            compressor.commit(x, state)
        elif isinstance(compressor, Codec) and state.remember:
            compressor.commit(x.new_empty(0), x, state)  # the sum has taken the payload's place
