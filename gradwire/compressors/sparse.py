"""Sparsifiers: a few coordinates are sent, exactly, the others not at all."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire.compressors.base import Codec, Selective
from gradwire.compressors.context import GroupContext, Parts
from gradwire.compressors.losses import beyond_largest
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.noise import draws
from gradwire.ops.tiles import at_once
from gradwire.ops.vectors import equal_parts, together
from gradwire.slots import Slot


def check_ratio(ratio: float) -> None:
    """Raises ValueError for what is no share of elements."""
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio} is not the share of elements to send; it lies in (0, 1], e.g. ratio=0.01")


class Sparsifier(Codec):
    """Sends `count(n)` of n elements, the share `ratio` of them."""

    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)

    def count(self, n: int) -> int:
        """k: how many of n elements are sent."""
        return max(1, int(n * self.ratio))

    @abstractmethod
    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        """Ascending indices int64 of the elements of x (n,) to send, and of those where only so few are sent."""

    @abstractmethod
    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        """Writes these elements of x (n,) to a payload, and leaves in x what it does not hold."""


class Sparse(Sparsifier, Selective):
    """k values with their indices, which take about 2 + log2(n/k) bits each, 9 at 1 % (`Entries`). With `value_bits` of
    32 values are exact. With 4 they are a sign and one of 8 levels; what that loses stays in the memory.

    Where fewer than k elements are worth sending, there is room left.
    """

    value_bits: Literal[32, 4]

    @property
    def sparse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.value_bits == 32

    @property
    def carries_dense(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.value_bits != 32

    def room(self, n: int, k: int) -> Entries:
        """How up to k of n elements are laid out in a payload."""
        return Entries(n, k, self.value_bits)

    def layout(self, n: int) -> Entries:
        """Where in the payload of n elements what lies."""
        return self.room(n, self.count(n))

    def payload_bytes(self, n: int) -> int:
        return self.layout(n).nbytes

    @abstractmethod
    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        """Ascending indices (≤ k,) int64 of the elements of x (n,) to send; on a GPU, where this is divisible, those of
        each vector of x (..., n)."""

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for x, rows, layout in together(vector.total(), payloads, self.layouts(parts)):
            self.send(x, rows, layout, parts.context)

    def send(self, x: Tensor, payloads: Tensor, layout: Entries, context: GroupContext) -> None:
        """Moves what is sent of vectors x (m, n), on a CPU of one, to payloads (m, ≥ bytes)."""
        indices = self.select(x.squeeze(0), layout.k, context).view(len(x), -1)
        backend_for(x).move_entries(x, payloads, layout, indices)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        backend_for(payloads).decode_entries(payloads, parts.output(mean), self.layouts(parts))

    def layouts(self, parts: Parts) -> list[Entries]:
        """`layout` of each part."""
        return [self.layout(length) for length in parts.lengths]

    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        backend_for(x).move_entries(x[None], payload[None], self.layout(len(x)), indices[None])

    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        first = self.select(x, self.count(len(x)), context)
        return first, first if fewer == self.count(len(x)) else first[backend_for(x).top_k(x[first], fewer)]

    def entries(self, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return backend_for(rows).unpack_entries(rows, self.layout(n))

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return beyond_largest(x, [choice.count(slot.numel) for choice in choices])


@dataclass(frozen=True)
class TopK(Sparse, recordable=True):
    """The `ratio`·n elements of largest magnitude, selected exactly (Aji and Heafield, EMNLP 2017,
    https://arxiv.org/abs/1704.05021)."""

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        return backend_for(x).top_k(x, k)

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        vector.select(self.layouts(parts), payloads)


@dataclass(frozen=True)
class RandomK(Sparsifier, recordable=True):
    """One element at random from each of `ratio`·n equal cells, the same ones on every rank, so that the
    values alone travel and are all-reduced (Stich et al., NeurIPS 2018, https://arxiv.org/abs/1809.07599).

    `rescale` multiplies each value by its cell's size, which makes the mean unbiased: for use without memory.
    """

    ratio: float = 0.01
    rescale: bool = False
    sparse = True
    summable = True
    local_arithmetic = True

    @property
    def biased(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.rescale

    def payload_bytes(self, n: int) -> int:
        return 4 * self.count(n)

    def indices(self, n: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        """The chosen elements (k,) and their cells' sizes (k,), from the seed that all ranks share."""
        return self._draw(n, self.count(n), context)

    def _draw(self, n: int, k: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        def cells() -> tuple[Tensor, Tensor]:
            edges = torch.arange(k + 1, dtype=torch.int64, device=context.device).mul_(n).div_(k, rounding_mode="floor")
            return edges[:-1], edges.diff()

        starts, sizes = context.buffers.once(("cells", n, k), cells)
        return draws(k, context.shared_seed(), context.device).mul_(sizes).long().add_(starts), sizes

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        for x, values in equal_parts(vector.total(), payloads.view(torch.float32), parts.bounds):
            k = self.count(x.shape[1])
            self._send(x.squeeze(0), values[:, :k].squeeze(0), parts.context)

    def _send(self, x: Tensor, values: Tensor, context: GroupContext) -> None:
        """Moves the chosen elements of vectors x (..., n) to values (..., k)."""
        indices, sizes = self.indices(x.shape[-1], context)
        torch.index_select(x, -1, indices, out=values)
        x.index_fill_(-1, indices, 0)
        if self.rescale:
            values.mul_(sizes)

    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        torch.index_select(x, 0, indices, out=payload.view(torch.float32))
        x.index_fill_(0, indices, 0)

    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        return self.indices(len(x), context)[0], self._draw(len(x), fewer, context)[0]

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        for out, values in equal_parts(mean.vector().zero_(), payloads.view(torch.float32), parts.bounds):
            indices, _ = self.indices(out.shape[1], parts.context)
            for some in at_once(values[..., : len(indices)].transpose(0, 1)):  # (ranks, parts, k)
                summed = some[0] if len(some) == 1 else some.sum(0)
                out.squeeze(0).index_add_(-1, indices, summed.squeeze(0))

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        whole = float(x.double().square().sum())
        return [(1 - choice.ratio) * whole for choice in choices]
