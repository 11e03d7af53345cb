"""Sparsifiers: a few coordinates are sent, exactly, the others not at all."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire.compressors.compressor import Codec, Rowwise, Selective
from gradwire.compressors.context import GroupContext, Parts
from gradwire.compressors.error_bounds import energy_beyond_top_k
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.tiles import at_once
from gradwire.ops.vectors import together
from gradwire.slots import Slot


def check_ratio(ratio: float) -> None:
    """Raises ValueError unless the ratio lies in (0, 1]."""
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio} is not the share of elements to send; it lies in (0, 1], e.g. ratio=0.01")


class Sparsifier(Codec):
    """A codec that sends `count(n)` of n elements."""

    ratio: float
    """The share of elements to send, in (0, 1]."""
    has_levels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)

    def count(self, n: int) -> int:
        """k: how many of n elements are sent."""
        return max(1, int(n * self.ratio))

    @abstractmethod
    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        """Ascending indices (k,) int64 of the elements of x (n,) to send, and (`fewer`,) of those of a smaller second
        level: see `MultiLevel`."""

    def values(self, x: Tensor, indices: Tensor) -> Tensor:
        """The elements of x (n,) at indices (m,) of a level."""
        return x.index_select(0, indices)  # on a CPU a third of the time of x[indices]

    @abstractmethod
    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        """Writes these elements of x (n,) to a payload, and leaves in x what it does not hold."""


class Sparse(Sparsifier, Selective):
    """A sparsifier whose payload is k values with their indices, which take about 2 + log2(n/k) bits each, 9 at 1 %
    (`Entries`). A payload of fewer than k elements is as long.
    """

    value_bits: Literal[32, 4] = 32
    """Bits of a value: 32 are exact; 4 are a sign and one of 8 levels, whose error stays in the memory. Levels come
    with a scale for each 1,024 elements; where these take as much as exact values, below 0.056 %, those are sent."""

    @property
    def sparse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.value_bits == 32

    @property
    def carries_dense(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.value_bits != 32

    def entries_layout(self, n: int, k: int) -> Entries:
        """The layout of a payload with a capacity of k of n elements: exact where levels take no fewer bytes."""
        return min(Entries(n, k), Entries(n, k, self.value_bits), key=lambda layout: layout.nbytes)

    def layout(self, n: int) -> Entries:
        """The layout of the payload of n elements."""
        return self.entries_layout(n, self.count(n))

    def payload_bytes(self, n: int) -> int:
        return self.layout(n).nbytes

    @abstractmethod
    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        """Ascending indices (≤ k,) int64 of the elements of x (n,) to send; on a GPU, where this is divisible, those of
        each vector of x (..., n), and UNUSED may stand behind the last."""

    def is_exact(self, device: torch.device) -> bool:
        """Whether `select` selects the k largest elements on a device, always."""
        return False

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        # add up, select and pack, in one pass where a kernel can
        if self.is_exact(payloads.device):
            vector.select(self.layouts(parts), payloads)
            return
        # else add up first
        for x, rows, layout in together(vector.total(), payloads, self.layouts(parts)):
            self.send(x, rows, layout, parts.context)

    def send(self, x: Tensor, payloads: Tensor, layout: Entries, context: GroupContext) -> None:
        """Moves what is sent of vectors x (m, n), on a CPU of one, to payloads (m, ≥ bytes) uint8."""
        # select
        indices = self.select(x.squeeze(0), layout.k, context).view(len(x), -1)
        # pack, and keep what is not sent
        backend_for(x).move_entries(x, payloads, layout, indices)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        backend_for(payloads).sum_entries(payloads, parts.output(mean), self.layouts(parts))

    def layouts(self, parts: Parts) -> list[Entries]:
        """`layout` of each part."""
        return [self.layout(length) for length in parts.lengths]

    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        backend_for(x).move_entries(x[None], payload[None], self.layout(len(x)), indices[None])

    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        first = self.select(x, self.count(len(x)), context)
        # the second level is nested: the largest of the first
        if fewer == self.count(len(x)):
            return first, first
        return first, first[backend_for(x).top_k(self.values(x, first), fewer)]

    def entries(self, rows: Tensor, context: GroupContext) -> tuple[Tensor, Tensor]:
        return backend_for(rows).unpack_entries(rows, self.layout(context.layout.numel))

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        errors = energy_beyond_top_k(x, [choice.count(slot.numel) for choice in choices])
        # values in few bits lose more than what is left out
        pairs = zip(choices, errors, strict=True)
        return [error if choice.value_bits == 32 else choice._square_error(x, slot) for choice, error in pairs]


@dataclass(frozen=True)
class TopK(Sparse, recordable=True):
    """The `ratio`·n elements of largest magnitude, selected exactly (Aji and Heafield, EMNLP 2017,
    https://arxiv.org/abs/1704.05021)."""

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32
    for_shards = "with memory"

    def is_exact(self, device: torch.device) -> bool:
        return True

    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        return backend_for(x).top_k(x, k)


@dataclass(frozen=True)
class RandomK(Sparsifier, Rowwise, recordable=True):
    """One element at random of each of `ratio`·n equal parts, the same ones on every rank, so that the values alone
    travel and are all-reduced (Stich et al., NeurIPS 2018, https://arxiv.org/abs/1809.07599)."""

    ratio: float = 0.01
    rescale: bool = False
    """Multiplies each value by the size of its part, which makes the mean unbiased: for use without a memory."""
    sparse = True
    summable = True
    local_arithmetic = True

    @property
    def biased(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.rescale

    def payload_bytes(self, n: int) -> int:
        return 4 * self.count(n)

    def indices(self, n: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        """The chosen elements (k,) int64 and the sizes (k,) of their parts, from the seed that all ranks share."""
        return self._draw(n, self.count(n), context)

    def _draw(self, n: int, k: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        def starts_and_sizes() -> tuple[Tensor, Tensor]:
            # equal parts, made once
            edges = torch.arange(k + 1, dtype=torch.int64, device=context.device).mul_(n).div_(k, rounding_mode="floor")
            return edges[:-1], edges.diff()

        starts, sizes = context.buffers.once(("parts", n, k), starts_and_sizes)
        # an element at random of each part
        draws = backend_for(sizes).draws(k, context.shared_seed(), context.device)
        return draws.mul_(sizes).long().add_(starts), sizes

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        # draw the same coordinates on all ranks
        indices, sizes = self.indices(x.shape[1], context)
        # move their values to the payloads
        values = payload.view(torch.float32)[:, : len(indices)]
        torch.index_select(x.squeeze(0), -1, indices, out=values.squeeze(0))
        x.index_fill_(-1, indices, 0)
        # an unbiased mean
        if self.rescale:
            values.mul_(sizes)

    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        # move the values
        torch.index_select(x, 0, indices, out=payload.view(torch.float32))
        x.index_fill_(0, indices, 0)

    def levels(self, x: Tensor, fewer: int, context: GroupContext) -> tuple[Tensor, Tensor]:
        return self.indices(len(x), context)[0], self._draw(len(x), fewer, context)[0]

    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        # draw what the senders drew
        indices, _ = self.indices(out.shape[1], context)
        values = rows.view(torch.float32)[..., : len(indices)]
        # sum over the ranks
        out.zero_()
        for some in at_once(values.transpose(0, 1)):  # (ranks, m, k)
            summed = some[0] if len(some) == 1 else some.sum(0)
            out.squeeze(0).index_add_(-1, indices, summed.squeeze(0))

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        whole = float(x.double().square().sum())
        sent = [choice.count(slot.numel) / max(1, slot.numel) for choice in choices]
        # as expected: values times their part's size are too large by more than what is left out
        pairs = zip(choices, sent, strict=True)
        return [whole * (1 / share - 1 if choice.rescale else 1 - share) for choice, share in pairs]
