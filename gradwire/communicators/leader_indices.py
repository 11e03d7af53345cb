"""Leader's indices: one rank chooses the coordinates, another one each step, and all send their values there."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Broadcast
from gradwire.communicators.aligned import release_values, sum_values
from gradwire.communicators.base import FLAG_BYTES, SparseCommunicator
from gradwire.communicators.wire import Wire, all_reduce, broadcast
from gradwire.compressors import Compressor, Reduction, Sparse, State
from gradwire.compressors.entries import Places
from gradwire.layout import Layout


@dataclass(frozen=True)
class LeaderIndices(SparseCommunicator):
    """Broadcasts the selection of one rank, in turn from step to step, and all-reduces all ranks' values there: CLT-k
    (ScaleCom, Chen et al., NeurIPS 2020, https://arxiv.org/abs/2104.11125; AR-Topk with ranks in turn).

    Bytes do not grow with the ranks, and the mean is exact at k coordinates. The others wait for their turn.
    """

    name: ClassVar[str] = "LeaderIndices"

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        places = _places(compressor, layout.numel)
        return broadcast(places.nbytes, world) + all_reduce(4 * places.k + FLAG_BYTES, world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Sparse)
        places = _places(compressor, len(x))
        payload = state.kept.tensor("places", (places.nbytes,), torch.uint8)
        leader = state.step % state.world
        if state.rank == leader:
            places.pack(payload, compressor.select(x, places.k, state))
        yield Broadcast(payload, leader)
        return (yield from sum_values(x, *_shared(places, payload), state))

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        if state.remember:
            places = _places(compressor, len(x))
            payload = state.kept.tensor("places", (places.nbytes,), torch.uint8)
            release_values(x, *_shared(places, payload), state)


def _places(compressor: Compressor, n: int) -> Places:
    assert isinstance(compressor, Sparse)
    return Places(n, compressor.count(n))


def _shared(places: Places, payload: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinates (k,) and whether each is meant (k,)."""
    indices, count = places.unpack(payload)
    return indices, torch.arange(places.k, device=indices.device) < count
