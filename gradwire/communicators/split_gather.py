"""Split and gather: each rank sums one index range of all ranks' selections, and shares the sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import AllToAll, Gather, framed
from gradwire.communicators.base import SparseCommunicator
from gradwire.communicators.wire import Wire, all_gather, all_to_all
from gradwire.compressors import Compressor, GroupContext, Reduction, Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import decode_ranges, even, share, take_ranges
from gradwire.ops.workspace import Workspace
from gradwire.torch_private.foreach import copy_each


@dataclass(frozen=True)
class SplitGather(SparseCommunicator, recordable=True):
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
        super().__post_init__()
        for option, value in {"slack": self.slack, "growth": self.growth}.items():
            if not 1 <= value < float("inf"):
                raise ValueError(f"{option}={value} leaves no room for an even share; it is 1 or more, e.g. 2.0")

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        room = self._room(codec, n, world)
        return all_to_all(world * framed(room.there.nbytes), world) + all_gather(framed(room.back_bytes), world)

    def add_up(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x, world, buffers = vector.total(), context.world, context.buffers
        room, bounds = self._room(codec, len(x), world), even(len(x), world)
        send, receive = (context.message(name, room.there.nbytes, rows=world) for name in ("send", "receive"))
        indices = codec.select(x, codec.count(len(x)), context)
        take_ranges(x, send.body, room.there, indices, bounds, buffers, relative=True)
        yield AllToAll(send, receive)

        a, b = bounds[context.rank], bounds[context.rank + 1]
        total = buffers.tensor("total", (room.there.n,))
        backend_for(x).decode_entries(receive.body[None], total, [room.there])
        again = context.message("again", room.back_bytes)
        room.write(total, again.body)
        if context.remember:
            x[a:b].add_(total[: b - a])
        everyones = context.message("everyones", room.back_bytes, rows=world)
        yield Gather(again, everyones)

        room.read(everyones.body, mean.vector(), bounds, buffers)

    def _room(self, codec: Sparse, n: int, world: int) -> "_Room":
        k, width = codec.count(n), -(-n // world)
        there = share(k, world, self.slack, width)
        back = share(k, world, self.growth, min(width, world * there))
        return _Room(codec.room(width, there), codec.room(width, back))


@dataclass(frozen=True)
class _Room:
    """How a range's entries travel: those of one rank on the way out, and those of all on the way back. Ranges have as
    many elements as these layouts, or one less."""

    there: Entries
    back: Entries

    @property
    def dense(self) -> bool:
        return self.back.nbytes >= 4 * self.back.n

    @property
    def back_bytes(self) -> int:
        return min(4 * self.back.n, self.back.nbytes)

    def write(self, total: Tensor, payload: Tensor) -> None:
        """A range's sum, or its largest elements, to a payload; leaves in `total` what is not written."""
        if self.dense:
            payload.view(torch.float32).copy_(total)
            total.zero_()
        else:
            ops, rows = backend_for(total), total[None]
            ops.move_entries(rows, payload[None], self.back, ops.top_k(rows, self.back.k))

    def read(self, payloads: Tensor, out: Tensor, bounds: Sequence[int], buffers: Workspace) -> None:
        """What `write` wrote of each range, to out (n,)."""
        if self.dense:
            sizes = [b - a for a, b in pairwise(bounds)]
            sums = zip(payloads.view(torch.float32), sizes, strict=True)
            copy_each(out.split(sizes), [row[:size] for row, size in sums])
        else:
            decode_ranges(payloads, out, self.back, bounds, buffers)
