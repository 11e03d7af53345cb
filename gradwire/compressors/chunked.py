"""Top-k by chunks, with short indices and few levels: SparseLoCo's payload, for local steps over slow links."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.compressor import Rowwise, Selective
from gradwire.compressors.context import GroupContext
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import LONGEST_BLOCK
from gradwire.ops.tiles import at_once, padded_rows

SCALE = torch.bfloat16


class _Fields(NamedTuple):
    """Views of the fields of payloads, chunk by chunk."""

    scales: Tensor
    """(payloads, chunks, levels) bfloat16"""
    places: Tensor
    """(payloads, chunks, bytes) uint8, the packed indices within chunks"""
    signs: Tensor
    """(payloads, chunks, bytes) uint8, a bit for each element"""


@dataclass(frozen=True)
class ChunkTopK(Rowwise, Selective, recordable=True):
    """The `k` largest elements of each chunk of neighbours, with few levels, as SparseLoCo sends (Sarfi et al., 2025,
    https://arxiv.org/abs/2508.15706). Wants a memory.

    Indices take log2(`of`) bits. Values become a sign and a level, the mean of equally many elements, in bfloat16. The
    order of the indices, the largest elements first, says which level it is, so that only the sign travels: 108 bytes
    for 64 of 4096 in 2 bits, 152 times fewer than in float32.
    """

    k: int = 64
    """Elements sent of each chunk, a multiple of 8."""
    of: int = 4096
    """Elements of a chunk."""
    bits: int = 2
    """Bits of a value, its sign among them, which make 2^(bits - 1) levels."""
    for_shards = "with memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.k <= self.of <= LONGEST_BLOCK or self.k % 8:
            raise ValueError(
                f"k={self.k} elements in each chunk of={self.of} are no multiple of 8 in at most {LONGEST_BLOCK}; use "
                "e.g. k=64, of=4096"
            )
        if not 1 <= self.bits <= 8 or self.k % self.levels:
            raise ValueError(
                f"bits={self.bits} do not divide {self.k} elements into equal levels; use 1 to 4, e.g. bits=2"
            )

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

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        fields, members = self._fields(payload, x.shape[1]), self._members(x.shape[1], context)
        for first, chunk in padded_rows(x, self.of, context.scratch):
            rows = slice(first, first + chunk.shape[1])
            # select
            magnitude = torch.abs(chunk, out=context.scratch.tensor("magnitude", tuple(chunk.shape)))
            top, places = backend_for(x).largest_first(magnitude, self.k)  # both (m, rows, k), the largest first
            # quantise: the mean of equally many neighbours in that order, fewer where the last chunk ends
            sums = top.unflatten(2, (self.levels, -1)).sum(3)
            torch.div(sums, members[rows], out=fields.scales[:, rows])
            # pack
            pack = backend_for(x).pack_words
            pack(places, self.place_bits, fields.places[:, rows])
            pack(chunk.gather(2, places).signbit(), 1, fields.signs[:, rows])
        # keep what was not sent
        if context.error_feedback:
            places, values = self._entries(payload, x.shape[1])
            x.scatter_add_(1, places, values.neg_())

    def entries(self, rows: Tensor, context: GroupContext) -> tuple[Tensor, Tensor]:
        places, values = self._entries(rows, context.layout.numel)
        return places.view(-1), values.view(-1)

    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        out.zero_()
        for some in at_once(rows.transpose(0, 1)):  # (ranks, m, bytes)
            entries = self._entries(some.flatten(0, 1), out.shape[1])
            # rank by rank: the same rounding on every replica
            for places, values in zip(*(each.view(*some.shape[:2], -1) for each in entries), strict=True):
                out.scatter_add_(1, places, values)

    def _members(self, n: int, context: GroupContext) -> Tensor:
        """How many of n elements each chunk's levels have (chunks, levels), at least 1: padding is none."""

        def counts() -> Tensor:
            size, device = self.k // self.levels, context.device
            elements = n - self.of * torch.arange(self.chunks(n), dtype=torch.int64, device=device)
            before = size * torch.arange(self.levels, dtype=torch.int64, device=device)
            return (elements[:, None] - before).clamp_(1, size)

        return context.buffers.once(("members", self, n), counts)

    def _entries(self, payloads: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """`entries` by payload, (payloads, ·) each."""
        fields = self._fields(payloads, n)
        # unpack, and count indices from the vector's start
        unpack = backend_for(payloads).unpack_words
        signs = unpack(fields.signs, 1, self.k)
        places = unpack(fields.places, self.place_bits, self.k)
        places += torch.arange(0, n, self.of, dtype=torch.int64, device=places.device)[:, None]
        # dequantise
        values = fields.scales.float().repeat_interleave(self.k // self.levels, 2)
        values.mul_(1 - 2 * signs).mul_(places < n)  # the last chunk may have chosen from behind the end
        return places.clamp_(max=n - 1).flatten(1), values.flatten(1)

    def _fields(self, payloads: Tensor, n: int) -> _Fields:
        chunks = self.chunks(n)
        if len(payloads) == 1:
            payloads = payloads.as_strided(payloads.shape, (0, 1))  # of any length: there is no next row to find
        # split into the fields, and view each by chunk
        sizes = [chunks * SCALE.itemsize * self.levels, chunks * self.k * self.place_bits // 8, chunks * self.k // 8]
        scales, places, signs = payloads[:, : sum(sizes)].split(sizes, 1)
        return _Fields(
            scales.view(SCALE).unflatten(1, (chunks, -1)),
            places.unflatten(1, (chunks, -1)),
            signs.unflatten(1, (chunks, -1)),
        )
