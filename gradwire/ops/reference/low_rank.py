"""Products of batches of matrices with thin factors on their left: P (k, rank, rows) and Q (k, rank, columns)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradwire.ops.tiles import TILE

SMALL = 1024
"""Elements that a CPU copies in the time that torch takes to begin the product of two matrices."""


def project_rows(matrices: Tensor, q: Tensor, out: Tensor) -> None:
    """out = Q Mᵀ, for M (k, rows, columns)."""
    torch.bmm(q, matrices.mT, out=out)


def project_columns(matrices: Tensor, p: Tensor, out: Tensor) -> None:
    """out = P M, for M (k, rows, columns)."""
    torch.bmm(p, matrices, out=out)


def project_all(matrices: Sequence[Tensor], p: Sequence[Tensor], q: Sequence[Tensor], *, to_rows: bool) -> None:
    """P = Q Mᵀ or, not `to_rows`, Q = P M, batch by batch."""
    for matrix, left, right in zip(matrices, p, q, strict=True):
        if to_rows:
            project_rows(matrix, right, left)
        else:
            project_columns(matrix, left, right)


def multiply_all(matrices: Sequence[Tensor], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
    """M = Pᵀ Q or, to `subtract` it, M -= Pᵀ Q, batch by batch."""
    for matrix, left, right in zip(matrices, p, q, strict=True):
        if subtract:
            subtract_product(matrix, left, right)
        else:
            product(left, right, [matrix])


def product(p: Tensor, q: Tensor, out: Sequence[Tensor]) -> None:
    """out = Pᵀ Q; `out` is k matrices in one tensor or in several."""
    sizes = [len(part) for part in out]
    for part, left, right in zip(out, p.split(sizes), q.split(sizes), strict=True):
        _write(part, left.mT, right)


def subtract_product(from_: Tensor, p: Tensor, q: Tensor) -> None:
    """from_ -= Pᵀ Q, for `from_` (k, rows, columns)."""
    if _is_slow(from_):
        for part, tile in _products(from_, p.mT, q):
            part.sub_(tile)
    else:
        from_.baddbmm_(p.mT, q, alpha=-1)


def _write(out: Tensor, left: Tensor, right: Tensor) -> None:
    if _is_slow(out):
        for part, tile in _products(out, left, right):
            part.copy_(tile)
    else:
        torch.bmm(left, right, out=out)


def _is_slow(out: Tensor) -> bool:
    """Whether torch would take longer to turn from one matrix to the next, for these do not lie one after another, than
    for a copy of all."""
    return out.device.type == "cpu" and not out.is_contiguous() and out[0].numel() < SMALL


def _products(out: Tensor, left: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of `out` and the products that belong there, a tile at a time."""
    count = TILE // out[0].numel()
    for part, a, b in zip(out.split(count), left.split(count), right.split(count), strict=True):
        yield part, torch.bmm(a, b)
