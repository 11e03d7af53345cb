# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
"""Renewal of low-rank factors, batches of thin matrices one after another: see `gradwire.ops.reference.factors`.

`table` (3, count) int64 has for each matrix its first element, its number of rows, and their length.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.triton import launching
from gradwire.ops.workspace import scratch_on

MOST = 32
"""The most rows of a factor for which kernels compute products and bases; the reference does others."""
SIZE = 1024
"""Elements that a program reads at a time."""


@triton.jit
def renew_kernel(factors, before, largest, table, count, SIZE: tl.constexpr):
    """`renew` of one matrix."""
    matrix = tl.program_id(0)
    start = tl.load(table + matrix)
    n = tl.load(table + count + matrix) * tl.load(table + 2 * count + matrix)
    factors = factors + start
    before = before + start
    each = tl.arange(0, SIZE)
    # the largest magnitude
    most = tl.zeros((SIZE,), tl.float32)
    for first in range(0, n, SIZE):
        size = tl.abs(tl.load(factors + first + each, first + each < n, 0.0))
        most = tl.maximum(most, tl.where(size < float("inf"), size, float("inf")))  # NaN counts as infinite
    size = tl.max(most)
    tl.store(largest + matrix, size)
    # the power of two that makes it 1/2 to 1, from its exponent
    power = tl.minimum(126 - (size.to(tl.int32, bitcast=True) >> 23), 126)
    scale = tl.where(size > 0, ((tl.maximum(power, -126) + 127) << 23).to(tl.float32, bitcast=True), 1.0)
    # scale, or restore the factor of the step before
    source = before if size == 0 else factors
    for first in range(0, n, SIZE):
        live = first + each < n
        tl.store(factors + first + each, tl.load(source + first + each, live) * scale, live)


def renew(factors: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """See the reference; batches lie one after another."""
    table = table_of(factors, sys.maxsize)
    largest = torch.empty(table.shape[1], dtype=torch.float32, device=table.device)
    launching.launch(
        renew_kernel, len(largest), vector_of(factors), vector_of(before), largest, table, len(largest), SIZE=SIZE
    )
    return largest


def vector_of(factors: Sequence[Tensor]) -> Tensor:
    """The vector (n,) in which batches lie one after another."""
    return factors[0].as_strided((sum(factor.numel() for factor in factors),), (1,))


def table_of(factors: Sequence[Tensor], longest: int) -> Tensor:
    """The table of these batches (k, rank, length), without those longer than `longest`."""
    shapes, device = tuple(tuple(factor.shape) for factor in factors), factors[0].device
    return scratch_on(device).once(("factors", shapes, longest), lambda: _table(shapes, longest, device))


def _table(shapes: tuple[tuple[int, ...], ...], longest: int, device: torch.device) -> Tensor:
    rows = np.repeat(np.array([shape[1:] for shape in shapes]), [shape[0] for shape in shapes], axis=0)
    sizes = rows.prod(1)
    table = np.stack([sizes.cumsum() - sizes, *rows.T])
    return to_device(torch.from_numpy(table.compress(rows[:, 1] <= longest, 1)), device)
