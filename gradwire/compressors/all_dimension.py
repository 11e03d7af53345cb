"""All-dimension top-k: every row of a weight's gradient sends its largest elements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.base import SimpleCodec
from gradwire.compressors.context import GroupContext
from gradwire.compressors.sparse import check_ratio
from gradwire.ops.backend import backend_for
from gradwire.ops.host import to_device
from gradwire.ops.tiles import add_rows, at_once
from gradwire.ops.vectors import alike
from gradwire.slots import Layout, Slot
from gradwire.torch_private.foreach import copy_each

SHORT = 1 << 16
"""Elements that 16 bits can tell apart."""


@dataclass(frozen=True)
class Slices:
    """The rows (axis 1) or columns (axis 0) of a slot's matrix: `count` of `length` elements, `kept` of each sent.

    Element j of slice i lies at i·apart + j·stride.
    """

    count: int
    length: int
    kept: int
    axis: int

    @property
    def apart(self) -> int:
        return self.length if self.axis == 1 else 1

    @property
    def stride(self) -> int:
        return 1 if self.axis == 1 else self.count

    @property
    def sent(self) -> int:
        return self.count * self.kept

    @property
    def short(self) -> bool:
        return self.length <= SHORT

    def matrix(self, flat: Tensor) -> Tensor:
        """The slot (numel,) with its slices as rows, or as columns where they lie across."""
        return flat.view(self.count, self.length) if self.axis == 1 else flat.view(self.length, self.count)


class Places:
    """Where a group's entries lie: long slices' first, each slot after the other, then the others'."""

    def __init__(self, cuts: Sequence[Slices], layout: Layout, device: torch.device) -> None:
        whole = sorted(zip(cuts, layout.offsets, strict=False), key=lambda each: each[0].short)
        self._cuts = [cut for cut, _ in whole]
        self._parts = [slice(start, start + cut.count * cut.length) for cut, start in whole]
        self.sent, self._long = sum(cut.sent for cut in cuts), sum(cut.sent for cut in cuts if not cut.short)
        starts = [
            start + torch.arange(cut.count, dtype=torch.int64, device="cpu").mul_(cut.apart).repeat_interleave(cut.kept)
            for cut, start in whole
        ]
        strides = torch.tensor([cut.stride for cut in self._cuts], dtype=torch.int64, device="cpu")
        self._starts = to_device(torch.cat(starts), device)
        self._strides = to_device(
            strides.repeat_interleave(torch.tensor([cut.sent for cut in self._cuts], dtype=torch.int64, device="cpu")),
            device,
        )

    def select(self, x: Tensor) -> Tensor:
        """Indices (sent,) int64, within their slices, of the largest elements of all slices of x (n,)."""
        chosen = torch.empty(self.sent, dtype=torch.int64, device=x.device)
        targets = chosen.split([cut.sent for cut in self._cuts])
        for places in alike((cut.count, cut.length, cut.axis) for cut in self._cuts):
            cut = self._cuts[places[0]]
            matrices = [cut.matrix(x[self._parts[i]]) for i in places]
            found = backend_for(x).top_k_each(matrices, cut.kept, cut.axis)
            copy_each([targets[i].view(cut.count, -1) for i in places], found)
        return chosen

    def write(self, payload: Tensor, chosen: Tensor) -> Tensor:
        """Writes indices to a payload; returns its values, which are to be written."""
        values, long, short = self._parts_of(payload[None])
        long.copy_(chosen[: self._long])
        short.copy_(chosen[self._long :])
        return values[0]

    def read(self, payloads: Tensor) -> tuple[Tensor, Tensor]:
        """The elements (ranks, sent) int64 that payloads (ranks, ≥ nbytes) are about, and a view of their values."""
        values, long, short = self._parts_of(payloads)
        return self.elements(torch.cat([long.long(), short.long().bitwise_and_(SHORT - 1)], 1)), values

    def elements(self, chosen: Tensor) -> Tensor:
        """Which elements of the group the indices (..., sent) within slices are."""
        return torch.addcmul(self._starts, chosen, self._strides)

    def _parts_of(self, payloads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [4 * self.sent, 4 * self._long, 2 * (self.sent - self._long)]
        values, long, short = payloads[:, : sum(sizes)].split(sizes, 1)
        return values.view(torch.float32), long.view(torch.int32), short.view(torch.int16)


@dataclass(frozen=True)
class AllDimensionTopK(SimpleCodec, recordable=True):
    """The largest elements of every row of each gradient as a matrix, so that every output gets its share
    (ADTopk, HPDC 2024, https://doi.org/10.1145/3625549.3658678).

    The matrix is `Slot.matrix`: a weight's outputs by all the rest, (out, in·kh·kw). `axis` is the axis along
    which elements compete: 1 picks from each row, 0 from each column, None along the longer of the two. A vector
    is one row. A slice of `length` elements sends max(1, round(ratio·length)) of them, so a slice of fewer than
    1/ratio elements sends more than `ratio`: `density` says how much is sent.

    Payload: values float32, then indices within the slice, 32 bits where slices are longer than 65,536 elements,
    16 bits elsewhere; slot after slot, those with long slices first. Its size does not depend on the gradient.
    """

    ratio: float = 0.01
    axis: Literal[0, 1] | None = None
    sparse = True
    divisible = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.ratio)

    def slices(self, slot: Slot) -> Slices:
        """How the slot is cut."""
        rows, columns = slot.matrix
        axis = (1 if columns >= rows else 0) if self.axis is None else self.axis
        count, length = (rows, columns) if axis == 1 or rows == 1 else (columns, rows)
        return Slices(count, length, max(1, round(self.ratio * length)), 1 if rows == 1 else axis)

    def density(self, layout: Layout) -> float:
        """The share of a group's elements that is sent, as achieved."""
        return sum(self.slices(slot).sent for slot in layout.slots) / layout.numel

    def payload_bytes(self, n: int) -> int:
        return self.group_bytes(Layout.vector(n), 0)

    def group_bytes(self, layout: Layout, step: int) -> int:
        cuts = [self.slices(slot) for slot in layout.slots]
        shorts = sum(cut.sent for cut in cuts if cut.short)
        longs = sum(cut.sent for cut in cuts if not cut.short)
        return 8 * longs + 4 * shorts + 2 * (shorts + shorts % 2)

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        places = self._places(context)
        chosen = places.select(x)
        elements = places.elements(chosen)
        torch.index_select(x, 0, elements, out=places.write(payload, chosen))
        x.index_fill_(0, elements, 0)

    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        out.zero_()
        for some in at_once(rows):
            elements, values = self._places(context).read(some)
            add_rows(out, elements.view(-1), values.reshape(-1), len(some))

    def _places(self, context: GroupContext) -> Places:
        def make() -> Places:
            return Places([self.slices(slot) for slot in context.layout.slots], context.layout, context.device)

        return context.buffers.once((self, "places"), make)
