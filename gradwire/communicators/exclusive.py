"""Exclusive selection: each rank chooses coordinates in a part of its own, and all send their values there."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import FLAG_BYTES, Gather, framed
from gradwire.communicators.aligned import sum_values
from gradwire.communicators.base import SparseCommunicator
from gradwire.communicators.wire import Wire, all_gather, all_reduce
from gradwire.compressors import Compressor, GroupContext, Reduction, Sparse
from gradwire.ops.entries import Places
from gradwire.ops.kernels import pack_places, unpack_places
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.ranges import even


@dataclass(frozen=True)
class Exclusive(SparseCommunicator):
    """Each rank selects in its own partition, another one each step; all gather these indices and all-reduce their
    values there (MiCRO, Yoon and Oh, HiPC 2023, https://arxiv.org/abs/2310.00967; ExDyna; DEFT).

    k coordinates in all, each chosen once: selecting takes 1/N of the time, and bytes do not grow with the ranks.
    The originals' partitions move with their measured load, or hold whole layers; these are even, and their
    coordinates are counted beforehand, so that no message depends on the data.
    """

    name: ClassVar[str] = "Exclusive"
    sums_values: ClassVar[bool] = True

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if not compressor.divisible:
            raise ValueError(
                f"{type(compressor).__name__} selects in whole groups and Exclusive() in parts of them; "
                "pair it with LeaderIndices()"
            )

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def codec_wire(self, codec: Sparse, n: int, world: int) -> Wire:
        k, nbytes = _room(codec, n, world)
        return all_gather(framed(nbytes), world) + all_reduce(4 * world * k + FLAG_BYTES, world)

    def add_up(self, codec: Sparse, vector: LazySum, mean: Mean, context: GroupContext) -> Reduction:
        x = vector.total()
        world, (k, nbytes) = context.world, _room(codec, len(x), context.world)
        mine = context.message("mine", nbytes)
        a, b = _parts(len(x), context)[context.rank]
        quotas = even(codec.count(len(x)), world)
        quota = min(b - a, quotas[context.rank + 1] - quotas[context.rank])
        if a < b:
            nothing = torch.empty(0, dtype=torch.int64, device=x.device)
            found = codec.select(x[a:b], quota, context) if quota else nothing
            pack_places(mine.body, Places(b - a, k), found)
        everyones = context.message("places", nbytes, rows=world)
        yield Gather(mine, everyones)
        yield from sum_values(x, *_union(k, everyones.body, len(x), context), mean.vector(), context)


def _room(codec: Sparse, n: int, world: int) -> tuple[int, int]:
    """How many coordinates a part has room for, and their bytes: a part has so many elements, or one less."""
    k, width = -(-codec.count(n) // world), -(-n // world)
    return k, max(Places(width, k).nbytes, Places(max(1, width - 1), k).nbytes)


def _parts(n: int, context: GroupContext) -> list[tuple[int, int]]:
    """This step's part of each rank: (start, end)."""
    parts = list(pairwise(even(n, context.world)))
    return [parts[(rank + context.step) % context.world] for rank in range(context.world)]


def _union(k: int, payloads: Tensor, n: int, context: GroupContext) -> tuple[Tensor, Tensor]:
    """All ranks' coordinates (N·k,), and which of them are filled (N·k,)."""
    indices = torch.zeros(len(payloads), k, dtype=torch.int64, device=payloads.device)
    filled = torch.zeros(len(payloads), k, dtype=torch.bool, device=payloads.device)
    for rank, (a, b) in enumerate(_parts(n, context)):
        if a < b:
            found, filled[rank] = unpack_places(payloads[rank], Places(b - a, k))
            torch.add(found, a, out=indices[rank])
    return indices.view(-1), filled.view(-1)
