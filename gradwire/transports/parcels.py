"""Parcels: tensors of any type and strides as bytes in a buffer of bounded size. A backend needs no kernel for their
types, and ranks may have them in different memory formats."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collective import aligned

CAPACITY = 1 << 24
"""The most bytes that are sent at a time."""


@dataclass(frozen=True)
class Parcel:
    """Pieces of tensors, and the place of each in `buffer`, uint8 (n,)."""

    buffer: Tensor
    """Uint8 (n,), a part of the buffer that all parcels share."""
    pieces: Sequence[tuple[Tensor, Tensor]]
    """Each with its place, a view of the buffer of its type and shape."""

    def pack(self) -> None:
        """Copies the tensors to the buffer."""
        for piece, place in self.pieces:
            place.copy_(piece)

    def unpack(self) -> None:
        """Copies the buffer to the tensors."""
        for piece, place in self.pieces:
            piece.copy_(place)


def parcels(tensors: Sequence[Tensor], device: torch.device) -> Iterator[Parcel]:
    """All tensors in parcels on `device`, which share one buffer: use each before the next."""
    pieces = [piece for tensor in tensors for piece in _cut(stored(tensor.detach()))]
    buffer = torch.zeros(min(CAPACITY, sum(map(_size, pieces))), dtype=torch.uint8, device=device)
    taken: list[tuple[Tensor, Tensor]] = []
    # fill one parcel after another; a piece that does not fit begins the next
    at = 0
    for piece in pieces:
        if at + _size(piece) > CAPACITY:
            yield Parcel(buffer[:at], taken)
            taken, at = [], 0
        taken.append((piece, buffer[at : at + piece.nbytes].view(piece.dtype).view(piece.shape)))
        at += _size(piece)
    if taken:
        yield Parcel(buffer[:at], taken)


def stored(tensor: Tensor) -> Tensor:
    """A view of the memory behind an expanded tensor, once; of any other tensor all of it."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:  # torch refuses to write to a repetition
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _cut(tensor: Tensor) -> Iterator[Tensor]:
    """Views of at most CAPACITY bytes each."""
    # halve the longest dimension until it fits
    if _size(tensor) > CAPACITY:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        for half in tensor.tensor_split(2, longest):
            yield from _cut(half)
    elif tensor.numel():
        # torch copies no integers of 1 to 7 bits
        yield tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


def _size(piece: Tensor) -> int:
    """The bytes of a piece in a parcel."""
    return aligned(piece.nbytes)
