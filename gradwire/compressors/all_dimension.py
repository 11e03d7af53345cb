"""All-dimension top-k: every row of a weight's gradient sends its largest elements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.compressor import SimpleCodec
from gradwire.compressors.context import GroupContext
from gradwire.compressors.sparse import check_ratio
from gradwire.ops.backend import backend_for
from gradwire.ops.host import to_device
from gradwire.ops.tiles import add_rows, at_once
from gradwire.ops.vectors import equal_keys
from gradwire.slots import Layout, Slot
from gradwire.torch_private.foreach import copy_each

SHORT = 1 << 16
"""Indices that 16 bits can hold."""


@dataclass(frozen=True)
class Slices:
    """The rows or columns of a slot's matrix, each of which sends its largest elements.

    Element j of slice i lies at i·slice_stride + j·stride.
    """

    count: int
    """How many slices there are."""
    length: int
    """Elements of a slice."""
    kept: int
    """Elements that each slice sends."""
    axis: int
    """1 where the slices are rows, 0 where they are columns."""

    @property
    def slice_stride(self) -> int:
        """Elements from the start of a slice to that of the next."""
        return self.length if self.axis == 1 else 1

    @property
    def stride(self) -> int:
        """Elements from one of a slice to the next."""
        return 1 if self.axis == 1 else self.count

    @property
    def sent(self) -> int:
        """Elements that all slices send."""
        return self.count * self.kept

    @property
    def short(self) -> bool:
        """Whether 16 bits hold an index within a slice."""
        return self.length <= SHORT

    def matrix(self, flat: Tensor) -> Tensor:
        """The slot (numel,) as a matrix whose rows are the slices, or whose columns are, where `axis` is 0."""
        return flat.view(self.count, self.length) if self.axis == 1 else flat.view(self.length, self.count)


class SliceEntries:
    """The entries of a group's payload: those of slots with long slices, slot after slot, then those of the others."""

    def __init__(self, slices: Sequence[Slices], layout: Layout, device: torch.device) -> None:
        # slots in the payload's order
        ordered = sorted(zip(slices, layout.offsets, strict=False), key=lambda each: each[0].short)
        self._slices = [each for each, _ in ordered]
        self._parts = [slice(start, start + each.count * each.length) for each, start in ordered]
        self.sent = sum(each.sent for each in slices)
        self._long = sum(each.sent for each in slices if not each.short)
        # of each entry: the first element of its slice, and the slice's stride
        starts = [
            start + _range(each.count).mul_(each.slice_stride).repeat_interleave(each.kept) for each, start in ordered
        ]
        strides, sent = (
            torch.tensor([*numbers], dtype=torch.int64, device="cpu")
            for numbers in zip(*((each.stride, each.sent) for each in self._slices), strict=True)
        )
        self._starts = to_device(torch.cat(starts), device)
        self._strides = to_device(strides.repeat_interleave(sent), device)

    def select(self, x: Tensor) -> Tensor:
        """Indices (sent,) int64, within their slices, of the largest elements of all slices of x (n,)."""
        chosen = torch.empty(self.sent, dtype=torch.int64, device=x.device)
        targets = chosen.split([each.sent for each in self._slices])
        # matrices of equal shape in one call
        for same in equal_keys((each.count, each.length, each.axis) for each in self._slices):
            slices = self._slices[same[0]]
            matrices = [slices.matrix(x[self._parts[i]]) for i in same]
            found = backend_for(x).top_k_each(matrices, slices.kept, slices.axis)
            copy_each([targets[i].view(slices.count, -1) for i in same], found)
        return chosen

    def write(self, payload: Tensor, chosen: Tensor) -> Tensor:
        """Writes indices (sent,) to a payload; returns the view (sent,) where its values belong."""
        values, long, short = self._fields_of(payload[None])
        long.copy_(chosen[: self._long])
        short.copy_(chosen[self._long :])
        return values[0]

    def read(self, payloads: Tensor) -> tuple[Tensor, Tensor]:
        """The elements (ranks, sent) int64 that payloads (ranks, ≥ nbytes) hold, and a view of their values."""
        values, long, short = self._fields_of(payloads)
        return self.elements(torch.cat([long.long(), short.long().bitwise_and_(SHORT - 1)], 1)), values

    def elements(self, chosen: Tensor) -> Tensor:
        """The group's elements at indices (..., sent) within their slices."""
        return torch.addcmul(self._starts, chosen, self._strides)

    def _fields_of(self, payloads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [4 * self.sent, 4 * self._long, 2 * (self.sent - self._long)]
        values, long, short = payloads[:, : sum(sizes)].split(sizes, 1)
        return values.view(torch.float32), long.view(torch.int32), short.view(torch.int16)


def _range(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.int64, device="cpu")


@dataclass(frozen=True)
class AllDimensionTopK(SimpleCodec, recordable=True):
    """The largest elements of every row of each gradient as a matrix, so that every output is updated
    (ADTopk, HPDC 2024, https://doi.org/10.1145/3625549.3658678).

    The matrix is `Slot.matrix`: a weight's outputs by all the rest, (out, in·kh·kw). A vector is one row. A slice of
    `length` elements sends max(1, round(ratio·length)) of them, so a slice of fewer than 1/ratio elements sends more
    than `ratio`: `density` says how much is sent.

    Payload: values float32, then indices within the slice, 32 bits where slices are longer than 65,536 elements,
    16 bits elsewhere; slot after slot, those with long slices first. Its size does not depend on the gradient.
    """

    ratio: float = 0.01
    """The share of elements to send, in (0, 1]."""
    axis: Literal[0, 1] | None = None
    """Along which elements compete: 1 picks from each row, 0 from each column, None along the longer of the two."""
    sparse = True
    divisible = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)

    def slices(self, slot: Slot) -> Slices:
        """The rows or columns of a slot that send their largest elements."""
        rows, columns = slot.matrix
        axis = (1 if columns >= rows else 0) if self.axis is None else self.axis
        count, length = (rows, columns) if axis == 1 or rows == 1 else (columns, rows)
        return Slices(count, length, max(1, round(self.ratio * length)), 1 if rows == 1 else axis)

    def density(self, layout: Layout) -> float:
        """The ratio of a group's elements that is sent, as achieved."""
        return sum(self.slices(slot).sent for slot in layout.slots) / layout.numel

    def payload_bytes(self, n: int) -> int:
        return self.group_bytes(Layout.vector(n), 0)

    def group_bytes(self, layout: Layout, step: int) -> int:
        slices = [self.slices(slot) for slot in layout.slots]
        shorts = sum(each.sent for each in slices if each.short)
        longs = sum(each.sent for each in slices if not each.short)
        return 8 * longs + 4 * shorts + 2 * (shorts + shorts % 2)

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        entries = self._entries(context)
        # select in every slice
        chosen = entries.select(x)
        elements = entries.elements(chosen)
        # move to the payload
        torch.index_select(x, 0, elements, out=entries.write(payload, chosen))
        x.index_fill_(0, elements, 0)

    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        out.zero_()
        for some in at_once(rows):
            elements, values = self._entries(context).read(some)
            add_rows(out, elements.view(-1), values.reshape(-1), len(some))

    def _entries(self, context: GroupContext) -> SliceEntries:
        def make() -> SliceEntries:
            return SliceEntries([self.slices(slot) for slot in context.layout.slots], context.layout, context.device)

        return context.buffers.once((self, "places"), make)
