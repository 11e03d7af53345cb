"""Sparsifiers: a few coordinates are sent, exactly, the others not at all."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire.compressors.base import Codec, Selective
from gradwire.compressors.context import GroupContext
from gradwire.compressors.losses import beyond_largest
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.host import on_host
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.tiles import at_once
from gradwire.ops.vectors import alike_parts, equal_parts
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

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        x = vector.total()
        self.pack(x, self.select(x, self.count(len(x)), context), payload)

    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        backend_for(x).move_entries(x[None], payload[None], self.layout(len(x)), indices[None])

    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        first = self.select(x, self.count(len(x)), context)
        return first, first if fewer == self.count(len(x)) else first[backend_for(x).top_k(x[first], fewer)]

    def entries(self, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return backend_for(rows).unpack_entries(rows, self.layout(n))

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        backend_for(out).decode_entries(rows[None], out, [self.layout(len(out))])

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        if on_host(x.device):
            super().encode_parts(x, rows, bounds, context)
            return
        for parts, payloads, layout in alike_parts(x, rows, self.part_layouts(bounds)):
            self.encode_rows(parts, payloads, layout, context)

    def encode_rows(self, x: Tensor, payloads: Tensor, layout: Entries, context: GroupContext) -> None:
        """`encode` of each vector of x (rows, n) to a row of payloads, on a GPU."""
        backend_for(x).move_entries(x, payloads, layout, self.select(x, layout.k, context))

    def decode_parts(self, rows: Tensor, out: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        backend_for(out).decode_entries(rows[:, None], out, self.part_layouts(bounds))

    def part_layouts(self, bounds: Sequence[int]) -> list[Entries]:
        """`layout` of each part between two bounds."""
        return [self.layout(b - a) for a, b in pairwise(bounds) if a < b]

    def decode_to(self, mean: Mean, rows: Tensor, context: GroupContext) -> None:
        backend_for(rows).decode_entries(rows[None], mean.parts(), [self.layout(context.layout.numel)])

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return beyond_largest(x, [choice.count(slot.numel) for choice in choices])


@dataclass(frozen=True)
class TopK(Sparse):
    """The `ratio`·n elements of largest magnitude, selected exactly (Aji and Heafield, EMNLP 2017,
    https://arxiv.org/abs/1704.05021)."""

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        return backend_for(x).top_k(x, k)

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        vector.select([self.layout(vector.numel)], payload[None])

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        LazySum.of(x).select(self.part_layouts(bounds), rows)


@dataclass(frozen=True)
class RandomK(Sparsifier):
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
        generator = torch.Generator(context.device).manual_seed(context.shared_seed())
        draw = torch.rand(k, generator=generator, device=context.device, dtype=torch.float64)
        return draw.mul_(sizes).long().add_(starts), sizes

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        self._send(vector.total(), payload.view(torch.float32), context)

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        if on_host(x.device):
            super().encode_parts(x, rows, bounds, context)
            return
        for parts, values in equal_parts(x, rows.view(torch.float32), bounds):
            self._send(parts, values[:, : self.count(parts.shape[1])], context)

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

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        indices, _ = self.indices(len(out), context)
        out.zero_()
        for some in at_once(rows.view(torch.float32)):
            out.index_add_(0, indices, some.sum(0))

    def decode_parts(self, rows: Tensor, out: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        if on_host(out.device):
            super().decode_parts(rows, out, bounds, context)
            return
        out.zero_()
        for parts, values in equal_parts(out, rows.view(torch.float32), bounds):
            indices, _ = self.indices(parts.shape[1], context)
            parts.index_copy_(-1, indices, values[:, : len(indices)])

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        whole = float(x.double().square().sum())
        return [(1 - choice.ratio) * whole for choice in choices]
