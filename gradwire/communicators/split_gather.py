"""Split and gather: each rank sums one index range of all ranks' selections, and shares the sum."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Exchange, Gather
from gradwire.communicators.base import SparseCommunicator, flags, frame, framed
from gradwire.communicators.ranges import even, share, split
from gradwire.communicators.wire import Wire, all_gather, all_to_all
from gradwire.compressors import Compressor, Reduction, Sparse, State
from gradwire.compressors.entries import Entries
from gradwire.compressors.select import top_k
from gradwire.layout import Layout


@dataclass(frozen=True)
class SplitGather(SparseCommunicator):
    """All-to-all by index range, sum, all-gather: the sum of all ranks' selections, for k + |union| entries per rank
    however many ranks (SparCML, Renggli et al., SC 2019, https://arxiv.org/abs/1802.08021).

    SparCML's messages are as long as the data makes them. Here they have room for `slack` times a range's even share
    of a selection on the way out, and for `growth` times that of k on the way back. What does not fit, the
    smallest, stays in the memory of its sender, or of the range's owner. A `growth` of `slack` times the ranks has
    room for any union. Where entries would take more bytes than the dense range, the way back is dense.
    """

    slack: float = 1.5
    growth: float = 2.0
    name: ClassVar[str] = "SplitGather"

    def __post_init__(self) -> None:
        for option, value in {"slack": self.slack, "growth": self.growth}.items():
            if not 1 <= value < float("inf"):
                raise ValueError(f"{option}={value} leaves no room for an even share; it is 1 or more, e.g. 2.0")

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        room = self._room(compressor, layout.numel, world)
        there = world * frame(Entries(room.width, room.there).nbytes)
        return all_to_all(there, world) + all_gather(frame(room.back_bytes), world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Sparse)
        room = self._room(compressor, len(x), state.world)
        bounds = even(len(x), state.world)
        send, _ = self._buffer(state, "send", room)
        indices = compressor.select(x, compressor.count(len(x)), state)
        parts = split(x, indices, bounds, room.there)
        for row, (a, b), (found, values) in zip(send, pairwise(bounds), parts, strict=True):
            if a < b:
                Entries(b - a, room.there).pack(row, found - a, values)
        flags(send).copy_(state.flag.expand(state.world, 1))
        receive, _ = self._buffer(state, "receive", room)
        yield Exchange(send, receive)

        a, b = bounds[state.rank], bounds[state.rank + 1]
        total = state.kept.tensor("total", (b - a,)).zero_()
        again, payload = framed(state, "again", 1, room.back_bytes)
        if a < b:
            for row in receive:  # rank by rank: the same rounding whoever owns the range
                total.index_add_(0, *Entries(b - a, room.there).unpack(row))
            room.write(total, payload[0], state)
        flags(again).copy_(flags(receive).sum(0))
        everyones, _ = framed(state, "everyones", state.world, room.back_bytes)
        yield Gather(again[0], everyones)

        state.settle(flags(everyones).sum(0))
        mean = state.kept.tensor("mean", (len(x),))
        for row, (a, b) in zip(everyones, pairwise(bounds), strict=True):
            if a < b:
                room.read(row, mean[a:b])
        return mean

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        assert isinstance(compressor, Sparse)
        if not state.remember:
            return
        room = self._room(compressor, len(x), state.world)
        bounds = even(len(x), state.world)
        send, _ = self._buffer(state, "send", room)
        for row, (a, b) in zip(send, pairwise(bounds), strict=True):
            if a < b:
                state.release(x[a:b], *Entries(b - a, room.there).unpack(row))
        a, b = bounds[state.rank], bounds[state.rank + 1]
        total, mean = state.kept.tensor("total", (b - a,)), state.kept.tensor("mean", (len(x),))
        state.take(x[a:b], total.neg_().add_(mean[a:b]))

    def _room(self, codec: Compressor, n: int, world: int) -> "_Room":
        assert isinstance(codec, Sparse)
        k, width = codec.count(n), -(-n // world)
        there = share(k, world, self.slack, width)
        return _Room(width, there, share(k, world, self.growth, min(width, world * there)))

    def _buffer(self, state: State, name: str, room: "_Room") -> tuple[Tensor, Tensor]:
        return framed(state, name, state.world, Entries(room.width, room.there).nbytes)


@dataclass(frozen=True)
class _Room:
    """For ranges of at most `width` elements: entries from one rank on the way out, and in all on the way back."""

    width: int
    there: int
    back: int

    @property
    def dense(self) -> bool:
        return Entries(self.width, self.back).nbytes >= 4 * self.width

    @property
    def back_bytes(self) -> int:
        return 4 * self.width if self.dense else Entries(self.width, self.back).nbytes

    def write(self, total: Tensor, payload: Tensor, state: State) -> None:
        """A range's sum (≤ width,), or its largest elements, to a payload."""
        if self.dense:
            payload[: total.nbytes].view(torch.float32).copy_(total)
            return
        found = top_k(total, min(self.back, len(total)), state.scratch)
        Entries(len(total), self.back).pack(payload, found, total[found])

    def read(self, payload: Tensor, out: Tensor) -> None:
        """What `write` wrote, to out, as long as the range."""
        if self.dense:
            out.copy_(payload[: out.nbytes].view(torch.float32))
        else:
            out.zero_().index_add_(0, *Entries(len(out), self.back).unpack(payload))
