"""Global top-k: selections merge up a tree of ranks, and the k largest sums come back down."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Broadcast, Hop
from gradwire.communicators.base import SparseCommunicator, flags, frame, framed
from gradwire.communicators.wire import Wire, broadcast, depth, hops
from gradwire.compressors import Compressor, Reduction, Sparse, State
from gradwire.layout import Layout


@dataclass(frozen=True)
class GlobalTopK(SparseCommunicator):
    """Merges selections pair by pair up a binary tree, keeps the k largest sums each time, and broadcasts the last k:
    2·log2 N messages of k entries, for any number of ranks (gTop-k, Shi et al., ICDCS 2019,
    https://arxiv.org/abs/1901.04359).

    A sum that a merge drops goes into the memory of the rank that merged: so none is lost, even where the
    other branch of the tree brings the same coordinate up to the root.
    """

    name: ClassVar[str] = "GlobalTopK"

    def rounds(self, compressor: Compressor, world: int) -> int:
        return depth(world) + 1

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        assert isinstance(compressor, Sparse)
        size = frame(compressor.payload_bytes(layout.numel))
        return hops(size, world) + broadcast(size, world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Sparse)
        entries = compressor.layout(len(x))
        mine = state.kept.tensor("mine", (entries.nbytes,), torch.uint8)
        compressor.encode(x, mine, state)
        merged, payload = framed(state, "merged", 1, entries.nbytes)
        payload[0].copy_(mine)
        flags(merged)[0].copy_(state.flag)
        other, received = framed(state, "other", 1, entries.nbytes)
        for level in range(depth(state.world)):
            target, source = partners(state.rank, state.world, level)
            yield Hop(merged[0], other[0], target, source)
            if source is not None:
                ours, theirs = entries.unpack(payload[0]), entries.unpack(received[0])
                kept, dropped = merge(ours, theirs, entries.k)
                entries.pack(payload[0], *kept)
                flags(merged).add_(flags(other))
                for name, part in zip(("indices", "values"), dropped, strict=True):
                    state.kept.tensor(f"dropped {name} {level}", part.shape, part.dtype).copy_(part)
        yield Broadcast(merged[0], 0)
        state.settle(flags(merged)[0])
        mean = state.kept.tensor("mean", (len(x),))
        return mean.zero_().index_add_(0, *entries.unpack(payload[0]))

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        assert isinstance(compressor, Sparse)
        if not state.remember:
            return
        entries = compressor.layout(len(x))
        state.release(x, *entries.unpack(state.kept.tensor("mine", (entries.nbytes,), torch.uint8)))
        for level in range(depth(state.world)):
            if partners(state.rank, state.world, level)[1] is not None:
                indices = state.kept.tensor(f"dropped indices {level}", (2 * entries.k,), torch.int64)
                values = state.kept.tensor(f"dropped values {level}", (2 * entries.k,))
                state.release(x, indices, -values)


def partners(rank: int, world: int, level: int) -> tuple[int | None, int | None]:
    """Whom `rank` sends to and whom it receives from at this level of the tree, whose root is rank 0."""
    stride = 1 << level
    if rank % (2 * stride) == stride:
        return rank - stride, None
    if rank % (2 * stride) == 0 and rank + stride < world:
        return None, rank + stride
    return None, None


def merge(
    ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], k: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Adds up two sets of entries (k,): the k largest sums by ascending index, and all sums (2k,) with zeros for
    those k. Shapes do not depend on the data; what is left over are zeros at the
    last index."""
    indices, order = torch.cat([ours[0], theirs[0]]).sort()
    first = torch.ones_like(indices, dtype=torch.bool)
    torch.ne(indices[1:], indices[:-1], out=first[1:])
    place = first.cumsum(0).sub_(1)
    values = torch.cat([ours[1], theirs[1]])
    sums = torch.zeros_like(values).index_add_(0, place, values[order])
    where = indices[-1:].repeat(len(indices)).scatter_(0, place, indices)
    best = sums.abs().topk(k, sorted=False).indices.sort().values
    kept = where[best], sums[best]
    return kept, (where, sums.index_fill_(0, best, 0))
