"""Split and gather: each rank sums all ranks' selections in one part of the vector, and shares the sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.collective import AllToAll, Gather, framed
from gradwire.communicators.communicator import SparseCommunicator
from gradwire.compressors import GroupContext, Reduction, Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import capacity, even, receive_ranges, send_ranges
from gradwire.ops.workspace import Workspace
from gradwire.torch_private.foreach import copy_each
from gradwire.wire import Wire, all_gather, all_to_all


@dataclass(frozen=True)
class SplitGather(SparseCommunicator, recordable=True):
    """All-to-all by part of the vector, sum, all-gather: the sum of all ranks' selections, for k + |union| entries per
    rank however many ranks (SparCML, Renggli et al., SC 2019, https://arxiv.org/abs/1802.08021).

    SparCML's messages are as long as the data makes them. Here they have a capacity; the smallest elements beyond it
    stay in the memory of their sender, or of the part's owner. Where entries would take more bytes than the dense part,
    the way back is dense.
    """

    slack: float = 1.5
    """The capacity on the way out over k / N entries."""
    growth: float = 2.0
    """The capacity on the way back over k / N entries; `slack` times the ranks is enough for any union."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value in {"slack": self.slack, "growth": self.growth}.items():
            if not 1 <= value < float("inf"):
                raise ValueError(
                    f"{option}={value} is less than an even part of the entries; it is 1 or more, e.g. 2.0"
                )

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        layouts = self._layouts(codec, n, world)
        return all_to_all(world * framed(layouts.out.nbytes), world) + all_gather(framed(layouts.back_bytes), world)

    def reduce_codec(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x = vector.total()
        world = context.world
        buffers = context.buffers
        layouts, bounds = self._layouts(codec, len(x), world), even(len(x), world)
        # select, and send each part's elements to its owner
        send, receive = (context.message(name, layouts.out.nbytes, rows=world) for name in ("send", "receive"))
        indices = codec.select(x, codec.count(len(x)), context)
        send_ranges(x, send.body, layouts.out, indices, bounds, buffers, relative=True)
        yield AllToAll(send, receive)

        # sum this rank's part
        a, b = bounds[context.rank], bounds[context.rank + 1]
        total = buffers.tensor("total", (layouts.out.n,))
        backend_for(x).sum_entries(receive.body[None], total, [layouts.out])
        # encode the sum, and keep what was not sent of it
        again = context.message("again", layouts.back_bytes)
        layouts.write(total, again.body)
        if context.error_feedback:
            x[a:b].add_(total[: b - a])
        # share it
        everyones = context.message("everyones", layouts.back_bytes, rows=world)
        yield Gather(again, everyones)

        # decode the sums of all parts
        layouts.read(everyones.body, mean.vector(), bounds, buffers)

    def _layouts(self, codec: Sparse, n: int, world: int) -> "_Layouts":
        k, width = codec.count(n), -(-n // world)
        out = capacity(k, world, self.slack, width)
        back = capacity(k, world, self.growth, min(width, world * out))
        return _Layouts(codec.entries_layout(width, out), codec.entries_layout(width, back))


@dataclass(frozen=True)
class _Layouts:
    """The layouts of a part's entries. Parts have as many elements as these, or one less."""

    out: Entries
    """Of one rank's entries, on the way to the part's owner."""
    back: Entries
    """Of the sums, on the way back."""

    @property
    def dense(self) -> bool:
        """Whether the way back is dense, which takes no more bytes."""
        return self.back.nbytes >= 4 * self.back.n

    @property
    def back_bytes(self) -> int:
        """The bytes of a payload on the way back."""
        return min(4 * self.back.n, self.back.nbytes)

    def write(self, total: Tensor, payload: Tensor) -> None:
        """Writes a part's sum (n,), or its largest elements, to a payload; leaves in `total` what is not written."""
        if self.dense:
            # dense: all of it
            payload.view(torch.float32).copy_(total)
            total.zero_()
        else:
            # the largest as entries
            ops, rows = backend_for(total), total[None]
            ops.move_entries(rows, payload[None], self.back, ops.top_k(rows, self.back.k))

    def read(self, payloads: Tensor, out: Tensor, bounds: Sequence[int], buffers: Workspace) -> None:
        """Decodes all parts' payloads (world, ·) to out (n,)."""
        if self.dense:
            # dense: each part to its place
            sizes = [b - a for a, b in pairwise(bounds)]
            sums = zip(payloads.view(torch.float32), sizes, strict=True)
            copy_each(out.split(sizes), [row[:size] for row, size in sums])
        else:
            receive_ranges(payloads, out, self.back, bounds, buffers)
