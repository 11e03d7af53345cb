"""Exclusive selection: each rank chooses coordinates in a part of its own, and all send their values there."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Gather
from gradwire.communicators.aligned import release_values, sum_values
from gradwire.communicators.base import FLAG_BYTES, SparseCommunicator
from gradwire.communicators.ranges import even
from gradwire.communicators.wire import Wire, all_gather, all_reduce
from gradwire.compressors import Codec, Compressor, Reduction, Sparse, State
from gradwire.compressors.entries import Places
from gradwire.layout import Layout


@dataclass(frozen=True)
class Exclusive(SparseCommunicator):
    """Each rank selects in its own partition, another one each step; all gather these indices and all-reduce their
    values there (MiCRO, Yoon and Oh, HiPC 2023, https://arxiv.org/abs/2310.00967; ExDyna; DEFT).

    k coordinates in all, each chosen once: selecting takes 1/N of the time, and bytes do not grow with the ranks.
    The originals' partitions move with their measured load, or hold whole layers; these are even, and their
    coordinates are counted beforehand, so that no message depends on the data.
    """

    name: ClassVar[str] = "Exclusive"

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if isinstance(compressor, Codec) and not compressor.divisible:
            raise ValueError(
                f"{type(compressor).__name__} selects in whole groups and Exclusive() in parts of them; "
                "pair it with LeaderIndices()"
            )

    def rounds(self, compressor: Compressor, world: int) -> int:
        return 2

    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        largest = _largest(compressor, layout.numel, world)
        return all_gather(largest.nbytes, world) + all_reduce(4 * world * largest.k + FLAG_BYTES, world)

    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        assert isinstance(compressor, Sparse)
        world, largest = state.world, _largest(compressor, len(x), state.world)
        mine = state.kept.tensor("mine", (largest.nbytes,), torch.uint8)
        a, b = _parts(len(x), state)[state.rank]
        quotas = even(compressor.count(len(x)), world)
        quota = min(b - a, quotas[state.rank + 1] - quotas[state.rank])
        if a < b:
            nothing = torch.empty(0, dtype=torch.int64, device=x.device)
            found = compressor.select(x[a:b], quota, state) if quota else nothing
            Places(b - a, largest.k).pack(mine, found)
        payloads = state.kept.tensor("places", (world, largest.nbytes), torch.uint8)
        yield Gather(mine, payloads)
        return (yield from sum_values(x, *_shared(largest.k, payloads, len(x), state), state))

    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        if state.remember:
            largest = _largest(compressor, len(x), state.world)
            payloads = state.kept.tensor("places", (state.world, largest.nbytes), torch.uint8)
            release_values(x, *_shared(largest.k, payloads, len(x), state), state)


def _largest(compressor: Compressor, n: int, world: int) -> Places:
    """The layout of the largest part's coordinates."""
    assert isinstance(compressor, Sparse)
    return Places(-(-n // world), -(-compressor.count(n) // world))


def _parts(n: int, state: State) -> list[tuple[int, int]]:
    """This step's part of each rank: (start, end)."""
    parts = list(pairwise(even(n, state.world)))
    return [parts[(rank + state.step) % state.world] for rank in range(state.world)]


def _shared(k: int, payloads: Tensor, n: int, state: State) -> tuple[Tensor, Tensor]:
    """All ranks' coordinates (N·k,), and whether each is meant (N·k,)."""
    indices = torch.zeros(len(payloads), k, dtype=torch.int64, device=payloads.device)
    counts = torch.zeros(len(payloads), 1, dtype=torch.int32, device=payloads.device)
    for rank, (a, b) in enumerate(_parts(n, state)):
        if a < b:
            found, counts[rank, 0] = Places(b - a, k).unpack(payloads[rank])
            torch.add(found, a, out=indices[rank])
    return indices.view(-1), (torch.arange(k, device=indices.device) < counts).view(-1)
