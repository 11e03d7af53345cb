# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Products of matrices with thin factors, on a GPU, all batches in one launch: see `gradwire.ops.reference.products`.

`table` (8, programs) int64 has for each program the first element of its matrix, its rows and columns, the rank of its
factors, the first elements of these, P and Q, and the first row and column that the program works on.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.reference import products
from gradwire.ops.reference.products import ROWS
from gradwire.ops.triton import launching
from gradwire.ops.triton.factors import MOST, vector_of
from gradwire.ops.triton.launching import power_of_2
from gradwire.ops.workspace import scratch_on

THIN = 8
"""Up to this rank each thread adds up its columns', or rows', part of each product by itself."""
TILES = (64, 64), (32, 64)
"""Rows and columns that a program reads at a time, of sums over columns, and of sums over rows."""
THIN_TILES = (16, 512), (32, 32)
"""The same of thin factors, but that a program has 16 rows of P in all."""
PRODUCT_TILE = 8, 512
"""Rows and columns of a program of a product."""
TOGETHER: tl.constexpr = tl.constexpr(4)
"""Rows of two factors whose products are added up without a jump."""
PRECISION: tl.constexpr = tl.constexpr("tf32x3")
"""Of products of tensor cores: three products of the halves of each number."""
LONGEST = 4096
"""The longest sums: longer ones keep a program busy for too long, and torch's products divide them."""


@triton.jit
def number_at(row, i, count, UNIT: tl.constexpr):
    """The i-th number of a row of the table, which UNIT divides."""
    return tl.multiple_of(tl.load(row + i * count), UNIT)


@triton.jit
def of_program(matrices, p, q, table, count, UNIT: tl.constexpr, HEIGHT: tl.constexpr):
    """A program's row of the table, of numbers that UNIT divides, as it does the first of HEIGHT rows if it divides
    these: pointers to where it works in the matrix and in its factors, rows, columns, rank, and the rows and columns
    from there on."""
    at = table + tl.program_id(0)
    rows, columns = number_at(at, 1, count, UNIT), number_at(at, 2, count, UNIT)
    row = number_at(at, 6, count, UNIT if HEIGHT % UNIT == 0 else 1)
    column = number_at(at, 7, count, UNIT)
    matrix = matrices + number_at(at, 0, count, UNIT) + row * columns + column
    p, q = p + number_at(at, 4, count, UNIT) + row, q + number_at(at, 5, count, UNIT) + column
    height, width = (rows - row).to(tl.int32), (columns - column).to(tl.int32)
    return matrix, p, q, rows.to(tl.int32), columns.to(tl.int32), tl.load(at + 3 * count).to(tl.int32), height, width


@triton.jit
def project_rows_kernel(
    matrices, p, q, table, count, UNIT: tl.constexpr, RANK: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """P = Q Mᵀ for HEIGHT rows of one matrix: WIDTH sums, each of every WIDTH-th column, and then the sum of these."""
    matrix, p, q, rows, columns, rank, height, width = of_program(matrices, p, q, table, count, UNIT, HEIGHT)
    row = tl.arange(0, HEIGHT)[:, None, None]
    i = tl.arange(0, RANK)[None, :, None]
    column = tl.arange(0, WIDTH)
    total = tl.zeros((HEIGHT, RANK, WIDTH), tl.float32)
    for first in range(0, width, WIDTH):
        each = first + column[None, None, :]
        tile = tl.load(matrix + row * columns + each, (row < height) & (each < width), 0.0)
        total += tile * tl.load(q + i * columns + each, (i < rank) & (each < width), 0.0)
    tl.store(p + i * rows + row, tl.sum(total, 2)[:, :, None], (i < rank) & (row < height))


@triton.jit
def project_columns_kernel(
    matrices, p, q, table, count, UNIT: tl.constexpr, RANK: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Q = P M for WIDTH columns of one matrix: HEIGHT sums, each of every HEIGHT-th row, and then the sum of these."""
    matrix, p, q, rows, columns, rank, height, width = of_program(matrices, p, q, table, count, UNIT, HEIGHT)
    i = tl.arange(0, RANK)[:, None, None]
    row = tl.arange(0, HEIGHT)[None, :, None]
    column = tl.arange(0, WIDTH)
    total, each = tl.zeros((RANK, HEIGHT, WIDTH), tl.float32), column[None, None, :]
    for first in range(0, height, HEIGHT):
        there = first + row < height
        tile = tl.load(matrix + (first + row) * columns + each, there & (each < width), 0.0)
        total += tile * tl.load(p + i * rows + first + row, there & (i < rank), 0.0)
    tl.store(q + i * columns + each, tl.sum(total, 1)[:, None, :], (i < rank) & (each < width))


@triton.jit
def project_kernel(
    matrices, p, q, table, count, UNIT: tl.constexpr, RANK: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TO_ROWS: tl.constexpr,
):  # fmt: skip
    """`project_rows_kernel`, or `project_columns_kernel`, by tensor cores."""
    matrix, p, q, rows, columns, rank, height, width = of_program(matrices, p, q, table, count, UNIT, HEIGHT)
    row, column = tl.arange(0, HEIGHT)[:, None], tl.arange(0, WIDTH)[None, :]
    if TO_ROWS:
        # P = Q Mᵀ: sum along the columns
        i, each = tl.arange(0, RANK)[None, :], tl.arange(0, WIDTH)[:, None]
        total = tl.zeros((HEIGHT, RANK), tl.float32)
        for first in range(0, width, WIDTH):
            tile = tl.load(matrix + row * columns + first + column, (row < height) & (first + column < width), 0.0)
            factor = tl.load(q + i * columns + first + each, (i < rank) & (first + each < width), 0.0)
            total = tl.dot(tile, factor, total, input_precision=PRECISION)
        tl.store(p + i * rows + row, total, (i < rank) & (row < height))
    else:
        # Q = P M: sum along the rows
        i, each = tl.arange(0, RANK)[:, None], tl.arange(0, HEIGHT)[None, :]
        total = tl.zeros((RANK, WIDTH), tl.float32)
        for first in range(0, height, HEIGHT):
            there = (first + row < height) & (column < width)
            tile = tl.load(matrix + (first + row) * columns + column, there, 0.0)
            factor = tl.load(p + i * rows + first + each, (i < rank) & (first + each < height), 0.0)
            total = tl.dot(factor, tile, total, input_precision=PRECISION)
        tl.store(q + i * columns + column, total, (i < rank) & (column < width))


@triton.jit
def product_kernel(
    matrices, p, q, table, count, UNIT: tl.constexpr, SUBTRACT: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """M = Pᵀ Q for (HEIGHT, WIDTH) elements of one matrix or, to SUBTRACT it, M -= Pᵀ Q."""
    matrix, p, q, rows, columns, rank, height, width = of_program(matrices, p, q, table, count, UNIT, HEIGHT)
    row, column = tl.arange(0, HEIGHT)[:, None], tl.arange(0, WIDTH)[None, :]
    at, live = matrix + row * columns + column, (row < height) & (column < width)
    old, total = tl.zeros((HEIGHT, WIDTH), tl.float32), tl.zeros((HEIGHT, WIDTH), tl.float32)
    if SUBTRACT:
        old = tl.load(at, live, 0.0)
    # the sum of the products of their rows
    for first in range(0, rank, TOGETHER):
        for more in tl.static_range(TOGETHER):
            i = first + more
            left = tl.load(p + i * rows + row, (row < height) & (row * 0 + i < rank), 0.0)
            right = tl.load(q + i * columns + column, (column < width) & (column * 0 + i < rank), 0.0)
            total += left * right
    # write it, or subtract it
    tl.store(at, old - total if SUBTRACT else total, live)


def project(matrices: Sequence[Tensor], basis: Sequence[Tensor], out: Sequence[Tensor], side: int) -> None:
    """See the reference, which does sums over many rows or columns, and all where a rank is above `MOST`; factors, and
    the results, lie one after another."""
    ranks, to_rows = [factor.shape[1] for factor in basis], side == ROWS
    sums = [matrix.shape[2 if to_rows else 1] for matrix in matrices]
    # long sums, by torch
    long = [i for i, length in enumerate(sums) if length > LONGEST or max(ranks) > MOST]
    products.project(*([batch[i] for i in long] for batch in (matrices, basis, out)), side=side)
    # all others, in one launch
    if len(long) < len(matrices):
        p, q = (out, basis) if to_rows else (basis, out)
        rank = power_of_2(max(ranks))
        if rank <= THIN:
            kernel, others = (project_rows_kernel if to_rows else project_columns_kernel), {}
            height, width = THIN_TILES[side]
            height = height // rank if to_rows else height
        else:
            kernel, others, (height, width), rank = project_kernel, {"TO_ROWS": to_rows}, TILES[side], max(16, rank)
        steps = (height, 0) if to_rows else (0, width)
        _launch(kernel, matrices, p, q, steps, RANK=rank, HEIGHT=height, WIDTH=width, **others)


def multiply(out: Sequence[Sequence[Tensor]], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
    """See the reference, which does all where a rank is above `MOST`; factors lie one after another, and all matrices
    of a batch in one tensor."""
    if max((factor.shape[1] for factor in p), default=0) > MOST:
        products.multiply(out, p, q, subtract=subtract)
    elif out:
        height, width = PRODUCT_TILE
        matrices = [matrix for (matrix,) in out]
        _launch(product_kernel, matrices, p, q, PRODUCT_TILE, SUBTRACT=subtract, HEIGHT=height, WIDTH=width)


def _launch(
    kernel, matrices: Sequence[Tensor], p: Sequence[Tensor], q: Sequence[Tensor], steps: tuple[int, int],
    **constants: int,
) -> None:  # fmt: skip
    """Launches a program for every so many rows and columns of each matrix, 0 for all at once; none for sums that are
    too long."""
    # where the matrices lie, from the first one on
    first = matrices[0].storage_offset()
    places: tuple[Any, ...] = tuple(
        (matrix.storage_offset() - first, matrix.stride(0), *matrix.shape) for matrix in matrices
    )
    # a program for each tile, found in a table
    layout = places, tuple(factor.shape[1] for factor in p), steps
    table = scratch_on(p[0].device).once(("products", *layout), lambda: _table(*layout, p[0].device))
    end = max(start + (count - 1) * stride + rows * columns for start, stride, count, rows, columns in places)
    flat = matrices[0].as_strided((end,), (1,))
    # numbers that 4 divides are read four at a time
    unit = gcd(4, *(number for start, stride, _, *shape in places for number in (start, stride, *shape)))
    launching.launch(
        kernel, table.shape[1], flat, vector_of(p), vector_of(q), table, table.shape[1], UNIT=unit, **constants
    )


def _table(
    places: Sequence[tuple[int, ...]], ranks: Sequence[int], steps: tuple[int, int], device: torch.device
) -> Tensor:
    """The table for batches of matrices, by first element, stride, number, rows and columns (`places`), and rank."""
    found = []
    p = 0
    q = 0
    for (start, stride, count, rows, columns), rank in zip(places, ranks, strict=True):
        # first rows and columns of the programs of one matrix
        firsts = (np.arange(0, n, step or n) for n, step in zip((rows, columns), steps, strict=True))
        grid = np.stack(np.meshgrid(*firsts, indexing="ij")).reshape(2, -1)
        long = any(n > LONGEST and not step for n, step in zip((rows, columns), steps, strict=True))
        # the same for each matrix of the batch
        for _ in range(count):
            of_matrix = np.array([start, rows, columns, rank, p, q])[:, None]
            if not long:
                found.append(np.concatenate([np.broadcast_to(of_matrix, (6, grid.shape[1])), grid]))
            start += stride
            p += rank * rows
            q += rank * columns
    return to_device(torch.from_numpy(np.concatenate(found, 1)), device)
