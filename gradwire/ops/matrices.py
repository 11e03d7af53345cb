"""Matrices of equal shape that lie equally far from each other are worked on in one call, so that a thousand small ones
cost little more than a large one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gradwire.ops.vectors import equal_keys
from gradwire.slots import Layout


@dataclass(frozen=True)
class Batch:
    """Slots of a layout, by number, whose matrices have one `shape` (rows, columns); in a flat vector the first begins
    at `start` and each of the others `stride` elements after the one before."""

    slots: tuple[int, ...]
    shape: tuple[int, int]
    start: int
    stride: int

    def of(self, flat: Tensor) -> Tensor:
        """A view of the matrices, the first of which begins where `flat` does, (k, rows, columns)."""
        rows, columns = self.shape
        return flat.as_strided((len(self.slots), rows, columns), (self.stride, columns, 1))

    def split(self, count: int) -> "tuple[Batch, Batch]":
        """The first so many of the matrices, and the others."""
        start = self.start + count * self.stride
        return replace(self, slots=self.slots[:count]), replace(self, slots=self.slots[count:], start=start)


def batches(layout: Layout, slots: Sequence[int]) -> list[Batch]:
    """These slots of a layout in few batches, one after another those of a shape."""
    found: list[Batch] = []
    for places in equal_keys(layout.slots[i].matrix for i in slots):
        for slot in (slots[place] for place in places):
            shape, start = layout.slots[slot].matrix, layout.offsets[slot]
            last = found[-1] if found and found[-1].shape == shape else None
            gap = start - layout.offsets[last.slots[-1]] if last else 0
            if last and (gap == last.stride or len(last.slots) == 1):
                found[-1] = replace(last, slots=(*last.slots, slot), stride=gap)
            else:
                found.append(Batch((slot,), shape, start, layout.slots[slot].numel))
    return found
