"""Ok-Topk: ranks sum regions that hold equally many selected elements, and share what passes a global threshold."""

from dataclasses import dataclass
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
from gradwire.ops.ranges import even, share, take_ranges
from gradwire.ops.reference.largest import TINY
from gradwire.ops.threshold import counted, largest_above, usable

POINTS = 64
"""Of each rank's selection, quantiles that are sent along: enough to find the bounds for any number of ranks."""


@dataclass(frozen=True)
class OkTopk(SparseCommunicator):
    """All-to-all by regions that hold equally many selected elements, sum, threshold, all-gather: the k largest sums,
    for about 2·slack·k entries per rank however many ranks (Li and Hoefler, PPoPP 2022,
    https://arxiv.org/abs/2201.07598).

    Every `rebalance` steps the ranks average where their own selections' quantiles lie: the next regions' bounds.
    The global threshold is exact every `reuse` steps, and at once where fewer than 2/3·k or more than 4/3·k
    elements passed the old one; to select by a threshold again in between is ReusedThreshold's part. The
    original's messages are as long as the data makes them; here `slack` times a region's even share of k has
    room both ways, and what does not fit, the smallest, stays with the sender or goes to the region's owner.
    On CUDA, where the host does not ask for counts, the threshold is exact at every step.
    """

    slack: float = 1.5
    rebalance: int = 64
    reuse: int = 32
    name: ClassVar[str] = "OkTopk"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.slack < float("inf"):
            raise ValueError(f"slack={self.slack} leaves no room for an even share; it is 1 or more, e.g. slack=1.5")
        if self.rebalance < 1 or self.reuse < 1:
            raise ValueError(f"rebalance={self.rebalance}, reuse={self.reuse} count steps; they are 1 or more")

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        size = self._entries(codec, n, world).nbytes
        return all_to_all(world * framed(size), world) + all_gather(framed(size + 4 * POINTS), world)

    def init_group(self) -> dict[str, Tensor]:
        return {
            "quantiles": torch.zeros(POINTS + 1, dtype=torch.int64, device="cpu"),
            "threshold": torch.zeros(1, dtype=torch.float32, device="cpu"),
        }

    def add_up(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x = vector.total()
        n, world, k, ops = len(x), context.world, codec.count(len(x)), backend_for(x)
        entries, bounds, threshold = (
            self._entries(codec, n, world),
            _bounds(n, context),
            self._threshold(x, context),
        )
        send, receive = (context.message(name, entries.nbytes, rows=world) for name in ("send", "receive"))
        indices = codec.select(x, k, context)
        take_ranges(x, send.body, entries, indices, bounds, context.buffers, relative=False)
        yield AllToAll(send, receive)

        a, b = bounds[context.rank], bounds[context.rank + 1]
        total = context.buffers.tensor("total", (n,))
        ops.decode_entries(receive.body[None], total, [entries])
        size = entries.nbytes + 4 * POINTS
        again, everyones = context.message("again", size), context.message("everyones", size, rows=world)
        found = _passing(total[a:b], threshold, entries.k) + a
        ops.pack_entries(again.body[None], entries, found[None], total[found][None])
        rebalances = context.step % self.rebalance == 0
        if rebalances:
            again.body[entries.nbytes :].view(torch.int32).copy_(_quantiles(indices, n))
        yield Gather(again, everyones)

        places, values = ops.unpack_entries(everyones.body, entries)
        if threshold is None:
            context.group.stage("threshold", _keep_largest(values, k))
        shared = counted(values)
        if shared is not None and not 2 / 3 <= shared / k <= 4 / 3:
            context.group.stage("threshold", torch.zeros(1, dtype=torch.float32, device="cpu"))
        if rebalances:
            context.group.stage("quantiles", _mean_quantiles(everyones.body[:, entries.nbytes :], n))
        out = mean.vector().zero_().index_add_(0, places, values)  # none of these are equal, but for zeros
        if context.remember:  # what this region's owner did not share, or not everybody kept
            x[a:b].add_(total[a:b]).sub_(out[a:b])

    def _entries(self, codec: Sparse, n: int, world: int) -> Entries:
        return codec.room(n, share(codec.count(n), world, self.slack, n))

    def _threshold(self, x: Tensor, context: GroupContext) -> float | None:
        """What a sum must reach, where the last step's threshold serves again."""
        return usable(context.group["threshold"], x) if context.step % self.reuse else None


def _passing(region: Tensor, threshold: float | None, most: int) -> Tensor:
    """Ascending indices of the sums that this rank shares, `most` at most."""
    if len(region) == 0:
        return torch.empty(0, dtype=torch.int64, device=region.device)
    if threshold is None:
        return backend_for(region).top_k(region, min(most, len(region)))
    return largest_above(region, max(threshold, TINY), most, 2 * most)


def _bounds(n: int, context: GroupContext) -> list[int]:
    """The regions' bounds (N + 1,): between the quantiles of the last rebalancing, or even where there was none."""
    quantiles, world = context.group["quantiles"].tolist(), context.world
    if quantiles[-1] != n:
        return even(n, world)
    places = [divmod(rank * POINTS, world) for rank in range(world)]
    return [quantiles[i] + (quantiles[i + 1] - quantiles[i]) * part // world for i, part in places] + [n]


def _quantiles(indices: Tensor, n: int) -> Tensor:
    """The coordinates (POINTS,) that cut ascending indices into equal parts, from 0; even ones where there are none."""
    m = len(indices)
    grid = (
        torch.arange(POINTS, dtype=torch.int64, device=indices.device).mul_(m or n).div_(POINTS, rounding_mode="floor")
    )
    cuts = indices[grid] if m else grid
    cuts[:1].zero_()
    return cuts


def _mean_quantiles(payloads: Tensor, n: int) -> Tensor:
    """All ranks' quantiles (N, 4·POINTS) uint8 averaged, and n, (POINTS + 1,): the state that they become."""
    total = payloads.view(torch.int32).sum(0, dtype=torch.int64)
    return torch.cat([total.div_(len(payloads), rounding_mode="floor"), total.new_full((1,), n)])


def _keep_largest(values: Tensor, k: int) -> Tensor:
    """Zeros all but the k largest magnitudes of values, whose smallest is returned, (1,)."""
    if not len(values):
        return values.new_zeros(1)
    magnitude = values.abs()
    level = magnitude.topk(min(k, len(values)), sorted=False).values.min()
    values.mul_(magnitude >= level)
    return level.view(1)
