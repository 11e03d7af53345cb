# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Orthonormal bases of thin matrices: see `gradwire.ops.reference.orthogonal`. A program works on one matrix.

Cholesky's QR in float64, of rows of norm 1 that noise has made independent. Where rows differ by the noise alone, the
result is not quite orthogonal, and so it is done three times. Products are sums: not every Triton multiplies matrices
in float64.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.triton import launching
from gradwire.ops.triton.factors import MOST, table_of, vector_of

ELEMENTS = 1024
"""Elements that a program reads at a time: as many as registers hold in float64."""
LONGEST = 4096
"""The longest rows: longer ones keep one program busy for too long, and the reference does them."""
NOISE: tl.constexpr = tl.constexpr(3.5e-6)
"""The width of the uniform noise, of about the size of the reference's."""
SMALLEST: tl.constexpr = tl.constexpr(1e-14)
"""The least square norm that elimination leaves of a row, which was 1: rounding could make it negative."""


@triton.jit
def columns_at(a, rank, n, first, RANK: tl.constexpr, SIZE: tl.constexpr):
    """SIZE columns of a (rank, n) from the `first` on, 0 outside; the elements' offsets, and which exist."""
    row, column = tl.arange(0, RANK)[:, None], first + tl.arange(0, SIZE)[None, :]
    at, live = row * n + column, (row < rank) & (column < n)
    return tl.load(a + at, live, 0.0).to(tl.float64), at, live


@triton.jit
def independent(a, squares, rank, n, first, RANK: tl.constexpr, SIZE: tl.constexpr):
    """`columns_at`, with rows divided by their norms, the roots of `squares`, plus noise, the same on all ranks."""
    rows, at, live = columns_at(a, rank, n, first, RANK, SIZE)
    norms = tl.sqrt(tl.where(squares > 0, squares, 1.0))[:, None]
    noise = (tl.rand(0, at.to(tl.int32)) - 0.5).to(tl.float64) * (NOISE / tl.sqrt(n.to(tl.float64)))
    return tl.where(live, rows / norms + noise, 0.0), at, live


@triton.jit
def inverse_of_root(gram, RANK: tl.constexpr):
    """The lower triangular W with W gram Wᵀ = 1, by Gaussian elimination."""
    row, column = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
    inverse = tl.where(row == column, 1.0, 0.0).to(tl.float64)
    # eliminate column by column, and apply the same to the identity
    for i in range(RANK):
        left = tl.sum(tl.where(row == i, gram, 0.0), 0)[None, :]
        done = tl.sum(tl.where(row == i, inverse, 0.0), 0)[None, :]
        pivot = tl.maximum(tl.sum(tl.where(column == i, left, 0.0)), SMALLEST)
        factor = tl.where(row > i, tl.sum(tl.where(column == i, gram, 0.0), 1)[:, None] / pivot, 0.0)
        gram -= factor * left
        inverse = tl.where(row == i, done / tl.sqrt(pivot), inverse - factor * done)
    return inverse


@triton.jit
def row_of(rows, i, RANK: tl.constexpr):
    """Row i of rows (RANK, SIZE), as (1, SIZE)."""
    return tl.sum(tl.where(tl.arange(0, RANK)[:, None] == i, rows, 0.0), 0)[None, :]


@triton.jit
def gram_of(rows, rank, RANK: tl.constexpr):
    """rows rowsᵀ, (RANK, RANK), of rows (RANK, SIZE), of which `rank` are not zero."""
    column, gram = tl.arange(0, RANK)[None, :], tl.zeros((RANK, RANK), tl.float64)
    for i in range(rank):
        products = tl.sum(rows * row_of(rows, i, RANK), 1)[:, None]
        gram += tl.where(column == i, products, 0.0)
    return gram


@triton.jit
def times(square, rows, rank, RANK: tl.constexpr):
    """The product of a square (RANK, RANK) and rows (RANK, SIZE), of which `rank` are not zero."""
    column, total = tl.arange(0, RANK)[None, :], rows * 0.0
    for i in range(rank):
        total += tl.sum(tl.where(column == i, square, 0.0), 1)[:, None] * row_of(rows, i, RANK)
    return total


@triton.jit
def orthonormal_kernel(factors, table, count, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Makes the rows of one matrix orthonormal, in place."""
    matrix = tl.program_id(0)
    a = factors + tl.load(table + matrix)
    rank, n = tl.load(table + count + matrix), tl.load(table + 2 * count + matrix)
    squares, gram = tl.zeros((RANK,), tl.float64), tl.zeros((RANK, RANK), tl.float64)
    # square norms of the rows
    for first in range(0, n, SIZE):
        rows, _, _ = columns_at(a, rank, n, first, RANK, SIZE)
        squares += tl.sum(rows * rows, 1)
    # Gram matrix of the independent rows
    for first in range(0, n, SIZE):
        rows, _, _ = independent(a, squares, rank, n, first, RANK, SIZE)
        gram += gram_of(rows, rank, RANK)
    # three times: multiply the rows by the inverse of the Gram matrix's root, and make the next Gram matrix
    for time in tl.static_range(3):
        inverse, gram = inverse_of_root(gram, RANK), tl.zeros((RANK, RANK), tl.float64)
        tl.debug_barrier()  # wait for what other threads of this program have written
        for first in range(0, n, SIZE):
            if time == 0:
                rows, at, live = independent(a, squares, rank, n, first, RANK, SIZE)
            else:
                rows, at, live = columns_at(a, rank, n, first, RANK, SIZE)
            rows = times(inverse, rows, rank, RANK).to(tl.float32)
            tl.store(a + at, rows, live)
            gram += gram_of(rows.to(tl.float64), rank, RANK)


def orthogonalize(factors: Sequence[Tensor]) -> None:
    """See the reference, which does all of them where one has more than `MOST` rows, and always those with long rows;
    batches lie one after another."""
    if not factors:
        return
    # long rows, by torch
    rows, table = max(factor.shape[1] for factor in factors), table_of(factors, LONGEST)
    reference.orthogonal.orthogonalize([factor for factor in factors if rows > MOST or factor.shape[2] > LONGEST])
    if rows > MOST or not table.numel():
        return
    # all others in one launch
    rank = 16 if rows <= 16 else MOST
    launching.launch(
        orthonormal_kernel, table.shape[1], vector_of(factors), table, table.shape[1], RANK=rank, SIZE=ELEMENTS // rank
    )
