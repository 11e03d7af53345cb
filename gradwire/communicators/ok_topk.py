"""Ok-Topk: ranks sum regions that hold equally many selected elements, and share what passes a global threshold."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Exchange, Gather
from gradwire.communicators.base import SparseCommunicator, flags, frame, framed
from gradwire.communicators.ranges import even, share, split
from gradwire.communicators.wire import Wire, all_gather, all_to_all
from gradwire.compressors import Compressor, Reduction, Sparse, State
from gradwire.compressors.entries import Entries
from gradwire.compressors.select import TINY, above, largest, top_k
from gradwire.layout import Layout

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
        if not 1 <= self.slack < float("inf"):
            raise ValueError(f"slack={self.slack} leaves no room for an even share; it is 1 or more, e.g. slack=1.5")
        if self.rebalance < 1 or self.reuse < 1:
            raise ValueError(f"rebalance={self.rebalance}, reuse={self.reuse} count steps; they are 1 or more")

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        size = self._entries(compressor, layout.numel, world).nbytes
        return all_to_all(world * frame(size), world) + all_gather(frame(size + 4 * POINTS), world)

    def init_slot(self) -> dict[str, Tensor]:
        return {"quantiles": torch.zeros(POINTS + 1, dtype=torch.int64), "threshold": torch.zeros(1)}

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Sparse)
        n, world = len(x), state.world
        entries, bounds, k = self._entries(compressor, n, world), _bounds(n, state), compressor.count(n)
        indices = compressor.select(x, k, state)
        send, _ = framed(state, "send", world, entries.nbytes)
        for row, part in zip(send, split(x, indices, bounds, entries.k), strict=True):
            entries.pack(row, *part)
        flags(send).copy_(state.flag.expand(world, 1))
        receive, _ = framed(state, "receive", world, entries.nbytes)
        yield Exchange(send, receive)

        a, b = bounds[state.rank], bounds[state.rank + 1]
        total = state.kept.tensor("total", (n,))
        total[a:b].zero_()
        for row in receive:  # rank by rank: the same rounding whoever owns the region
            total.index_add_(0, *entries.unpack(row))
        again, everyones = self._gathered(entries, state)
        found = self._passing(total[a:b], entries.k, state) + a
        entries.pack(again[0], found, total[found])
        again[0, entries.nbytes : -4].view(torch.int32).copy_(_quantiles(indices, n))
        flags(again).copy_(flags(receive).sum(0))
        yield Gather(again[0], everyones)

        state.settle(flags(everyones).sum(0))
        if self._threshold(state) is None:
            _keep_largest(entries.values(everyones), k, state.kept.tensor("level", (1,)))
        mean = state.kept.tensor("mean", (n,)).zero_()
        for row in everyones:
            mean.index_add_(0, *entries.unpack(row))
        return mean

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        assert isinstance(compressor, Sparse)
        n = len(x)
        entries, bounds = self._entries(compressor, n, state.world), _bounds(n, state)
        if state.remember:
            send, _ = framed(state, "send", state.world, entries.nbytes)
            for row in send:
                state.release(x, *entries.unpack(row))
            a, b = bounds[state.rank], bounds[state.rank + 1]
            total, mean = state.kept.tensor("total", (n,)), state.kept.tensor("mean", (n,))
            state.take(x[a:b], total[a:b].neg_().add_(mean[a:b]))
        _, everyones = self._gathered(entries, state)
        if x.device.type == "cpu":
            passed = int(entries.values(everyones).count_nonzero())
            self._keep_threshold(passed / compressor.count(n), state)
        if state.step % self.rebalance == 0:
            quantiles = everyones[:, entries.nbytes : -4].view(torch.int32).sum(0, dtype=torch.int64) // state.world
            state.slots[0]["quantiles"].copy_(torch.tensor([*quantiles.tolist(), n]))

    def _entries(self, codec: Compressor, n: int, world: int) -> Entries:
        assert isinstance(codec, Sparse)
        return Entries(n, share(codec.count(n), world, self.slack, n))

    def _gathered(self, entries: Entries, state: State) -> tuple[Tensor, Tensor]:
        """What this rank shares of its region (1, bytes), and what all share (N, bytes): entries, then quantiles."""
        size = entries.nbytes + 4 * POINTS
        return framed(state, "again", 1, size)[0], framed(state, "everyones", state.world, size)[0]

    def _threshold(self, state: State) -> float | None:
        """What a sum must reach, where the last step's threshold serves again."""
        if state.kept.device.type != "cpu" or state.step % self.reuse == 0:
            return None
        return state.slots[0]["threshold"].item() or None

    def _passing(self, region: Tensor, most: int, state: State) -> Tensor:
        """Ascending indices of the sums that this rank shares, `most` at most."""
        threshold = self._threshold(state)
        if len(region) == 0:
            return torch.empty(0, dtype=torch.int64, device=region.device)
        if threshold is None:
            return top_k(region, min(most, len(region)), state.scratch)
        return largest(*above(region, max(threshold, TINY), state.scratch), most)

    def _keep_threshold(self, passed: float, state: State) -> None:
        """`passed`: how many elements, of k, passed the threshold of this step."""
        threshold = state.slots[0]["threshold"]
        if self._threshold(state) is None:
            threshold.copy_(state.kept.tensor("level", (1,)))
        if not 2 / 3 <= passed <= 4 / 3:
            threshold.zero_()


def _bounds(n: int, state: State) -> list[int]:
    """The regions' bounds (N + 1,): between the quantiles of the last rebalancing, or even where there was none."""
    quantiles, world = state.slots[0]["quantiles"].tolist(), state.world
    if quantiles[-1] != n:
        return even(n, world)
    places = [divmod(rank * POINTS, world) for rank in range(world)]
    return [quantiles[i] + (quantiles[i + 1] - quantiles[i]) * part // world for i, part in places] + [n]


def _quantiles(indices: Tensor, n: int) -> Tensor:
    """The coordinates (POINTS,) that cut ascending indices into equal parts, from 0; even ones where there are none."""
    m = len(indices)
    grid = torch.tensor(even(m or n, POINTS)[:-1], device=indices.device)
    cuts = indices[grid] if m else grid
    cuts[0] = 0
    return cuts


def _keep_largest(values: Tensor, k: int, level: Tensor) -> None:
    """Zeros all but the k largest magnitudes of values, whose smallest goes to level (1,)."""
    magnitude = values.abs()
    flat = magnitude.view(-1)
    level.copy_(flat.topk(min(k, len(flat)), sorted=False).values.min())
    values.mul_(magnitude >= level)
