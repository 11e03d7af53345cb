"""Matrices of equal shape that lie equally far from each other are worked on in one call, so that a thousand small ones
cost little more than a large one."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.ops.tiles import TILE
from gradwire.slots import Layout
from gradwire.torch_private import copy_each

SMALL = 1024
"""Elements that a CPU copies in the time that torch takes to begin the product of two matrices."""


def alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, such as shapes."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())


@dataclass(frozen=True)
class Batch:
    """Slots of a layout, by number, whose matrices have one `shape` (rows, columns); in a flat vector the first begins
    at `start` and each of the others `apart` elements after the one before."""

    slots: tuple[int, ...]
    shape: tuple[int, int]
    start: int
    apart: int

    def of(self, flat: Tensor) -> Tensor:
        """A view of the matrices, the first of which begins where `flat` does, (k, rows, columns)."""
        rows, columns = self.shape
        return flat.as_strided((len(self.slots), rows, columns), (self.apart, columns, 1))

    def split(self, count: int) -> "tuple[Batch, Batch]":
        """The first so many of the matrices, and the others."""
        start = self.start + count * self.apart
        return replace(self, slots=self.slots[:count]), replace(self, slots=self.slots[count:], start=start)


def batches(layout: Layout, slots: Sequence[int]) -> list[Batch]:
    """These slots of a layout in few batches, one after another those of a shape."""
    found: list[Batch] = []
    for places in alike(layout.slots[i].matrix for i in slots):
        for slot in (slots[place] for place in places):
            shape, start = layout.slots[slot].matrix, layout.offsets[slot]
            last = found[-1] if found and found[-1].shape == shape else None
            gap = start - layout.offsets[last.slots[-1]] if last else 0
            if last and (gap == last.apart or len(last.slots) == 1):
                found[-1] = replace(last, slots=(*last.slots, slot), apart=gap)
            else:
                found.append(Batch((slot,), shape, start, layout.slots[slot].numel))
    return found


def multiply(left: Tensor, right: Tensor, out: Sequence[Tensor]) -> None:
    """out = left @ right, batches (k, rows, columns); `out` is so many matrices in one tensor or in several.

    A CPU writes to each of several, for it has no room for all; a GPU to all at once."""
    sizes = [len(part) for part in out]
    if left.device.type == "cpu":
        for a, b, part in zip(left.split(sizes), right.split(sizes), out, strict=True):
            _multiply_on_cpu(a, b, part)
    elif len(out) == 1:
        torch.bmm(left, right, out=out[0])
    else:
        copy_each(out, torch.bmm(left, right).split(sizes))


def subtract_product(from_: Tensor, left: Tensor, right: Tensor) -> None:
    """from_ -= left @ right, batches (k, rows, columns)."""
    if _is_slow(from_):
        for part, product in _products(from_, left, right):
            part.sub_(product)
    else:
        from_.baddbmm_(left, right, alpha=-1)


def _multiply_on_cpu(left: Tensor, right: Tensor, out: Tensor) -> None:
    if _is_slow(out):
        for part, product in _products(out, left, right):
            part.copy_(product)
    else:
        torch.bmm(left, right, out=out)


def _is_slow(out: Tensor) -> bool:
    """Whether torch would take longer to turn from one matrix to the next, for these do not lie one after another, than
    for a copy of all."""
    return out.device.type == "cpu" and not out.is_contiguous() and out[0].numel() < SMALL


def _products(out: Tensor, left: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of `out` and the products that belong there, a tile at a time."""
    count = TILE // out[0].numel()
    for part, a, b in zip(out.split(count), left.split(count), right.split(count), strict=True):
        yield part, torch.bmm(a, b)
