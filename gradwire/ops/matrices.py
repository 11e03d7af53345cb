"""Products of many matrices. A GPU multiplies those of equal shape in one call, a CPU one after another."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.torch_private import add_each, copy_each


def alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of equal keys, such as shapes."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())


def multiply(left: Sequence[Tensor], right: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """out[i] = left[i] @ right[i]."""
    for a, b, c in _batches(left, right, out):
        if len(c) == 1:
            torch.mm(a[0], b[0], out=c[0])
        elif (room := _spaced(c)) is not None:
            torch.bmm(stacked(a), stacked(b), out=room)
        else:
            copy_each(c, torch.bmm(stacked(a), stacked(b)).unbind())


def subtract_product(from_: Sequence[Tensor], left: Sequence[Tensor], right: Sequence[Tensor]) -> None:
    """from_[i] -= left[i] @ right[i]."""
    for a, b, c in _batches(left, right, from_):
        if len(c) == 1:
            c[0].addmm_(a[0], b[0], alpha=-1)
        elif (room := _spaced(c)) is not None:
            room.baddbmm_(stacked(a), stacked(b), alpha=-1)
        else:
            add_each(c, torch.bmm(stacked(a), stacked(b)).unbind(), -1)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as a batch: where they lie, if they are equally far from each other, else a copy."""
    room = _spaced(tensors)
    return torch.stack(list(tensors)) if room is None else room


def _batches(
    left: Sequence[Tensor], right: Sequence[Tensor], out: Sequence[Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """Factors and products that are worked on together."""
    if not out or out[0].device.type == "cpu":
        yield from (([a], [b], [c]) for a, b, c in zip(left, right, out, strict=True))
        return
    for places in alike((*a.shape, *b.shape) for a, b in zip(left, right, strict=True)):
        yield [left[i] for i in places], [right[i] for i in places], [out[i] for i in places]


def _spaced(tensors: Sequence[Tensor]) -> Tensor | None:
    """A view of all of them, where they are equally far from each other in one memory."""
    first = tensors[0]
    starts = [tensor.data_ptr() for tensor in tensors]
    step = starts[1] - starts[0]
    memory = first.untyped_storage().data_ptr()
    if step < first.nbytes or any(b - a != step for a, b in pairwise(starts)):
        return None
    if any(t.stride() != first.stride() or t.untyped_storage().data_ptr() != memory for t in tensors):
        return None
    return first.as_strided((len(tensors), *first.shape), (step // first.itemsize, *first.stride()))
