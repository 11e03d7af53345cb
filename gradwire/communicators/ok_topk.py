"""Ok-Topk: ranks sum regions that hold equally many selected elements, and share sums above a global threshold."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collective import AllToAll, Gather, framed
from gradwire.communicators.communicator import SparseCommunicator
from gradwire.compressors import COMMON, GroupContext, Reduction, Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import capacity, even, send_ranges
from gradwire.ops.reference.largest import TINY
from gradwire.ops.threshold import count_nonzero, largest_above, usable
from gradwire.wire import Wire, all_gather, all_to_all

POINTS = 64
"""Quantiles of each rank's selection that are sent along: enough to find the bounds for any number of ranks."""

QUANTILES, THRESHOLD = COMMON + "quantiles", COMMON + "threshold"


@dataclass(frozen=True)
class OkTopk(SparseCommunicator):
    """All-to-all by regions that hold equally many selected elements, sum, threshold, all-gather: the k largest sums,
    for about 2·slack·k entries per rank however many ranks (Li and Hoefler, PPoPP 2022,
    https://arxiv.org/abs/2201.07598). Regions move, so with `value_bits=4` each message has all elements' scales, and
    bytes grow with the ranks, until exact values take fewer; `SplitGather`'s messages have the scales of their part.

    The next regions' bounds are the means over the ranks of their own selections' quantiles. The global threshold is
    exact every few steps, and at once where fewer than 2/3·k or more than 4/3·k elements passed the old one. (A local
    threshold that is reused is ReusedThreshold's.) The original's messages are as long as the data makes them; here
    they have a capacity, both ways, and the smallest elements beyond it stay with the sender or go to the region's
    owner. On CUDA, where the host does not ask for counts, the threshold is exact at every step.
    """

    slack: float = 1.5
    """The capacity of a message over k / N entries."""
    rebalance: int = 64
    """The bounds move every so many steps."""
    reuse: int = 32
    """The threshold is exact every so many steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.slack < float("inf"):
            raise ValueError(
                f"slack={self.slack} is less than an even part of the entries; it is 1 or more, e.g. slack=1.5"
            )
        if self.rebalance < 1 or self.reuse < 1:
            raise ValueError(f"rebalance={self.rebalance}, reuse={self.reuse} count steps; they are 1 or more")

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        size = self._entries(codec, n, world).nbytes
        return all_to_all(world * framed(size), world) + all_gather(framed(size + 4 * POINTS), world)

    def init_group(self) -> dict[str, Tensor]:
        return {
            QUANTILES: torch.zeros(POINTS + 1, dtype=torch.int64, device="cpu"),
            THRESHOLD: torch.zeros(1, dtype=torch.float32, device="cpu"),
        }

    def reduce_codec(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x = vector.total()
        n = len(x)
        world = context.world
        k = codec.count(len(x))
        ops = backend_for(x)
        entries = self._entries(codec, n, world)
        bounds = _bounds(n, context)
        threshold = self._threshold(x, context)
        # select, and send each region's elements to its owner
        send, receive = (context.message(name, entries.nbytes, rows=world) for name in ("send", "receive"))
        indices = codec.select(x, k, context)
        send_ranges(x, send.body, entries, indices, bounds, context.buffers, relative=False)
        yield AllToAll(send, receive)

        # sum this rank's region
        a, b = bounds[context.rank], bounds[context.rank + 1]
        total = context.buffers.tensor("total", (n,))
        ops.sum_entries(receive.body[None], total, [entries])
        # share the sums that pass the global threshold, and now and then the quantiles of the selection
        size = entries.nbytes + 4 * POINTS
        again, everyones = context.message("again", size), context.message("everyones", size, rows=world)
        found = _passing(total[a:b], threshold, entries.k) + a
        ops.pack_entries(again.body[None], entries, found[None], total[found][None])
        rebalances = context.step % self.rebalance == 0
        if rebalances:
            again.body[entries.nbytes :].view(torch.int32).copy_(_quantiles(indices, n))
        yield Gather(again, everyones)

        # the next threshold: exact, or dropped where it no longer fits
        places, values = ops.unpack_entries(everyones.body, entries)
        if threshold is None:
            context.group.stage(THRESHOLD, _keep_largest(values, k))
        shared = count_nonzero(values)
        if shared is not None and not 2 / 3 <= shared / k <= 4 / 3:
            context.group.stage(THRESHOLD, torch.zeros(1, dtype=torch.float32, device="cpu"))
        # the next bounds
        if rebalances:
            context.group.stage(QUANTILES, _mean_quantiles(everyones.body[:, entries.nbytes :], n))
        # decode: all indices differ, but for those of zeros
        out = mean.vector().zero_().index_add_(0, places, values)
        # keep the sums of this region that are not in the mean
        if context.error_feedback:
            x[a:b].add_(total[a:b]).sub_(out[a:b])

    def _entries(self, codec: Sparse, n: int, world: int) -> Entries:
        return codec.entries_layout(n, capacity(codec.count(n), world, self.slack, n))

    def _threshold(self, x: Tensor, context: GroupContext) -> float | None:
        """The threshold of an earlier step, where it is reused."""
        return usable(context.group[THRESHOLD], x) if context.step % self.reuse else None


def _passing(region: Tensor, threshold: float | None, most: int) -> Tensor:
    """Ascending indices (≤ most,) of the sums in a region (m,) that this rank shares."""
    if len(region) == 0:
        return torch.empty(0, dtype=torch.int64, device=region.device)
    if threshold is None:
        return backend_for(region).top_k(region, min(most, len(region)))
    return largest_above(region, max(threshold, TINY), most, 2 * most)


def _bounds(n: int, context: GroupContext) -> list[int]:
    """The regions' bounds (N + 1,): between the quantiles of the last rebalancing, or even where there was none."""
    quantiles, world = context.group[QUANTILES].tolist(), context.world
    if quantiles[-1] != n:
        return even(n, world)
    places = [divmod(rank * POINTS, world) for rank in range(world)]
    return [quantiles[i] + (quantiles[i + 1] - quantiles[i]) * part // world for i, part in places] + [n]


def _quantiles(indices: Tensor, n: int) -> Tensor:
    """The coordinates (POINTS,), from 0, that divide ascending indices (≤ k,) below n into equal parts; even ones where
    there are none."""
    # the indices at equal distances, in their order
    m, points = (indices < n).sum(), torch.arange(POINTS, dtype=torch.int64, device=indices.device)
    edges = torch.cat([indices, indices.new_zeros(1)])[(points * m).div_(POINTS, rounding_mode="floor")]
    # none
    edges = torch.where(m > 0, edges, (points * n).div_(POINTS, rounding_mode="floor"))
    edges[:1].zero_()
    return edges


def _mean_quantiles(payloads: Tensor, n: int) -> Tensor:
    """The next state (POINTS + 1,): the mean of all ranks' quantiles (N, 4·POINTS) uint8, and n."""
    total = payloads.view(torch.int32).sum(0, dtype=torch.int64)
    return torch.cat([total.div_(len(payloads), rounding_mode="floor"), total.new_full((1,), n)])


def _keep_largest(values: Tensor, k: int) -> Tensor:
    """Zeros all but the k largest magnitudes of values (m,); returns the smallest of these, (1,)."""
    if not len(values):
        return values.new_zeros(1)
    # the k-th largest magnitude, and zeros below it
    magnitude = values.abs()
    level = magnitude.topk(min(k, len(values)), sorted=False).values.min()
    values.mul_(magnitude >= level)
    return level.view(1)
