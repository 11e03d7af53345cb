"""The discrete cosine transform of matrices in blocks, all blocks of one shape at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.matrices import Batch, batches
from gradwire.ops.vectors import equal_keys
from gradwire.ops.workspace import scratch_on
from gradwire.slots import Layout
from gradwire.torch_private.foreach import add_each, copy_each


@dataclass(frozen=True)
class CosineBlocks:
    """The blocks of one shape that matrices of a vector (n,) are cut into. Their coefficients lie one block after
    another in a second vector (n,)."""

    rows: int
    """Of a block."""
    columns: int
    """Of a block."""
    start: int
    """The first coefficient of the first block."""
    batches: tuple[Batch, ...]
    """The matrices that are cut."""

    @property
    def size(self) -> int:
        """Elements of a block."""
        return self.rows * self.columns

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return sum(self._sizes) // self.size

    @property
    def _sizes(self) -> list[int]:
        """The elements of each batch."""
        return [len(batch.slots) * batch.shape[0] * batch.shape[1] for batch in self.batches]

    def coefficients(self, flat: Tensor) -> Tensor:
        """The coefficients (count, rows, columns) of all blocks, as a view of their vector (n,)."""
        return flat[self.start : self.start + self.count * self.size].view(-1, self.rows, self.columns)

    def pairs(self, x: Tensor, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The blocks (matrices, down, across, rows, columns) of each batch as views of x (n,), and of the vector that
        has one block after another, flat (n,)."""
        parts = self.coefficients(flat).view(-1).split(self._sizes)
        for batch, part in zip(self.batches, parts, strict=True):
            matrices = batch.of(x[batch.start :])
            down, across = batch.shape[0] // self.rows, batch.shape[1] // self.columns
            view = matrices.view(-1, down, self.rows, across, self.columns).transpose(2, 3)
            yield view, part.view(view.shape)


def cosine_blocks(layout: Layout, longest: int) -> tuple[CosineBlocks, ...]:
    """The blocks of a layout's slots, shape by shape. A block's rows and columns are the largest divisors of its
    matrix's that are at most `longest`."""
    found = batches(layout, range(len(layout.slots)))
    shapes = [(_divisor(batch.shape[0], longest), _divisor(batch.shape[1], longest)) for batch in found]
    # batches with blocks of one shape together
    made: list[CosineBlocks] = []
    start = 0
    for same in equal_keys(shapes):
        made.append(CosineBlocks(*shapes[same[0]], start, tuple(found[i] for i in same)))
        start += made[-1].count * made[-1].size
    return tuple(made)


def to_coefficients(x: Tensor, out: Tensor, spare: Tensor, blocks: Sequence[CosineBlocks]) -> None:
    """Writes the coefficients D X Dᵀ of all blocks X of x (n,) to out (n,), where D is the orthonormal DCT-II. spare:
    (n,)."""
    elements, own = _views(x, out, blocks)
    copy_each(own, elements)
    for each in blocks:
        left, right = _cosines(each.rows, x.device), _cosines(each.columns, x.device)
        _rotate(each, out, spare, left, right.T)


def from_coefficients(flat: Tensor, spare: Tensor, blocks: Sequence[CosineBlocks]) -> None:
    """Replaces coefficients (n,) by the elements of their blocks: the inverse, Dᵀ Y D. spare: (n,)."""
    for each in blocks:
        left, right = _cosines(each.rows, flat.device), _cosines(each.columns, flat.device)
        _rotate(each, flat, spare, left.T, right)


def write_blocks(flat: Tensor, out: Tensor, blocks: Sequence[CosineBlocks]) -> None:
    """Writes the elements of blocks (n,), one block after another, to their places in out (n,)."""
    elements, own = _views(out, flat, blocks)
    copy_each(elements, own)


def subtract_blocks(flat: Tensor, x: Tensor, blocks: Sequence[CosineBlocks]) -> None:
    """Subtracts the elements of blocks (n,), one block after another, from those of x (n,)."""
    elements, own = _views(x, flat, blocks)
    add_each(elements, own, -1)


def _views(x: Tensor, flat: Tensor, blocks: Sequence[CosineBlocks]) -> tuple[list[Tensor], list[Tensor]]:
    """`pairs` of all blocks."""
    pairs = [pair for each in blocks for pair in each.pairs(x, flat)]
    return [view for view, _ in pairs], [part for _, part in pairs]


def _rotate(each: CosineBlocks, flat: Tensor, spare: Tensor, left: Tensor, right: Tensor) -> None:
    """Replaces all blocks B by left · B · right."""
    own, half = each.coefficients(flat), each.coefficients(spare)
    torch.mm(own.view(-1, each.columns), right, out=half.view(-1, each.columns))
    torch.bmm(left.expand(each.count, -1, -1), half, out=own)


def _cosines(n: int, device: torch.device) -> Tensor:
    """The orthonormal DCT-II as a matrix (frequencies, places) (n, n) float32, made once."""

    def make() -> Tensor:
        k = torch.arange(n, dtype=torch.float64, device="cpu")
        matrix = torch.outer(k, k + 0.5).mul_(pi / n).cos_().mul_((2 / n) ** 0.5)
        matrix[0] /= 2**0.5
        return to_device(matrix.float(), device)

    return scratch_on(device).once(("cosines", n), make)


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`."""
    return next(divisor for divisor in range(max(1, min(n, most)), 0, -1) if n % divisor == 0)
