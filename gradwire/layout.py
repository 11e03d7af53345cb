"""Where each parameter's gradient lies in a group's flat buffer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """One parameter's gradient: its name, shape and memory layout (strides in elements).

    A slot keeps the parameter's own memory order, as DDP's buckets do, so that a channels-last weight is
    packed and unpacked by straight copies.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, parameter: Tensor) -> "Slot":
        """Raises ValueError for a parameter whose gradient no compressor can take."""
        if not parameter.is_floating_point():
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}; Gradwire reduces real floating-point gradients"
            )
        like = torch.empty_like(parameter, device="meta")  # dense strides even where the parameter's are not
        return cls(name, tuple(parameter.shape), like.stride(), parameter.dtype)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def matrix(self) -> tuple[int, int]:
        """The slot as a matrix: the slowest-varying axis (a weight's outputs) by all the others."""
        if len(self.shape) < 2:
            return 1, self.numel
        slowest = max(range(len(self.shape)), key=lambda axis: (self.strides[axis], -axis))
        return self.shape[slowest], self.numel // self.shape[slowest]

    def view(self, flat: Tensor) -> Tensor:
        """The parameter-shaped view of this slot's `flat` (numel,) part of a buffer."""
        return flat.as_strided(self.shape, self.strides)


@dataclass(frozen=True)
class Layout:
    """Slots one after another in a flat buffer of `numel` elements."""

    slots: tuple[Slot, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(accumulate((slot.numel for slot in self.slots), initial=0))

    @property
    def numel(self) -> int:
        return self.offsets[-1]

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The flat part (numel,) of each slot."""
        return [flat[a:b] for a, b in zip(self.offsets, self.offsets[1:], strict=False)]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameter-shaped view of each slot."""
        return [slot.view(part) for slot, part in zip(self.slots, self.parts(flat), strict=True)]


def tiles(numel: int, block: int, tile: int = 1 << 18) -> Sequence[tuple[int, int, int]]:
    """Cuts `numel` elements into cache-sized pieces: (start, rows, width) of a (rows, width) matrix each.

    Every piece is whole blocks of `block` elements, but for a last row that holds the rest. Working tile by
    tile keeps temporaries in cache and out of the allocator: blocks above 32 MB are returned to the system by
    glibc at every free, which costs more than the arithmetic.
    """
    rows_per_tile = max(1, tile // block)
    whole = numel // block
    pieces = [(row * block, min(rows_per_tile, whole - row), block) for row in range(0, whole, rows_per_tile)]
    if numel % block:
        pieces.append((whole * block, 1, numel % block))
    return pieces
