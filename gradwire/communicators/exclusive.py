"""Exclusive selection: each rank chooses coordinates in its own part of the vector, and all send their values there."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import FLAG_BYTES, Gather, framed
from gradwire.communicators.aligned import sum_values
from gradwire.communicators.communicator import SparseCommunicator
from gradwire.compressors import Compressor, GroupContext, Reduction, Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import EliasFano
from gradwire.ops.host import to_device
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import even
from gradwire.wire import Wire, all_gather, all_reduce


@dataclass(frozen=True)
class Exclusive(SparseCommunicator, recordable=True):
    """Each rank selects in its own part of the vector, another one each step; all gather these indices and all-reduce
    their values there (MiCRO, Yoon and Oh, HiPC 2023, https://arxiv.org/abs/2310.00967; ExDyna; DEFT).

    k coordinates in all, each chosen once: selecting takes 1/N of the time, and bytes do not grow with the ranks.
    The originals' parts move with their measured load, or hold whole layers; these are even, and the plan says how many
    coordinates each has, so that no message depends on the data.
    """

    sums_values: ClassVar[bool] = True

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if not compressor.takes_parts:
            raise ValueError(
                f"{type(compressor).__name__} selects in whole groups and Exclusive() in parts of them; "
                "pair it with LeaderIndices()"
            )

    def phase(self, step: int, world: int) -> int:
        return step % world

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        places = _places(codec, n, world)
        return all_gather(framed(places.nbytes), world) + all_reduce(4 * world * places.k + FLAG_BYTES, world)

    def reduce_codec(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x, world = vector.total(), context.world
        places, parts = _places(codec, len(x), world), _parts(len(x), context)
        mine = context.message("mine", places.nbytes)
        # select in this rank's part
        a, b = parts[context.rank]
        quotas = even(codec.count(len(x)), world)
        quota = min(b - a, quotas[context.rank + 1] - quotas[context.rank])
        nothing = torch.empty(0, dtype=torch.int64, device=x.device)
        chosen = codec.select(x[a:b], quota, context) if quota else nothing
        # gather the indices of all ranks
        backend_for(x).pack_indices(mine.body[None], places, chosen[None])
        everyones = context.message("places", places.nbytes, rows=world)
        yield Gather(mine, everyones)

        def starts() -> Tensor:
            return to_device(torch.tensor([[start] for start, _ in parts], dtype=torch.int64, device="cpu"), x.device)

        # count them from the start of the vector
        found, filled = backend_for(x).unpack_indices(everyones.body, places)
        found += context.buffers.once((self, "starts", context.step % world), starts)
        # sum all ranks' values there
        yield from sum_values(x, found.view(-1), filled.view(-1), mean.vector(), context)


def _places(codec: Sparse, n: int, world: int) -> EliasFano:
    """The layout of a part's coordinates; parts have as many elements as this, or one less."""
    return EliasFano(-(-n // world), -(-codec.count(n) // world))


def _parts(n: int, context: GroupContext) -> list[tuple[int, int]]:
    """This step's part of each rank: (start, end)."""
    parts = list(pairwise(even(n, context.world)))
    return [parts[(rank + context.step) % context.world] for rank in range(context.world)]
