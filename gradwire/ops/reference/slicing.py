"""Payloads of the largest elements of every slice of matrices: see `gradwire.ops.slices`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.reference.elias_fano import no_payload
from gradwire.ops.reference.selecting import top_k_each
from gradwire.ops.slices import SHORT, SliceEntries
from gradwire.ops.tiles import add_rows, at_once
from gradwire.ops.vectors import equal_keys
from gradwire.ops.workspace import scratch_on
from gradwire.torch_private.foreach import copy_each

Select = Callable[[Sequence[Tensor], int, int], Sequence[Tensor]]


def move_slices(x: Tensor, payload: Tensor, layout: SliceEntries, select: Select = top_k_each) -> None:
    """Moves the largest elements of all slices of x (n,), as `top_k_each` selects them, to a payload (≥ nbytes,) uint8:
    leaves zeros in x."""
    # select in every slice
    chosen = _selected(x, layout, select)
    elements = _elements(layout, chosen)
    # move to the payload
    values, long, short = layout.fields(payload[None])
    torch.index_select(x, 0, elements, out=values[0])
    long.copy_(chosen[: layout.long])
    short.copy_(chosen[layout.long :])
    x.index_fill_(0, elements, 0)


def sum_slices(payloads: Tensor, out: Tensor, layout: SliceEntries) -> None:
    """Writes the sum of payloads (ranks, ≥ nbytes), added up in this order, to out (n,)."""
    out.zero_()
    for some in at_once(payloads):
        add_rows(out, *unpack_slices(some, layout), len(some))


def unpack_slices(payloads: Tensor, layout: SliceEntries) -> tuple[Tensor, Tensor]:
    """The vector's indices (ranks·sent,) int64 and the values of the elements that payloads (ranks, ≥ nbytes) hold, one
    payload after another. On a CPU raises ValueError for bytes that are no payload."""
    values, long, short = layout.fields(payloads)
    indices = torch.cat([long.long(), short.long().bitwise_and_(SHORT - 1)], 1)
    # a CPU: checked, for an index behind its slice is that of an element of another one
    if indices.device.type == "cpu" and bool(((indices < 0) | (indices >= _places(layout, indices.device)[2])).any()):
        raise no_payload(layout)
    return _elements(layout, indices).view(-1), values.reshape(-1)


def _selected(x: Tensor, layout: SliceEntries, select: Select) -> Tensor:
    """Indices (sent,) int64, within their slices, of the largest elements of all slices of x (n,)."""
    chosen = torch.empty(layout.sent, dtype=torch.int64, device=x.device)
    targets = chosen.split([each.sent for each in layout.slices])
    # matrices of equal shape, which keep equally many, in one call
    for same in equal_keys((each.count, each.length, each.kept, each.axis) for each in layout.slices):
        first = layout.slices[same[0]]
        found = select([layout.slices[i].matrix(x) for i in same], first.kept, first.axis)
        copy_each([targets[i].view(first.count, -1) for i in same], found)
    return chosen


def _elements(layout: SliceEntries, indices: Tensor) -> Tensor:
    """The vector's elements at indices (..., sent) within their slices."""
    starts, strides, _ = _places(layout, indices.device)
    return torch.addcmul(starts, indices, strides)


def _places(layout: SliceEntries, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of each entry (sent,): the first element of its slice, the slice's stride, and its length."""

    def make() -> tuple[Tensor, Tensor, Tensor]:
        starts = [
            torch.arange(each.count, dtype=torch.int64, device="cpu")
            .mul_(each.slice_stride)
            .add_(each.start)
            .repeat_interleave(each.kept)
            for each in layout.slices
        ]
        # the distance of its elements, and how many they are
        facts = torch.tensor([[each.stride, each.length] for each in layout.slices], dtype=torch.int64, device="cpu")
        counts = torch.tensor([each.sent for each in layout.slices], dtype=torch.int64, device="cpu")
        strides, lengths = facts.view(-1, 2).repeat_interleave(counts, 0).T.contiguous().unbind()
        return to_device(torch.cat(starts), device), to_device(strides, device), to_device(lengths, device)

    return scratch_on(device).once(("slices", layout), make)
