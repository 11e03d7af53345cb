"""Top-k by chunks, with short places and few levels: the payload for local steps over slow links."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import Selective
from gradwire.compressors.context import GroupContext, Parts
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import LONGEST_BLOCK
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.tiles import at_once, padded_rows
from gradwire.ops.vectors import equal_parts

SCALE = torch.bfloat16


class _Parts(NamedTuple):
    """The parts of payloads: a row for each chunk of each."""

    scales: Tensor  # (payloads, chunks, levels) SCALE
    places: Tensor  # (payloads, chunks, bytes)
    signs: Tensor  # (payloads, chunks, bytes)


@dataclass(frozen=True)
class ChunkTopK(Selective, recordable=True):
    """The `k` largest elements of each chunk `of` so many, as SparseLoCo sends (Sarfi et al., 2025,
    https://arxiv.org/abs/2508.15706).

    Places take log2(`of`) bits. Values become a sign and one of 2^(`bits` - 1) levels, each the mean of equally many
    elements, in bfloat16. Which level it is follows from the order of the places, the largest elements first, so that
    of the `bits` only the sign travels: 108 bytes for 64 of 4096 in 2 bits, 152 times fewer than in float32. Wants a
    memory.
    """

    k: int = 64
    of: int = 4096
    bits: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.k <= self.of <= LONGEST_BLOCK or self.k % 8:
            raise ValueError(
                f"k={self.k} elements in each chunk of={self.of} are no multiple of 8 in at most {LONGEST_BLOCK}; use "
                "e.g. k=64, of=4096"
            )
        if not 1 <= self.bits <= 8 or self.k % self.levels:
            raise ValueError(f"bits={self.bits} make no equal shares of {self.k} elements; use 1 to 4, e.g. bits=2")

    @property
    def levels(self) -> int:
        """How many magnitudes a chunk's elements may have."""
        return 1 << (self.bits - 1)

    @property
    def place_bits(self) -> int:
        """Bits of an element's place in its chunk."""
        return max(1, (self.of - 1).bit_length())

    def chunks(self, n: int) -> int:
        """How many chunks n elements make; the last may be shorter."""
        return -(-n // self.of)

    def payload_bytes(self, n: int) -> int:
        return self.chunks(n) * (SCALE.itemsize * self.levels + self.k * (self.place_bits + 1) // 8)

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for x, rows in equal_parts(vector.total(), payloads, parts.bounds):
            self._send(x, rows, parts.context)

    def _send(self, x: Tensor, payloads: Tensor, context: GroupContext) -> None:
        """Each vector of x (m, n) to a payload of its own; on a CPU one."""
        parts = self._parts(payloads, x.shape[1])
        for first, chunk in padded_rows(x, self.of, context.scratch):
            rows = slice(first, first + chunk.shape[1])
            magnitude = torch.abs(chunk, out=context.scratch.tensor("magnitude", tuple(chunk.shape)))
            top, places = magnitude.topk(self.k)  # both (m, rows, k), the largest first
            parts.scales[:, rows] = top.unflatten(2, (self.levels, -1)).mean(3)
            pack = backend_for(x).pack_words
            pack(places, self.place_bits, parts.places[:, rows])
            pack(chunk.gather(2, places).signbit(), 1, parts.signs[:, rows])
        if context.remember:
            places, values = self._entries(payloads, x.shape[1])
            x.scatter_add_(1, places, values.neg_())

    def entries(self, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
        places, values = self._entries(rows, n)
        return places.view(-1), values.view(-1)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        for out, rows in equal_parts(mean.vector().zero_(), payloads, parts.bounds):
            for some in at_once(rows.transpose(0, 1)):  # (ranks, parts, bytes)
                entries = self._entries(some.flatten(0, 1), out.shape[1])
                for places, values in zip(*(each.view(*some.shape[:2], -1) for each in entries), strict=True):
                    out.scatter_add_(1, places, values)

    def _entries(self, payloads: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """`entries` by payload, (payloads, ·) each."""
        parts = self._parts(payloads, n)
        unpack = backend_for(payloads).unpack_words
        signs = unpack(parts.signs, 1, self.k)
        places = unpack(parts.places, self.place_bits, self.k)
        places += torch.arange(0, n, self.of, dtype=torch.int64, device=places.device)[:, None]
        values = parts.scales.float().repeat_interleave(self.k // self.levels, 2)
        values.mul_(1 - 2 * signs).mul_(places < n)  # the last chunk may have chosen from behind the end
        return places.clamp_(max=n - 1).flatten(1), values.flatten(1)

    def _parts(self, payloads: Tensor, n: int) -> _Parts:
        chunks = self.chunks(n)
        if len(payloads) == 1:
            payloads = payloads.as_strided(payloads.shape, (0, 1))  # of any length: there is no next row to find
        sizes = [chunks * SCALE.itemsize * self.levels, chunks * self.k * self.place_bits // 8, chunks * self.k // 8]
        scales, places, signs = payloads[:, : sum(sizes)].split(sizes, 1)
        return _Parts(
            scales.view(SCALE).unflatten(1, (chunks, -1)),
            places.unflatten(1, (chunks, -1)),
            signs.unflatten(1, (chunks, -1)),
        )
