"""Selection of the largest elements: see `gradwire.ops.reference.selecting`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.native.addresses import address, refused
from gradwire.ops.native.library import library, scratch
from gradwire.ops.reference.row_top_k import COLUMNS
from gradwire.ops.tiles import TILE
from gradwire.ops.vectors import LONGEST

SLACK = 4112
"""Elements that `gw_above` may write behind the last one: `GW_SLACK` in native/gradwire.h."""


def top_k(x: Tensor, k: int) -> Tensor:
    """See the reference."""
    c, n = library(), x.shape[-1]
    start, indices = _vector(x), torch.empty(min(n, k), dtype=torch.int32, device="cpu")
    found = c.gw_top_k(start, n, k, indices.data_ptr(), scratch(c.gw_select_room(n, k)))
    return indices[:found].long().view(*x.shape[:-1], -1)


def above(x: Tensor, bound: float, most: int) -> tuple[Tensor, Tensor] | None:
    """See the reference."""
    start, size = _vector(x), min(len(x), most) + SLACK
    indices = torch.empty(size, dtype=torch.int32, device="cpu")
    magnitudes = torch.empty(size, dtype=torch.float32, device="cpu")
    found = library().gw_above(start, len(x), bound, most, indices.data_ptr(), magnitudes.data_ptr())
    return None if found < 0 else (indices[:found].long(), magnitudes[:found])


def _vector(x: Tensor) -> int:
    """The address of a vector whose indices fit 31 bits."""
    if x.numel() > LONGEST:
        raise refused("x", x, "fewer than 2^31 elements")
    return address("x", x, x.shape[-1])


def top_k_each(matrices: Sequence[Tensor], k: int, axis: int) -> Sequence[Tensor]:
    """See the reference."""
    return [(top_k_rows if axis == 1 else top_k_columns)(matrix, k) for matrix in matrices]


def top_k_rows(matrix: Tensor, k: int) -> Tensor:
    """`top_k_each` of a matrix's rows."""
    # the library writes k indices a row, without asking whether there are as many elements
    rows, length = matrix.shape
    if k > length:
        raise ValueError(f"k={k} of rows of {length} elements; use {length} or fewer")
    # addresses that were checked, and scratch memory
    start, indices = address("matrix", matrix, rows * length), torch.empty(rows, k, dtype=torch.int32, device="cpu")
    workspace = scratch(4 * (3 * length + 64))
    library().gw_top_k_rows(start, rows, length, k, indices.data_ptr(), workspace)
    return indices.long()


def top_k_columns(matrix: Tensor, k: int) -> Tensor:
    """`top_k_each` of a matrix's columns."""
    rows, columns = matrix.shape
    chosen = torch.empty(columns, k, dtype=torch.int64, device="cpu")
    # transpose strips that fit the cache, and select in their rows
    step = max(COLUMNS, TILE // rows)
    for start in range(0, columns, step):
        strip = matrix[:, start : start + step].contiguous()  # transposes many times faster than the matrix itself
        chosen[start : start + step] = top_k_rows(strip.T.contiguous(), k)
    return chosen
