"""Batches of matrices of equal shape and stride, for one call each: a thousand small ones cost little more than a large
one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gradwire.ops.vectors import equal_keys
from gradwire.slots import Layout


@dataclass(frozen=True)
class Batch:
    """Slots of a layout whose matrices have one shape and lie equally far from each other in its flat vector."""

    slots: tuple[int, ...]
    """Their numbers in the layout."""
    shape: tuple[int, int]
    """Rows and columns of each."""
    start: int
    """The first element of the first matrix."""
    stride: int
    """Elements from the start of one matrix to that of the next."""

    def of(self, flat: Tensor) -> Tensor:
        """The matrices (k, rows, columns) as a view of a vector that begins where the first of them does."""
        rows, columns = self.shape
        return flat.as_strided((len(self.slots), rows, columns), (self.stride, columns, 1))

    def split(self, count: int) -> "tuple[Batch, Batch]":
        """The first `count` of the matrices, and the others."""
        start = self.start + count * self.stride
        return replace(self, slots=self.slots[:count]), replace(self, slots=self.slots[count:], start=start)


def batches(layout: Layout, slots: Sequence[int]) -> list[Batch]:
    """These slots of a layout in few batches, shape by shape."""
    found: list[Batch] = []
    for places in equal_keys(layout.slots[i].matrix for i in slots):
        # slots of one shape, in their order
        for slot in (slots[place] for place in places):
            shape, start = layout.slots[slot].matrix, layout.offsets[slot]
            # the last batch takes the slot if it lies as far from the one before as the others do
            last = found[-1] if found and found[-1].shape == shape else None
            gap = start - layout.offsets[last.slots[-1]] if last else 0
            if last and (gap == last.stride or len(last.slots) == 1):
                found[-1] = replace(last, slots=(*last.slots, slot), stride=gap)
            else:
                found.append(Batch((slot,), shape, start, layout.slots[slot].numel))
    return found
