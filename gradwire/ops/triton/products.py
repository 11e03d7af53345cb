# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
"""Products of matrices with thin factors, on a GPU, all batches in one launch: see `gradwire.ops.reference.low_rank`.

`table` (8, programs) int64 says of each program where in memory its matrix begins, of how many rows and columns it is
and of which rank its factors, where these begin, P and Q, and with which row and which column the program does.
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
"""Rows, and columns, of a program, and of what it reads at a time."""
LONGEST = 4096
"""Longer sums keep a program busy for too long; torch's products cut them into pieces."""


@triton.jit
def of_program(matrices, p, q, table, count):
    """What the table says of this program: a matrix, its factors, rows, columns and rank, the first row and column."""
    at = table + tl.program_id(0)
    matrix, rows, columns = matrices + tl.load(at), tl.load(at + count), tl.load(at + 2 * count)
    rank, p, q = tl.load(at + 3 * count), p + tl.load(at + 4 * count), q + tl.load(at + 5 * count)
    return matrix, p, q, rows, columns, rank, tl.load(at + 6 * count), tl.load(at + 7 * count)


@triton.jit
def part_of(factor, rank, length, first, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Where SIZE columns of a factor (rank, length) lie, from the `first` on, and which there are."""
    row, column = tl.arange(0, RANK)[:, None], first + tl.arange(0, SIZE)[None, :]
    return factor + row * length + column, (row < rank) & (column < length)


@triton.jit
def tile_of(matrix, rows, columns, row, column, SIZE: tl.constexpr):
    """Where (SIZE, SIZE) elements of a matrix lie, from these first ones on, and which there are."""
    row, column = row + tl.arange(0, SIZE)[:, None], column + tl.arange(0, SIZE)[None, :]
    return matrix + row * columns + column, (row < rows) & (column < columns)


@triton.jit
def project_kernel(matrices, p, q, table, count, TO_ROWS: tl.constexpr, RANK: tl.constexpr, SIZE: tl.constexpr):
    """P = Q Mᵀ for SIZE rows of one matrix where TO_ROWS, else Q = P M for SIZE columns."""
    matrix, p, q, rows, columns, rank, row, column = of_program(matrices, p, q, table, count)
    total = tl.zeros((RANK, SIZE), tl.float32)
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
    left, left_live = part_of(p, rank, rows, row, RANK, SIZE)
    right, right_live = part_of(q, rank, columns, column, RANK, SIZE)
    turned = tl.trans(tl.load(left, left_live, 0.0))
    tile = tl.dot(turned, tl.load(right, right_live, 0.0), input_precision="ieee")
    at, live = tile_of(matrix, rows, columns, row, column, SIZE)
    if SUBTRACT:
        tile = tl.load(at, live, 0.0) - tile
    tl.store(at, tile, live)


def project(matrices: Sequence[Tensor], basis: Sequence[Tensor], out: Sequence[Tensor], side: int) -> None:
    """See the reference, which does what is summed over many rows or columns, and all where a rank is above `MOST`;
    factors lie one after another, and so does what becomes of them."""
    ranks, to_rows = [factor.shape[1] for factor in basis], side == ROWS
    sums = [matrix.shape[2 if to_rows else 1] for matrix in matrices]
    long = [i for i, length in enumerate(sums) if length > LONGEST or max(ranks) > MOST]
    low_rank.project(*([batch[i] for i in long] for batch in (matrices, basis, out)), side=side)
    if len(long) < len(matrices):
        p, q = (out, basis) if to_rows else (basis, out)
        _launch(project_kernel, matrices, p, q, to_rows, not to_rows, TO_ROWS=to_rows)


def multiply(out: Sequence[Sequence[Tensor]], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
    """See the reference, which does all where a rank is above `MOST`; factors lie one after another, and of each batch
    all matrices in one tensor."""
    if max((factor.shape[1] for factor in p), default=0) > MOST:
        low_rank.multiply(out, p, q, subtract=subtract)
    elif out:
        _launch(product_kernel, [matrix for (matrix,) in out], p, q, True, True, SUBTRACT=subtract)


def _launch(
    kernel, matrices: Sequence[Tensor], p: Sequence[Tensor], q: Sequence[Tensor], by_row: bool, by_column: bool,
    **constants: bool,
) -> None:  # fmt: skip
    """A program for so many rows or columns or both; none where the others are summed over and are many."""
    first = matrices[0].storage_offset()
    places: tuple[Any, ...] = tuple(
        (matrix.storage_offset() - first, matrix.stride(0), *matrix.shape) for matrix in matrices
    )
    ranks = tuple(factor.shape[1] for factor in p)
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
    """For batches of matrices that begin at these places, so far stride, as many, of so many rows and columns."""
    found, p, q = [], 0, 0
    for (start, stride, count, rows, columns), rank in zip(places, ranks, strict=True):
        firsts = (np.arange(0, n, SIZE if by else n) for n, by in ((rows, by_row), (columns, by_column)))
        grid = np.stack(np.meshgrid(*firsts, indexing="ij")).reshape(2, -1)
        long = (not by_row and rows > LONGEST) or (not by_column and columns > LONGEST)
        for _ in range(count):
            of_matrix = np.array([start, rows, columns, rank, p, q])[:, None]
            if not long:
                found.append(np.concatenate([np.broadcast_to(of_matrix, (6, grid.shape[1])), grid]))
            start, p, q = start + stride, p + rank * rows, q + rank * columns
    return to_device(torch.from_numpy(np.concatenate(found, 1)), device)
