"""Products of batches of matrices with thin factors on their left: P (k, rank, rows) and Q (k, rank, columns)."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from gradwire.ops.tiles import TILE

ROWS, COLUMNS = 0, 1
"""The sides of a matrix (rows, columns): P (rank, rows) is the factor of the first, Q (rank, columns) of the second."""
SMALL = 1024
"""Elements that a CPU copies in the time that torch takes to start one product."""


def project(matrices: Sequence[Tensor], basis: Sequence[Tensor], out: Sequence[Tensor], side: int) -> None:
    """Writes the factors of one side, given those of the other, for each batch M (k, rows, columns): P = Q Mᵀ for side
    ROWS, Q = P M for COLUMNS."""
    for matrix, factor, to in zip(matrices, basis, out, strict=True):
        project_batch(matrix, factor, to, side)


def project_batch(matrices: Tensor, basis: Tensor, out: Tensor, side: int) -> None:
    """`project` of one batch."""
    torch.bmm(basis, matrices.mT if side == ROWS else matrices, out=out)


def multiply(out: Sequence[Sequence[Tensor]], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
    """M = Pᵀ Q, or M -= Pᵀ Q where `subtract`, batch by batch; M (k, rows, columns) is one tensor or, on a CPU,
    several, of k matrices in all."""
    for parts, left, right in zip(out, p, q, strict=True):
        multiply_batch(parts, left, right, subtract=subtract)


def multiply_batch(out: Sequence[Tensor], p: Tensor, q: Tensor, *, subtract: bool) -> None:
    """`multiply` of one batch."""
    for part, left, right in with_factors(out, p, q):
        (_subtract if subtract else _write)(part, left.mT, right)


def with_factors(out: Sequence[Tensor], p: Tensor, q: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Each tensor of a batch with its factors."""
    if len(out) == 1:
        return [(out[0], p, q)]
    # the factors of as many matrices as each tensor has
    sizes = [len(part) for part in out]
    return zip(out, p.split(sizes), q.split(sizes), strict=True)


def _subtract(from_: Tensor, left: Tensor, right: Tensor) -> None:
    if _is_slow(from_):
        # small matrices apart from each other: by way of a tile
        for part, tile in _products(from_, left, right):
            part.sub_(tile)
    else:
        from_.baddbmm_(left, right, alpha=-1)


def _write(out: Tensor, left: Tensor, right: Tensor) -> None:
    if _is_slow(out):
        # small matrices apart from each other: by way of a tile
        for part, tile in _products(out, left, right):
            part.copy_(tile)
    else:
        torch.bmm(left, right, out=out)


def _is_slow(out: Tensor) -> bool:
    """Whether torch's products of small matrices that do not lie one after another, on a CPU, cost more than products
    of all in one tensor and a copy."""
    return out.device.type == "cpu" and not out.is_contiguous() and out[0].numel() < SMALL


def _products(out: Tensor, left: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of `out` with their products in a temporary tensor, a tile at a time."""
    # as many matrices at a time as fit the cache
    count = TILE // out[0].numel()
    for part, a, b in zip(out.split(count), left.split(count), right.split(count), strict=True):
        yield part, torch.bmm(a, b)
