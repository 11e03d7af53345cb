"""Global top-k: selections merge up a tree of ranks, and the k largest sums come back down."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collective import Broadcast, SendReceive, framed
from gradwire.communicators.communicator import SparseCommunicator
from gradwire.compressors import Compressor, GroupContext, Reduction, Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.wire import Wire, broadcast, depth


@dataclass(frozen=True)
class GlobalTopK(SparseCommunicator, recordable=True):
    """Merges selections pair by pair up a binary tree, keeps the k largest sums each time, and broadcasts the last k:
    2·log2 N messages of k entries, for any number of ranks (gTop-k, Shi et al., ICDCS 2019,
    https://arxiv.org/abs/1901.04359).

    A sum that a merge drops, or the error of codes in one, goes into the memory of the rank that merged: so none is
    lost, even where the other branch of the tree brings the same coordinate up to the root.
    """

    def rounds(self, compressor: Compressor, world: int) -> int:
        return depth(world) + 1

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        # up the tree, and down
        one_way = broadcast(framed(codec.payload_bytes(n)), world)
        return one_way + one_way

    def reduce_codec(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        entries = codec.layout(vector.numel)
        both = context.message("both", entries.nbytes, rows=2)
        merged = both.row(0)
        other = both.row(1)
        ops = backend_for(both.body)
        # select this rank's elements
        codec.encode(vector, merged.body[None], context.whole)
        # merge up the tree
        for level in range(depth(context.world)):
            target, source = partners(context.rank, context.world, level)
            yield SendReceive(merged, other, target, source)
            if source is not None:
                (indices, sums), dropped = merge(*ops.unpack_entries(both.body, entries), entries.k)
                sent = ops.pack_entries(merged.body[None], entries, indices[None], sums[None])[0]
                # keep the sums that were dropped, and the codes' error
                if context.error_feedback:
                    vector.total().index_add_(0, *dropped)
                if context.error_feedback and not entries.exact:
                    vector.total().index_add_(0, indices, sums - sent)
        # broadcast the root's k largest sums
        yield Broadcast(merged, 0)
        ops.sum_entries(merged.body[None, None], mean.parts(), [entries])


def partners(rank: int, world: int, level: int) -> tuple[int | None, int | None]:
    """The rank that `rank` sends to, and the one that it receives from, at a level of the tree whose root is rank 0;
    None where it does not."""
    # at each level half of the ranks that are left send to the other half
    stride = 1 << level
    # one that sends, and then has no part in the tree
    if rank % (2 * stride) == stride:
        return rank - stride, None
    # one that receives, where there is a partner
    if rank % (2 * stride) == 0 and rank + stride < world:
        return None, rank + stride
    return None, None


def merge(indices: Tensor, values: Tensor, k: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Indices and values of the k largest sums of entries (≤ 2k,), by ascending index, and those of all sums (≤ 2k,),
    of which these k are zero. Coordinates that come twice leave zeros at the last index."""
    # number the distinct indices
    indices, order = indices.sort()
    first = torch.ones_like(indices, dtype=torch.bool)
    torch.ne(indices[1:], indices[:-1], out=first[1:])
    place = first.cumsum(0).sub_(1)
    # sum the values of each
    sums = torch.zeros_like(values).index_add_(0, place, values[order])
    where = indices[-1:].repeat(len(indices)).scatter_(0, place, indices)
    # keep the k largest
    best = sums.abs().topk(min(k, len(sums)), sorted=False).indices.sort().values
    kept = where[best], sums[best]
    return kept, (where, sums.index_fill_(0, best, 0))
