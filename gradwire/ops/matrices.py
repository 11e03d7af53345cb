"""Matrices of equal shape that lie equally far from each other are worked on in one call, so that a thousand small ones
cost little more than a large one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from torch import Tensor

from gradwire.ops import native, reference
from gradwire.ops.host import on_host
from gradwire.ops.kernels import in_triton, native_for
from gradwire.ops.vectors import alike
from gradwire.slots import Layout

THIN = 8
"""Up to this rank products are bound by memory, and the library's are the fastest; above it BLAS's are."""


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


def project_rows(matrices: Sequence[Tensor], q: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """out = Q Mᵀ: batches M (k, rows, columns), Q (k, rank, columns)."""
    if (kernels := _for_all(q)) is not None:
        kernels.project_all(matrices, out, q, to_rows=True)
        return
    for matrix, factor, to in zip(matrices, q, out, strict=True):
        _products_for(factor).project_rows(matrix, factor, to)


def project_columns(matrices: Sequence[Tensor], p: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """out = P M: batches M (k, rows, columns), P (k, rank, rows)."""
    if (kernels := _for_all(p)) is not None:
        kernels.project_all(matrices, p, out, to_rows=False)
        return
    for matrix, factor, to in zip(matrices, p, out, strict=True):
        _products_for(factor).project_columns(matrix, factor, to)


def product(p: Sequence[Tensor], q: Sequence[Tensor], out: Sequence[Sequence[Tensor]]) -> None:
    """out = Pᵀ Q; `out` is of each batch k matrices (rows, columns) in one tensor or, on a CPU, in several."""
    if (kernels := _for_all(p)) is not None:
        kernels.multiply_all([matrix for (matrix,) in out], p, q, subtract=False)
        return
    for left, right, to in zip(p, q, out, strict=True):
        _products_for(left).product(left, right, to)


def subtract_product(from_: Sequence[Tensor], p: Sequence[Tensor], q: Sequence[Tensor]) -> None:
    """from_ -= Pᵀ Q, for batches `from_` (k, rows, columns)."""
    if (kernels := _for_all(p)) is not None:
        kernels.multiply_all(from_, p, q, subtract=True)
        return
    for matrix, left, right in zip(from_, p, q, strict=True):
        _products_for(left).subtract_product(matrix, left, right)


def _for_all(factors: Sequence[Tensor]) -> ModuleType | None:
    """The functions that do all batches on a GPU, where factors lie one after another; None on a CPU, where the ranks
    of each batch tell which are the fastest."""
    if not factors or on_host(factors[0].device):
        return None
    triton = in_triton(factors[0])
    return triton if triton and max(factor.shape[1] for factor in factors) <= triton.MOST else reference


def _products_for(factor: Tensor) -> ModuleType:
    return native if native_for(factor) and factor.shape[1] <= THIN else reference
