"""Split and gather: each rank sums one index range of all ranks' selections, and shares the sum."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import AllToAll, Gather, framed
from gradwire.communicators.base import SparseCommunicator
from gradwire.communicators.wire import Wire, all_gather, all_to_all
from gradwire.compressors import Compressor, GroupContext, Reduction, Sparse
from gradwire.ops.entries import Entries
from gradwire.ops.kernels import decode_entries, take_entries
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import even, share, split
from gradwire.ops.select import top_k


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

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        room = self._room(codec, n, world)
        there = world * framed(room.nbytes(room.there))
        return all_to_all(there, world) + all_gather(framed(room.back_bytes), world)

    def add_up(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x = vector.total()
        room = self._room(codec, len(x), context.world)
        bounds, size = even(len(x), context.world), room.nbytes(room.there)
        send = context.message("send", size, rows=context.world)
        receive = context.message("receive", size, rows=context.world)
        indices = codec.select(x, codec.count(len(x)), context)
        parts = list(split(x, indices, bounds, room.there, context.buffers))
        for row, (a, b), (found, values) in zip(send.body, pairwise(bounds), parts, strict=True):
            if a < b:
                sent = room.entries(b - a, room.there)  # what a GPU fills up with lies behind its k
                take_entries(x[a:b], row, sent, (found - a)[: sent.k], values[: sent.k])
        yield AllToAll(send, receive)

        a, b = bounds[context.rank], bounds[context.rank + 1]
        total = context.buffers.tensor("total", (b - a,))
        again = context.message("again", room.back_bytes)
        if a < b:
            decode_entries(receive.body, total, room.entries(b - a, room.there))
            room.write(total, again.body)
            if context.remember:
                x[a:b].add_(total)
        everyones = context.message("everyones", room.back_bytes, rows=context.world)
        yield Gather(again, everyones)

        out = mean.vector()
        for row, (a, b) in zip(everyones.body, pairwise(bounds), strict=True):
            if a < b:
                room.read(row, out[a:b])

    def _room(self, codec: Sparse, n: int, world: int) -> "_Room":
        k, width = codec.count(n), -(-n // world)
        there = share(k, world, self.slack, width)
        return _Room(codec, width, there, share(k, world, self.growth, min(width, world * there)))


@dataclass(frozen=True)
class _Room:
    """For ranges of `width` elements, or one less: entries from one rank on the way out, and in all on the way back."""

    codec: Sparse
    width: int
    there: int
    back: int

    def entries(self, n: int, k: int) -> Entries:
        """How k entries of a range of n elements are laid out, or of fewer where it is shorter."""
        return self.codec.room(n, min(n, k))

    def nbytes(self, k: int) -> int:
        """Bytes that k entries of any range take: those of the shorter may be more."""
        return max(self.entries(n, k).nbytes for n in {self.width, max(1, self.width - 1)})

    @property
    def dense(self) -> bool:
        return self.nbytes(self.back) >= 4 * self.width

    @property
    def back_bytes(self) -> int:
        return 4 * self.width if self.dense else self.nbytes(self.back)

    def write(self, total: Tensor, payload: Tensor) -> None:
        """A range's sum (≤ width,), or its largest elements, to a payload; leaves in `total` what is not written."""
        if self.dense:
            payload[: total.nbytes].view(torch.float32).copy_(total)
            total.zero_()
            return
        found = top_k(total, min(self.back, len(total)))
        take_entries(total, payload, self.entries(len(total), self.back), found, total[found])

    def read(self, payload: Tensor, out: Tensor) -> None:
        """What `write` wrote, to out, as long as the range."""
        if self.dense:
            out.copy_(payload[: out.nbytes].view(torch.float32))
        else:
            decode_entries(payload[None], out, self.entries(len(out), self.back))
