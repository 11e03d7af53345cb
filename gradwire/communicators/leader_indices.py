"""Leader's indices: one rank chooses the coordinates, another one each step, and all send their values there."""

from dataclasses import dataclass
from typing import ClassVar

from gradwire.collective import FLAG_BYTES, Broadcast, framed
from gradwire.communicators.aligned import sum_values
from gradwire.communicators.communicator import SparseCommunicator
from gradwire.compressors import GroupContext, Reduction, Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import EliasFano
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.wire import Wire, all_reduce, broadcast


@dataclass(frozen=True)
class LeaderIndices(SparseCommunicator, recordable=True):
    """Broadcasts the selection of one rank, in turn from step to step, and all-reduces all ranks' values there: CLT-k
    (ScaleCom, Chen et al., NeurIPS 2020, https://arxiv.org/abs/2104.11125; AR-Topk with ranks in turn).

    Bytes do not grow with the ranks, and the mean is exact at k coordinates. The others wait for their turn.
    """

    sums_values: ClassVar[bool] = True

    def phase(self, step: int, world: int) -> int:
        return step % world

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        places = _places(codec, n)
        return broadcast(framed(places.nbytes), world) + all_reduce(4 * places.k + FLAG_BYTES, world)

    def reduce_codec(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x = vector.total()
        places = _places(codec, len(x))
        message = context.message("places", places.nbytes)
        # the leader selects, another rank each step
        leader = context.step % context.world
        if context.rank == leader:
            backend_for(x).pack_indices(message.body[None], places, codec.select(x, places.k, context)[None])
        # broadcast its indices
        yield Broadcast(message, leader)
        # sum all ranks' values there
        found, filled = backend_for(x).unpack_indices(message.body[None], places)
        yield from sum_values(x, found[0], filled[0], mean.vector(), context)


def _places(codec: Sparse, n: int) -> EliasFano:
    return EliasFano(n, codec.count(n))
