# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Orthonormal bases of thin matrices: see `gradwire.ops.reference.orthogonal`. A program works on one matrix, in
float64, of rows of norm 1 that noise has made independent.

Small matrices stay in registers: Gram and Schmidt's method, row by row, which takes each new row out of all later ones.
Others are read several times: Cholesky's QR. Where rows differ by the noise alone, its result is not quite orthogonal,
and so it is done three times.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.triton import launching
from gradwire.ops.triton.factors import MOST, table_of, vector_of
from gradwire.ops.triton.launching import power_of_2

HELD = 2**14
"""Elements of the largest matrix that a program's registers hold."""
ELEMENTS = 1024
"""Elements that a program reads at a time of a larger one."""
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
    return tl.where(live, rows * (1 / norms) + noise, 0.0), at, live


@triton.jit
def inverse_of_root(gram, rank, RANK: tl.constexpr):
    """The lower triangular W with W gram Wᵀ = 1, of `rank` rows, by Gaussian elimination."""
    row, column = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
    inverse = tl.where(row == column, 1.0, 0.0).to(tl.float64)
    # eliminate column by column, and apply the same to the identity
    for i in range(rank):
        left = tl.sum(tl.where(row == i, gram, 0.0), 0)[None, :]
        done = tl.sum(tl.where(row == i, inverse, 0.0), 0)[None, :]
        pivot = tl.maximum(tl.sum(tl.where(column == i, left, 0.0)), SMALLEST)
        factor = tl.where(row > i, tl.sum(tl.where(column == i, gram, 0.0), 1)[:, None] / pivot, 0.0)
        gram -= factor * left
        inverse = tl.where(row == i, done / tl.sqrt(pivot), inverse - factor * done)
    return inverse


@triton.jit
def small_kernel(factors, table, count, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Makes the rows of one matrix, of up to (RANK, SIZE) elements, orthonormal, in place."""
    matrix = tl.program_id(0)
    a = factors + tl.load(table + matrix)
    rank, n = tl.load(table + count + matrix).to(tl.int32), tl.load(table + 2 * count + matrix).to(tl.int32)
    rows, _, _ = columns_at(a, rank, n, 0, RANK, SIZE)
    rows, at, live = independent(a, tl.sum(rows * rows, 1), rank, n, 0, RANK, SIZE)
    row = tl.arange(0, RANK)[:, None]
    for i in tl.static_range(RANK):
        # take row i out of all that follow, and make its norm 1
        this = tl.sum(tl.where(row == i, rows, 0.0), 0)[None, :]
        products = tl.sum(rows * this, 1)[:, None]
        inverse = 1 / tl.maximum(tl.sum(tl.where(row == i, products, 0.0)), 1e-30)
        share = tl.where(row > i, products * inverse, tl.where(row == i, 1 - tl.sqrt(inverse), 0.0))
        rows -= share * this
    tl.store(a + at, rows.to(tl.float32), live)


@triton.jit
def orthonormal_kernel(factors, table, count, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Makes the rows of one matrix orthonormal, in place, SIZE columns at a time."""
    matrix = tl.program_id(0)
    a = factors + tl.load(table + matrix)
    rank, n = tl.load(table + count + matrix).to(tl.int32), tl.load(table + 2 * count + matrix).to(tl.int32)
    squares, gram = tl.zeros((RANK,), tl.float64), tl.zeros((RANK, RANK), tl.float64)
    # square norms of the rows
    for first in range(0, n, SIZE):
        rows, _, _ = columns_at(a, rank, n, first, RANK, SIZE)
        squares += tl.sum(rows * rows, 1)
    # Gram matrix of the independent rows
    for first in range(0, n, SIZE):
        rows, _, _ = independent(a, squares, rank, n, first, RANK, SIZE)
        gram = tl.dot(rows, tl.trans(rows), gram, out_dtype=tl.float64)
    # three times: multiply the rows by the inverse of the Gram matrix's root, and make the next Gram matrix
    for time in tl.static_range(3):
        inverse, gram = inverse_of_root(gram, rank, RANK), tl.zeros((RANK, RANK), tl.float64)
        tl.debug_barrier()  # wait for what other threads of this program have written
        for first in range(0, n, SIZE):
            if time == 0:
                rows, at, live = independent(a, squares, rank, n, first, RANK, SIZE)
            else:
                rows, at, live = columns_at(a, rank, n, first, RANK, SIZE)
            rows = tl.dot(inverse, rows, out_dtype=tl.float64).to(tl.float32)
            tl.store(a + at, rows, live)
            if time < 2:
                rows = rows.to(tl.float64)
                gram = tl.dot(rows, tl.trans(rows), gram, out_dtype=tl.float64)


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
    longest = max(factor.shape[2] for factor in factors if factor.shape[2] <= LONGEST)
    rank, size = power_of_2(rows), max(256, power_of_2(longest))
    kernel, constants = small_kernel, {"RANK": rank, "SIZE": size, "num_warps": min(16, max(4, rank * size // 512))}
    if rank > 8 or rank * size > HELD:
        rank = max(16, rank)
        kernel, constants = orthonormal_kernel, {"RANK": rank, "SIZE": ELEMENTS // rank, "num_warps": 8}
    launching.launch(kernel, table.shape[1], vector_of(factors), table, table.shape[1], **constants)
