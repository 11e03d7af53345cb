"""A group's gradients in the tensors of a framework, where means take their place."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradwire.ops.matrices import Batch
from gradwire.ops.vectors import Gradient, Scalar
from gradwire.slots import Layout, Slot
from gradwire.torch_private.foreach import copy_each, largest_of, scale_each

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of gradients that kernels read."""

SMALL = 1 << 14
"""Elements that are copied in the time that Python takes for one more tensor."""


@dataclass(frozen=True)
class GradientPart:
    """Elements `start` to `end` of a group's flat vector, which one tensor holds."""

    start: int
    end: int
    slot: Slot | None
    """The slot whose shape the tensor has; None for a flat tensor."""

    def of(self, flat: Tensor) -> Tensor:
        """This part of a flat vector."""
        part = flat[self.start : self.end]
        return part if self.slot is None else self.slot.view(part)


@dataclass(frozen=True, eq=False)
class GradientSplit:
    """The parts of a group's flat vector that the tensors of its gradients hold."""

    layout: Layout
    """Of the group's slots."""
    parts: tuple[GradientPart, ...]
    """In order, all of the vector."""
    _views: dict[int, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def by_slot(cls, layout: Layout) -> "GradientSplit":
        """A tensor for each slot."""
        return cls(layout, tuple(map(GradientPart, layout.offsets, layout.offsets[1:], layout.slots)))

    @cached_property
    def starts(self) -> list[int]:
        """The first element of each part."""
        return [part.start for part in self.parts]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat vector (n,), made once for each place in memory."""
        at = flat.data_ptr()
        if at not in self._views:
            self._views[at] = [part.of(flat) for part in self.parts]
        return self._views[at]

    def forget_views(self) -> None:
        """Drops all views, which keep their memory alive."""
        self._views.clear()


@dataclass(frozen=True, eq=False)
class Gradients:
    """A group's gradients, whose means take their place."""

    split: GradientSplit
    tensors: Sequence[Tensor]
    """Of each part of the split."""

    @classmethod
    def merged(cls, layout: Layout, tensors: Sequence[Tensor]) -> "Gradients":
        """Gradients in a tensor for each slot. Neighbours in memory become one part, such as the slots of a DDP
        bucket."""
        parts: list[GradientPart] = []
        merged: list[Tensor] = []
        for slot, start, tensor in zip(layout.slots, layout.offsets, tensors, strict=False):
            last = merged[-1] if merged else None
            # in another order of memory: a part of its own
            if tensor.stride() != slot.strides:
                parts.append(GradientPart(start, start + slot.numel, slot))
                merged.append(tensor)
            # behind the last one: joins it
            elif last is not None and parts[-1].slot is None and _follows(tensor, last):
                parts[-1] = GradientPart(parts[-1].start, start + slot.numel, None)
                merged[-1] = last.as_strided((last.numel() + slot.numel,), (1,))
            else:
                parts.append(GradientPart(start, start + slot.numel, None))
                merged.append(tensor.as_strided((slot.numel,), (1,)))
        return cls(GradientSplit(layout, tuple(parts)), merged)

    @classmethod
    def of_vector(cls, layout: Layout, vector: Tensor) -> "Gradients":
        """Gradients whose slots lie one after another in a vector (n,)."""
        return cls(GradientSplit(layout, (GradientPart(0, layout.numel, None),)), [vector])

    @cached_property
    def one_vector(self) -> Tensor | None:
        """The gradients as one vector (n,), where they lie one after another."""
        return self.tensors[0] if len(self.tensors) == 1 and self.split.parts[0].slot is None else None

    @cached_property
    def flat(self) -> Tensor | None:
        """`one_vector`, if it is float32, in which means are computed."""
        return self.one_vector if self.one_vector is not None and self.one_vector.dtype == torch.float32 else None

    def slot(self, index: int) -> Tensor:
        """The part of the tensors that belongs to a slot, in its shape."""
        slot, start = self.split.layout.slots[index], self.split.layout.offsets[index]
        for part, tensor in zip(self.split.parts, self.tensors, strict=True):
            if part.start <= start < part.end:
                return tensor if part.slot else slot.view(tensor[start - part.start :][: slot.numel])
        raise AssertionError("parts cover all slots")

    def vectors(self, scratch: Tensor) -> Gradient:
        """The gradients as kernels read them: (n,), or each contiguous in its slot's order of memory. Those that lie
        otherwise, or are of another type, are copied to scratch (n,) float32."""
        if self.one_vector is not None and self.one_vector.dtype in DTYPES:
            return self.one_vector
        # convert the others in one call
        strange = self._strange
        if strange:
            targets = self.split.views(scratch)
            copy_each([targets[i] for i in strange], [self.tensors[i] for i in strange])
        return [
            scratch[part.start : part.end] if i in strange else _in_memory_order(tensor)
            for i, (part, tensor) in enumerate(zip(self.split.parts, self.tensors, strict=True))
        ]

    @cached_property
    def _strange(self) -> set[int]:
        """The numbers of the tensors that kernels cannot read where they are."""
        return {
            i
            for i, (part, tensor) in enumerate(zip(self.split.parts, self.tensors, strict=True))
            if tensor.dtype not in DTYPES or (part.slot is not None and tensor.stride() != part.slot.strides)
        }

    def scale(self, factor: Scalar) -> None:
        """Multiplies the gradients by a factor, in place."""
        scale_each(self.tensors, factor)

    def copy_to(self, out: Tensor) -> None:
        """Copies the gradients to out (n,), of any type."""
        copy_each(self.split.views(out), self.tensors)

    @cached_property
    def in_place(self) -> list[Tensor] | None:
        """The gradients' memory as vectors, n elements one after another, to write means to; None where the gradients
        are of another type or order, or so small that one copy of all costs less than a view of each."""
        if self._strange or self.split.layout.numel < SMALL * len(self.tensors):
            return None
        if any(tensor.dtype != torch.float32 for tensor in self.tensors):
            return None
        return [tensor.as_strided((tensor.numel(),), (1,)) for tensor in self.tensors]

    def matrices_in_place(self, batch: Batch) -> list[Tensor] | None:
        """`in_place` as the batch's matrices (k, rows, columns), in as many views as tensors hold them."""
        if self.in_place is None:
            return None
        views: list[Tensor] = []
        # as many matrices as each tensor holds
        left, starts = batch, self.split.starts
        while left.slots:
            holder = bisect_right(starts, left.start) - 1
            part, vector = self.split.parts[holder], self.in_place[holder]
            here, left = left.split(-(-(part.end - left.start) // left.stride))
            views.append(here.of(vector[here.start - part.start :]))
        return views

    def write_means(self, means: Tensor | None, scale: Scalar | None, nonfinite: Tensor | None = None) -> None:
        """Writes scale·means to the gradients. `means` (n,) float32 may be overwritten; where they are the gradients'
        own memory, or None, the gradients are means already and are only scaled. `nonfinite` (1,) becomes NaN where
        a result exceeds float16."""
        if means is None or means is self.flat:
            if scale is not None:
                scale_each(self.tensors, scale)
            return
        # multiplied before they are float16, which the small ones among them would not survive
        copy_each(self.tensors, self.split.views(means if scale is None else means.mul_(scale)))
        if nonfinite is None:
            return
        # nor the large ones, which all ranks have: infinity * 0 is NaN
        if halves := [tensor for tensor in self.tensors if tensor.dtype == torch.float16]:
            nonfinite.add_(largest_of(halves).sum(dtype=torch.float32).mul_(0))

    def poison(self) -> None:
        """Replaces the gradients by NaN, so that the optimizer or GradScaler skips the step."""
        for tensor in self.tensors:
            tensor.fill_(torch.nan)

    @cached_property
    def firsts(self) -> list[Tensor]:
        """One element (1,) of each slot."""
        return [self.slot(i).as_strided((1,), (1,)) for i in range(len(self.split.layout.slots))]


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A dense tensor, contiguous."""
    return tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def _follows(tensor: Tensor, last: Tensor) -> bool:
    """Whether a tensor begins where the last one ends, in the same memory and of the same type."""
    return (
        tensor.dtype == last.dtype
        and tensor.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
        and tensor.storage_offset() == last.storage_offset() + last.numel()
    )


def add_unless(total: Tensor, mean: Tensor, nonfinite: Tensor, scale: Scalar) -> None:
    """total += mean / scale, unless the step does not count: where `nonfinite` (1,) is NaN."""
    # on a GPU without a host sync: it adds 0
    if total.device.type != "cpu":
        total.add_(torch.where(nonfinite.isnan(), 0, mean.float()).div_(scale))
    elif not nonfinite.isnan():
        total.add_(mean, alpha=1 / float(scale))
