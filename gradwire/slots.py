"""Slots: the tensors that are reduced, and where each of them lies in a group's flat buffer."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Protocol

import torch
from torch import Tensor


def real(tensor: Tensor) -> Tensor:
    """A complex tensor as the real numbers that it consists of: a view with one axis more, of real and imaginary parts.
    Any other tensor as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def real_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of `real(tensor)`."""
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


class NamedTensor(Protocol):
    """A tensor's name and size, and which others are cut over the same ranks."""

    @property
    def name(self) -> str: ...
    @property
    def numel(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def cut(self) -> int: ...


@dataclass(frozen=True)
class Slot:
    """One tensor that is reduced, such as a parameter's gradient: its name, shape and strides in elements.

    A slot keeps the order in memory of the parameter's gradient, as DDP's buckets do, so that a channels-last weight is
    packed and unpacked by straight copies. A complex gradient is reduced as real numbers, in `pairs` along a last axis:
    a mean is the mean of real and imaginary parts.
    """

    name: str
    """The parameter's name."""
    shape: tuple[int, ...]
    """The gradient's shape."""
    strides: tuple[int, ...]
    """Its strides in memory, in elements."""
    dtype: torch.dtype
    """Its type; it is reduced in float32."""
    pairs: bool = False
    """The last axis has real and imaginary parts."""
    cut: int = 0
    """Parameters with the same number are cut over the same ranks. One that is cut over fewer ranks than others has
    equal copies on several; these stay equal if it shares no group with the others."""

    @classmethod
    def of(cls, name: str, parameter: Tensor) -> "Slot":
        """Raises ValueError for a parameter whose gradient no compressor can take."""
        if parameter.is_conj():
            raise ValueError(f"parameter {name!r} is the conjugate of another tensor; make it of .resolve_conj()")
        # the gradient of a dense parameter lies in memory as the parameter does
        like = torch.empty_like(parameter, device="meta")
        if like.stride() != parameter.stride():
            # it has gaps: autograd makes its gradient row by row
            like = like.new_empty(like.shape)
        like = real(like)
        if not like.is_floating_point():
            raise ValueError(f"parameter {name!r} is {parameter.dtype}; Gradwire reduces floating-point gradients")
        return cls(name, tuple(like.shape), like.stride(), like.dtype, parameter.is_complex())

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def dim(self) -> int:
        """The parameter's axes."""
        return len(self.shape) - self.pairs

    @property
    def is_vector(self) -> bool:
        """Whether the parameter has fewer than two axes."""
        return self.dim < 2

    @property
    def matrix(self) -> tuple[int, int]:
        """The slot as a matrix: the slowest-varying axis (a weight's outputs) by all the others."""
        if self.is_vector:
            return 1, self.numel
        slowest = max(range(len(self.shape)), key=lambda axis: (self.strides[axis], -axis))
        return self.shape[slowest], self.numel // self.shape[slowest]

    def part(self, n: int) -> "Slot":
        """n neighbouring elements of this slot as one of their own."""
        if n == self.numel:
            return self
        shape, strides = ((n,), (1,)) if self.is_vector else ((1, n), (n, 1))
        return Slot(self.name, shape, strides, self.dtype)

    def view(self, flat: Tensor) -> Tensor:
        """The parameter-shaped view of this slot's `flat` (numel,) part of a buffer."""
        return flat.as_strided(self.shape, self.strides)


@dataclass(frozen=True)
class Layout:
    """Slots one after another in a flat buffer of `numel` elements."""

    slots: tuple[Slot, ...]
    """In the order in which they lie in the buffer."""

    @classmethod
    def vector(cls, n: int) -> "Layout":
        """One slot of one dimension."""
        return cls((Slot("vector", (n,), (1,), torch.float32),))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(accumulate((slot.numel for slot in self.slots), initial=0))

    @property
    def numel(self) -> int:
        return self.offsets[-1]

    def cut(self, start: int, end: int) -> "Layout":
        """The slots, or parts of them, in elements `start` to `end`; a matrix's parts are matrices of one row."""
        if (start, end) not in self._cuts:
            # the part of each slot that lies inside
            ends = zip(self.slots, self.offsets, self.offsets[1:], strict=False)
            parts = [slot.part(min(b, end) - max(a, start)) for slot, a, b in ends if a < end and b > start]
            self._cuts[start, end] = Layout(tuple(parts))
        return self._cuts[start, end]

    @cached_property
    def _cuts(self) -> dict[tuple[int, int], "Layout"]:
        return {}

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The flat part (numel,) of each slot."""
        return [flat[a:b] for a, b in zip(self.offsets, self.offsets[1:], strict=False)]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameter-shaped view of each slot."""
        return [slot.view(part) for slot, part in zip(self.slots, self.parts(flat), strict=True)]
