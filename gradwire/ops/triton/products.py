# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
"""Products of matrices with thin factors, on a GPU, all batches in one launch: see `gradwire.ops.reference.low_rank`.

`table` (8, programs) int64 has for each program the first element of its matrix, its rows and columns, the rank of its
factors, the first elements of these, P and Q, and the first row and column that the program works on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.reference import low_rank
from gradwire.ops.reference.low_rank import ROWS
from gradwire.ops.triton import launching
from gradwire.ops.triton.factors import MOST, vector_of
from gradwire.ops.workspace import scratch_on

SIZE = 32
"""Rows and columns of a program, and of a tile that it reads at a time."""
LONGEST = 4096
"""The longest sums: longer ones keep a program busy for too long, and torch's products divide them."""


@triton.jit
def of_program(matrices, p, q, table, count):
    """A program's row of the table: pointers to a matrix and its factors, rows, columns, rank, first row and column."""
    at = table + tl.program_id(0)
    matrix, rows, columns = matrices + tl.load(at), tl.load(at + count), tl.load(at + 2 * count)
    rank, p, q = tl.load(at + 3 * count), p + tl.load(at + 4 * count), q + tl.load(at + 5 * count)
    return matrix, p, q, rows, columns, rank, tl.load(at + 6 * count), tl.load(at + 7 * count)


@triton.jit
def part_of(factor, rank, length, first, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Pointers to SIZE columns of a factor (rank, length), from the `first` on, and which exist."""
    row, column = tl.arange(0, RANK)[:, None], first + tl.arange(0, SIZE)[None, :]
    return factor + row * length + column, (row < rank) & (column < length)


@triton.jit
def tile_of(matrix, rows, columns, row, column, SIZE: tl.constexpr):
    """Pointers to (SIZE, SIZE) elements of a matrix, from this row and column on, and which exist."""
    row, column = row + tl.arange(0, SIZE)[:, None], column + tl.arange(0, SIZE)[None, :]
    return matrix + row * columns + column, (row < rows) & (column < columns)


@triton.jit
def project_kernel(matrices, p, q, table, count, TO_ROWS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr):
    """P = Q Mᵀ for SIZE rows of one matrix where TO_ROWS, else Q = P M for SIZE columns."""
    matrix, p, q, rows, columns, rank, row, column = of_program(matrices, p, q, table, count)
    total = tl.zeros((RANK, SIZE), tl.float32)
    # sum over the columns, or over the rows, tile by tile
    if TO_ROWS:
        for first in range(0, columns, SIZE):
            at, live = part_of(q, rank, columns, first, RANK, SIZE)
            source, there = tile_of(matrix, rows, columns, row, first, SIZE)
            tile = tl.trans(tl.load(source, there, 0.0))
            total = tl.dot(tl.load(at, live, 0.0), tile, total, input_precision="ieee")
        at, live = part_of(p, rank, rows, row, RANK, SIZE)
    else:
        for first in range(0, rows, SIZE):
            at, live = part_of(p, rank, rows, first, RANK, SIZE)
            source, there = tile_of(matrix, rows, columns, first, column, SIZE)
            tile = tl.load(source, there, 0.0)
            total = tl.dot(tl.load(at, live, 0.0), tile, total, input_precision="ieee")
        at, live = part_of(q, rank, columns, column, RANK, SIZE)
    tl.store(at, total, live)


@triton.jit
def product_kernel(matrices, p, q, table, count, SUBTRACT: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr):
    """M = Pᵀ Q for (SIZE, SIZE) elements of one matrix or, to SUBTRACT it, M -= Pᵀ Q."""
    matrix, p, q, rows, columns, rank, row, column = of_program(matrices, p, q, table, count)
    # the product of two thin tiles
    left, left_live = part_of(p, rank, rows, row, RANK, SIZE)
    right, right_live = part_of(q, rank, columns, column, RANK, SIZE)
    transposed = tl.trans(tl.load(left, left_live, 0.0))
    tile = tl.dot(transposed, tl.load(right, right_live, 0.0), input_precision="ieee")
    at, live = tile_of(matrix, rows, columns, row, column, SIZE)
    # write it, or subtract it
    if SUBTRACT:
        tile = tl.load(at, live, 0.0) - tile
    tl.store(at, tile, live)


def project(matrices: Sequence[Tensor], basis: Sequence[Tensor], out: Sequence[Tensor], side: int) -> None:
    """See the reference, which does sums over many rows or columns, and all where a rank is above `MOST`; factors, and
    the results, lie one after another."""
    ranks, to_rows = [factor.shape[1] for factor in basis], side == ROWS
    sums = [matrix.shape[2 if to_rows else 1] for matrix in matrices]
    # long sums, by torch
    long = [i for i, length in enumerate(sums) if length > LONGEST or max(ranks) > MOST]
    low_rank.project(*([batch[i] for i in long] for batch in (matrices, basis, out)), side=side)
    # all others, in one launch
    if len(long) < len(matrices):
        p, q = (out, basis) if to_rows else (basis, out)
        _launch(project_kernel, matrices, p, q, to_rows, not to_rows, TO_ROWS=to_rows)


def multiply(out: Sequence[Sequence[Tensor]], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
    """See the reference, which does all where a rank is above `MOST`; factors lie one after another, and all matrices
    of a batch in one tensor."""
    if max((factor.shape[1] for factor in p), default=0) > MOST:
        low_rank.multiply(out, p, q, subtract=subtract)
    elif out:
        _launch(product_kernel, [matrix for (matrix,) in out], p, q, True, True, SUBTRACT=subtract)


def _launch(
    kernel, matrices: Sequence[Tensor], p: Sequence[Tensor], q: Sequence[Tensor], by_row: bool, by_column: bool,
    **constants: bool,
) -> None:  # fmt: skip
    """Launches programs for SIZE rows, or SIZE columns, or both, of each matrix; none for sums that are too long."""
    # where the matrices lie, from the first one on
    first = matrices[0].storage_offset()
    places: tuple[Any, ...] = tuple(
        (matrix.storage_offset() - first, matrix.stride(0), *matrix.shape) for matrix in matrices
    )
    ranks = tuple(factor.shape[1] for factor in p)
    # a program for each tile, found in a table
    layout = places, ranks, by_row, by_column
    table = scratch_on(p[0].device).once(("products", *layout), lambda: _table(*layout, p[0].device))
    end = max(start + (count - 1) * stride + rows * columns for start, stride, count, rows, columns in places)
    launching.launch(
        kernel, table.shape[1], matrices[0].as_strided((end,), (1,)), vector_of(p), vector_of(q), table,
        table.shape[1], RANK=16 if max(ranks) <= 16 else MOST, SIZE=SIZE, **constants,
    )  # fmt: skip


def _table(
    places: Sequence[tuple[int, ...]], ranks: Sequence[int], by_row: bool, by_column: bool,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """The table for batches of matrices, by first element, stride, number, rows and columns (`places`), and rank."""
    found, p, q = [], 0, 0
    for (start, stride, count, rows, columns), rank in zip(places, ranks, strict=True):
        # first rows and columns of the programs of one matrix
        firsts = (np.arange(0, n, SIZE if by else n) for n, by in ((rows, by_row), (columns, by_column)))
        grid = np.stack(np.meshgrid(*firsts, indexing="ij")).reshape(2, -1)
        long = (not by_row and rows > LONGEST) or (not by_column and columns > LONGEST)
        # the same for each matrix of the batch
        for _ in range(count):
            of_matrix = np.array([start, rows, columns, rank, p, q])[:, None]
            if not long:
                found.append(np.concatenate([np.broadcast_to(of_matrix, (6, grid.shape[1])), grid]))
            start, p, q = start + stride, p + rank * rows, q + rank * columns
    return to_device(torch.from_numpy(np.concatenate(found, 1)), device)
