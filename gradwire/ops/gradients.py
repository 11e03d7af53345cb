"""A group's gradients where a framework keeps them: read there, and replaced by their means."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradwire.ops.matrices import Batch
from gradwire.ops.vectors import Gradient, Scalar
from gradwire.slots import Layout, Slot
from gradwire.torch_private.foreach import add_each, copy_each, scale_each

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What kernels read."""

SMALL = 1 << 14
"""Elements that are copied in the time that Python takes to look at one tensor more."""


@dataclass(frozen=True)
class GradientPart:
    """Elements `start` to `end` of a group's flat vector, seen in the shape of one slot, or flat where a tensor of
    several slots lies there."""

    start: int
    end: int
    slot: Slot | None

    def of(self, flat: Tensor) -> Tensor:
        """This part of a flat vector."""
        part = flat[self.start : self.end]
        return part if self.slot is None else self.slot.view(part)


@dataclass(frozen=True, eq=False)
class GradientSplit:
    """How the tensors that hold a group's gradients divide its flat vector."""

    layout: Layout
    parts: tuple[GradientPart, ...]
    _views: dict[int, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def by_slot(cls, layout: Layout) -> "GradientSplit":
        """A tensor for each slot."""
        return cls(layout, tuple(map(GradientPart, layout.offsets, layout.offsets[1:], layout.slots)))

    @cached_property
    def starts(self) -> list[int]:
        """Where each part starts."""
        return [part.start for part in self.parts]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat vector (n,), made once for each place in memory."""
        at = flat.data_ptr()
        if at not in self._views:
            self._views[at] = [part.of(flat) for part in self.parts]
        return self._views[at]


@dataclass(frozen=True, eq=False)
class Gradients:
    """One tensor for each part; their means take their place."""

    split: GradientSplit
    tensors: Sequence[Tensor]

    @classmethod
    def merged(cls, layout: Layout, tensors: Sequence[Tensor]) -> "Gradients":
        """A tensor for each slot; neighbours in memory become one part, as the slots of a bucket of DDP's are."""
        parts: list[GradientPart] = []
        merged: list[Tensor] = []
        for slot, start, tensor in zip(layout.slots, layout.offsets, tensors, strict=False):
            last = merged[-1] if merged else None
            if tensor.stride() != slot.strides:
                parts.append(GradientPart(start, start + slot.numel, slot))
                merged.append(tensor)
            elif last is not None and parts[-1].slot is None and _follows(tensor, last):
                parts[-1] = GradientPart(parts[-1].start, start + slot.numel, None)
                merged[-1] = last.as_strided((last.numel() + slot.numel,), (1,))
            else:
                parts.append(GradientPart(start, start + slot.numel, None))
                merged.append(tensor.as_strided((slot.numel,), (1,)))
        return cls(GradientSplit(layout, tuple(parts)), merged)

    @classmethod
    def of_vector(cls, layout: Layout, vector: Tensor) -> "Gradients":
        """All slots one after another in a vector (n,)."""
        return cls(GradientSplit(layout, (GradientPart(0, layout.numel, None),)), [vector])

    @cached_property
    def whole(self) -> Tensor | None:
        """All of them as one vector (n,), where they lie one after another."""
        return self.tensors[0] if len(self.tensors) == 1 and self.split.parts[0].slot is None else None

    @cached_property
    def flat(self) -> Tensor | None:
        """`whole`, if it is float32, as what is computed is."""
        return self.whole if self.whole is not None and self.whole.dtype == torch.float32 else None

    def slot(self, index: int) -> Tensor:
        """The part of the tensors that belongs to a slot, in its shape."""
        slot, start = self.split.layout.slots[index], self.split.layout.offsets[index]
        for part, tensor in zip(self.split.parts, self.tensors, strict=True):
            if part.start <= start < part.end:
                return tensor if part.slot else slot.view(tensor[start - part.start :][: slot.numel])
        raise AssertionError("parts cover all slots")

    def vectors(self, room: Tensor) -> Gradient:
        """All of them (n,), or each contiguous in its slot's order of memory, as kernels read them; those that lie
        otherwise, or are of another type, are copied to room (n,) float32."""
        if self.whole is not None and self.whole.dtype in DTYPES:
            return self.whole
        strange = self._strange
        if strange:
            targets = self.split.views(room)
            copy_each([targets[i] for i in strange], [self.tensors[i] for i in strange])
        return [
            room[part.start : part.end] if i in strange else _in_memory_order(tensor)
            for i, (part, tensor) in enumerate(zip(self.split.parts, self.tensors, strict=True))
        ]

    @cached_property
    def _strange(self) -> set[int]:
        """Those that kernels cannot read where they are."""
        return {
            i
            for i, (part, tensor) in enumerate(zip(self.split.parts, self.tensors, strict=True))
            if tensor.dtype not in DTYPES or (part.slot is not None and tensor.stride() != part.slot.strides)
        }

    def scale(self, factor: float) -> None:
        """gradient *= factor, where they are."""
        scale_each(self.tensors, factor)

    def copy_to(self, out: Tensor) -> None:
        """out (n,), of any type, becomes the gradients."""
        copy_each(self.split.views(out), self.tensors)

    @cached_property
    def in_place(self) -> list[Tensor] | None:
        """Where means may be written, vectors that are n elements one after another; None where the gradients are of
        another type or order, or so small that one copy of all costs less than a view of each."""
        if self._strange or self.split.layout.numel < SMALL * len(self.tensors):
            return None
        if any(tensor.dtype != torch.float32 for tensor in self.tensors):
            return None
        return [tensor.as_strided((tensor.numel(),), (1,)) for tensor in self.tensors]

    def matrices_in_place(self, batch: Batch) -> list[Tensor] | None:
        """`in_place`, the batch's matrices (k, rows, columns) in as many views as tensors hold them."""
        if self.in_place is None:
            return None
        views: list[Tensor] = []
        left, starts = batch, self.split.starts
        while left.slots:
            holder = bisect_right(starts, left.start) - 1
            part, vector = self.split.parts[holder], self.in_place[holder]
            here, left = left.split(-(-(part.end - left.start) // left.stride))
            views.append(here.of(vector[here.start - part.start :]))
        return views

    def write_means(self, means: Tensor | None, scale: Scalar | None) -> None:
        """Puts the means (n,) where the gradients were, unless they are there already, times `scale`."""
        if means is not None and means is not self.flat:
            copy_each(self.tensors, self.split.views(means))
        if scale is not None:
            scale_each(self.tensors, scale)

    def poison(self) -> None:
        """Nobody is to use this step's means."""
        for tensor in self.tensors:
            tensor.fill_(torch.nan)

    def poison_where(self, nonfinite: Tensor) -> None:
        """Adds NaN, or 0, (1,) to one element of each slot: so a GPU need not be asked which."""
        add_each(self._firsts, [nonfinite] * len(self._firsts))

    @cached_property
    def _firsts(self) -> list[Tensor]:
        """One element (1,) of each slot."""
        return [self.slot(i).as_strided((1,), (1,)) for i in range(len(self.split.layout.slots))]


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A dense tensor, contiguous."""
    return tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def _follows(tensor: Tensor, last: Tensor) -> bool:
    """Whether it begins where the other ends, in the same memory and of the same type."""
    return (
        tensor.dtype == last.dtype
        and tensor.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
        and tensor.storage_offset() == last.storage_offset() + last.numel()
    )


def add_unless(total: Tensor, mean: Tensor, nonfinite: Tensor, scale: Scalar) -> None:
    """total += mean / scale, but for a step that does not count: where `nonfinite` (1,) is NaN."""
    if total.device.type != "cpu":
        total.add_(torch.where(nonfinite.isnan(), 0, mean).div_(scale))
    elif not nonfinite.isnan():
        total.add_(mean, alpha=1 / float(scale))
