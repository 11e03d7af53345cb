"""All-dimension top-k: every row of a weight's gradient sends its largest elements."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.compressors.sparse import check_ratio
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.select import top_k_columns, top_k_rows
from gradwire.slots import Layout, Slot

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

    def select(self, flat: Tensor) -> Tensor:
        """Indices (count, kept) int64 within each slice of flat (numel,)."""
        if self.kept == self.length:
            return torch.arange(self.length, device=flat.device).expand(self.count, -1)
        if self.axis == 1:
            return top_k_rows(flat.view(self.count, self.length), self.kept)
        return top_k_columns(flat.view(self.length, self.count), self.kept)

    def positions(self, indices: Tensor) -> Tensor:
        """Where in the slot the elements (count, kept) lie, (count·kept,) int64; 16-bit indices are unsigned."""
        wide = indices.long() & (SHORT - 1 if self.short else -1)
        starts = torch.arange(self.count, device=indices.device).mul_(self.apart)
        return wide.mul_(self.stride).add_(starts[:, None]).reshape(-1)


@dataclass(frozen=True)
class AllDimensionTopK(Codec):
    """The largest elements of every row of each gradient as a matrix, so that every output gets its share
    (ADTopk, HPDC 2024, https://doi.org/10.1145/3625549.3658678).

    The matrix is `Slot.matrix`: a weight's outputs by all the rest, (out, in·kh·kw). `axis` is the axis along
    which elements compete: 1 picks from each row, 0 from each column, None along the longer of the two. A vector
    is one row. A slice of `length` elements sends max(1, round(ratio·length)) of them, so a slice of fewer than
    1/ratio elements sends more than `ratio`: `density` says how much is sent.

    Payload: values float32, then indices within the slice, 32 bits where slices are longer than 65,536 elements,
    16 bits elsewhere; each slot after the other. Its size does not depend on the gradient.
    """

    ratio: float = 0.01
    axis: Literal[0, 1] | None = None
    sparse = True
    divisible = False

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if self.axis not in (0, 1, None):
            raise ValueError(f"axis={self.axis} is no axis of a matrix; use axis=1, axis=0, or None for the longer")

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

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        x = vector.total()
        for cut, flat, values, indices in self._walk(x, payload, context.layout):
            chosen = cut.select(flat)
            indices.copy_(chosen)
            positions = cut.positions(chosen)
            torch.index_select(flat, 0, positions, out=values)
            flat.index_fill_(0, positions, 0)

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        out.zero_()
        for row in rows:  # rank by rank: the same rounding on every replica
            for cut, flat, values, indices in self._walk(out, row, context.layout):
                flat.index_add_(0, cut.positions(indices), values)

    def _walk(self, x: Tensor, payload: Tensor, layout: Layout) -> Iterator[tuple[Slices, Tensor, Tensor, Tensor]]:
        """Each slot's slices, its part (numel,) of x, its values (sent,) and its indices (count, kept)."""
        cuts = [self.slices(slot) for slot in layout.slots]
        total, longs = sum(cut.sent for cut in cuts), sum(cut.sent for cut in cuts if not cut.short)
        values = payload[: 4 * total].view(torch.float32).split([cut.sent for cut in cuts])
        long = payload[4 * total : 4 * (total + longs)].view(torch.int32)
        short = payload[4 * (total + longs) :][: 2 * (total - longs)].view(torch.int16)
        for cut, flat, value in zip(cuts, layout.parts(x), values, strict=True):
            if cut.short:
                indices, short = short[: cut.sent], short[cut.sent :]
            else:
                indices, long = long[: cut.sent], long[cut.sent :]
            yield cut, flat, value, indices.view(cut.count, cut.kept)
