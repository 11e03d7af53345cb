"""The layout of payloads of the largest elements of every slice, a row or a column, of several matrices."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

SHORT = 1 << 16
"""Indices that 16 bits can hold."""


@dataclass(frozen=True)
class Slices:
    """The rows or columns of a matrix, each of which sends its largest elements.

    Element j of slice i lies at start + i·slice_stride + j·stride.
    """

    start: int
    """The matrix's first element in the vector."""
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

    def matrix(self, x: Tensor) -> Tensor:
        """The elements of a vector x as a matrix whose rows are the slices, or whose columns are, where `axis` is 0."""
        # a view: slices are rows or columns of it
        part = x[self.start : self.start + self.count * self.length]
        return part.view(self.count, self.length) if self.axis == 1 else part.view(self.length, self.count)


@dataclass(frozen=True)
class SliceEntries:
    """The layout of the entries of several matrices' slices, each with its index within the slice.

    Payload: values float32; then the indices, 32 bits of long slices, 16 bits of the others; filled up to 4 bytes.
    """

    slices: tuple[Slices, ...]
    """Of each matrix, in the payload's order."""

    @classmethod
    def of(cls, slices: Iterable[Slices]) -> "SliceEntries":
        """The layout for these matrices: those with long slices come first."""
        return cls(tuple(sorted(slices, key=lambda each: each.short)))

    @cached_property
    def sent(self) -> int:
        """The number of entries."""
        return sum(each.sent for each in self.slices)

    @cached_property
    def long(self) -> int:
        """The number of entries of long slices, which come first."""
        return sum(each.sent for each in self.slices if not each.short)

    @property
    def nbytes(self) -> int:
        """Bytes of the payload; a multiple of 4."""
        short = self.sent - self.long
        return 4 * (self.sent + self.long) + 2 * (short + short % 2)

    def fields(self, payloads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of the values, long indices and short indices of payloads (rows, ≥ nbytes) uint8, (rows, ·) each."""
        sizes = [4 * self.sent, 4 * self.long, 2 * (self.sent - self.long)]
        values, long, short = payloads[:, : sum(sizes)].split(sizes, 1)
        return values.view(torch.float32), long.view(torch.int32), short.view(torch.int16)
