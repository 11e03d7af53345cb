"""How coordinates travel: 16 bits each, counted per block of 65,536, with or without their values."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

BLOCK_BITS = 16


@dataclass(frozen=True)
class Places:
    """Room for up to `k` of n coordinates, n > 0: counts (blocks,) int32, then their low halves (k,) 16 bits.

    Coordinates ascend. The counts add up to how many there are; the room that is left stands for the start of
    the last block.
    """

    n: int
    k: int

    @property
    def blocks(self) -> int:
        """How many blocks n elements fill."""
        return ceil(self.n / (1 << BLOCK_BITS))

    @property
    def nbytes(self) -> int:
        """Bytes that `pack` fills; a multiple of 4."""
        return 4 * self.blocks + 2 * (self.k + self.k % 2)

    def pack(self, payload: Tensor, indices: Tensor) -> None:
        """Writes ascending indices (≤ k,) int64 to payload (nbytes,) uint8."""
        counts, low = self._parts(payload)
        m = len(indices)
        low[:m].copy_(indices.bitwise_and(0xFFFF))
        low[m:].zero_()
        edges = torch.arange(1, len(counts), device=payload.device) << BLOCK_BITS
        ends = torch.searchsorted(indices, edges)
        counts[:-1] = ends
        counts[-1] = m
        counts[1:] -= ends.int()

    def unpack(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates (k,) int64, and which of the room was filled, (k,) bool."""
        counts, low = self._parts(payload)
        bases = torch.arange(len(counts), device=payload.device) << BLOCK_BITS
        packed = counts.sum(dtype=torch.int32)
        room = counts.clone()
        room[-1] += self.k - packed
        indices = torch.repeat_interleave(bases, room, output_size=self.k)
        filled = torch.arange(self.k, device=payload.device) < packed
        return indices.add_(low.long().bitwise_and_(0xFFFF)), filled

    def unpack_rows(self, payloads: Tensor) -> Tensor:
        """The coordinates (rows, k) int64 of several payloads (rows, ≥ nbytes), in as many calls as one takes."""
        head = 4 * self.blocks
        room = payloads[:, :head].view(torch.int32).clone()
        low = payloads[:, head : head + 2 * self.k].view(torch.int16)
        room[:, -1] += self.k - room.sum(1, dtype=torch.int32)
        bases = torch.arange(self.blocks, device=payloads.device) << BLOCK_BITS
        bases = bases.expand_as(room).reshape(-1)
        starts = torch.repeat_interleave(bases, room.view(-1), output_size=room.shape[0] * self.k)
        return starts.view(low.shape).add_(low.long().bitwise_and_(0xFFFF))

    def _parts(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        head = 4 * self.blocks
        return payload[:head].view(torch.int32), payload[head : head + 2 * self.k].view(torch.int16)


@dataclass(frozen=True)
class Entries:
    """Room for up to `k` of n elements: values (k,) float32, then their places. What is left holds zeros, which
    change nothing when they are added."""

    n: int
    k: int

    @property
    def places(self) -> Places:
        """The layout of the coordinates."""
        return Places(self.n, self.k)

    @property
    def nbytes(self) -> int:
        """Bytes that `pack` fills; a multiple of 4."""
        return 4 * self.k + self.places.nbytes

    def pack(self, payload: Tensor, indices: Tensor, values: Tensor) -> None:
        """Writes ascending indices (≤ k,) int64 and their values to payload (nbytes,) uint8."""
        m = len(indices)
        room = self.values(payload)
        room[:m].copy_(values)
        room[m:].zero_()
        self.places.pack(payload[4 * self.k :], indices)

    def unpack(self, payload: Tensor) -> tuple[Tensor, Tensor]:
        """Indices (k,) int64, and a view of their values (k,)."""
        return self.places.unpack(payload[4 * self.k :])[0], self.values(payload)

    def unpack_rows(self, payloads: Tensor) -> tuple[Tensor, Tensor]:
        """As `unpack`, of several payloads (rows, ≥ nbytes): (rows, k) each."""
        return self.places.unpack_rows(payloads[:, 4 * self.k :]), self.values(payloads)

    def values(self, payloads: Tensor) -> Tensor:
        """A view of the values (..., k) of payloads (..., ≥ nbytes)."""
        return payloads[..., : 4 * self.k].view(torch.float32)
