"""Top-k by chunks, with short places and few levels: the payload for local steps over slow links."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import Selective
from gradwire.compressors.context import GroupContext
from gradwire.ops.bits import pack_words, unpack_words
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.tiles import padded_rows

SCALE = torch.bfloat16


class _Parts(NamedTuple):
    """The parts of payloads: a row for each chunk of each."""

    scales: Tensor  # (payloads, chunks, levels) SCALE
    places: Tensor  # (payloads, chunks, bytes)
    signs: Tensor  # (payloads, chunks, bytes)


@dataclass(frozen=True)
class ChunkTopK(Selective):
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
        if not 0 < self.k <= self.of or self.k % 8:
            raise ValueError(f"k={self.k} of {self.of} elements do not fill bytes; use a multiple of 8, e.g. k=64")
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

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        x, parts = vector.total(), self._parts(payload[None], vector.numel)
        for first, chunk in padded_rows(x, self.of, context.scratch):
            rows = slice(first, first + len(chunk))
            magnitude = torch.abs(chunk, out=context.scratch.tensor("magnitude", tuple(chunk.shape)))
            top, places = magnitude.topk(self.k)  # both (rows, k), the largest first
            parts.scales[0, rows] = top.view(len(chunk), self.levels, -1).mean(2)
            pack_words(places, self.place_bits, parts.places[0, rows])
            pack_words(chunk.gather(1, places).signbit(), 1, parts.signs[0, rows])
        if context.remember:
            places, values = self.entries(payload[None], len(x))
            x.index_add_(0, places, values, alpha=-1)

    def entries(self, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
        parts = self._parts(rows, n)
        signs = unpack_words(parts.signs.flatten(0, 1), 1, self.k)
        places = unpack_words(parts.places.flatten(0, 1), self.place_bits, self.k)
        places.view(len(rows), -1, self.k).add_(torch.arange(0, n, self.of, device=places.device)[:, None])
        values = parts.scales.flatten(0, 1).float().repeat_interleave(self.k // self.levels, 1)
        values.mul_(1 - 2 * signs).mul_(places < n)  # the last chunk may have chosen from behind the end
        return places.clamp_(max=n - 1).view(-1), values.view(-1)

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
