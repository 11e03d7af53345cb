# pyright: basic, reportMissingImports=false
"""The largest elements of every slice of matrices: see `gradwire.ops.reference.slicing` and `selecting.top_k_each`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.host import to_device
from gradwire.ops.slices import SliceEntries, Slices
from gradwire.ops.triton import launching
from gradwire.ops.triton.slices import COLUMNS, add_slices_kernel, select_slices_kernel
from gradwire.ops.vectors import equal_keys
from gradwire.ops.workspace import scratch_on

LONGEST = 1 << 15
"""Elements of the longest slices that a program selects in."""
SHORTEST = 1 << 8
"""Elements of a slice in a tile, at least."""
TILES = (1 << 13, 1 << 10)
"""Elements of a tile of columns and of rows, about."""
SIDE_BY_SIDE = 4
"""Columns of a tile, at least, where they fit: so many elements of a row are read at once from memory."""
EACH = 32
"""Elements of a thread that selects."""
PARTS, PART = 4, 1 << 12
"""The parts of a slice, which a program writes one after another, at least; and elements of one, at most."""
ADDED = 512
"""Entries that a program adds, about."""


class Tile(NamedTuple):
    """The tile that a program selects in: see `gradwire.ops.triton.slices`."""

    AXIS: int
    SLICES: int
    LENGTH: int
    GROUPS: int

    @property
    def constants(self) -> dict[str, int]:
        """The tile as constants of the kernel."""
        return {**self._asdict(), "PART": min(PART, self.LENGTH // PARTS)}

    @property
    def warps(self) -> int:
        """Of a program."""
        return min(32, max(1, self.SLICES * self.LENGTH // (32 * EACH)))


def tile_of(slices: Slices) -> Tile:
    """The tile for a matrix: the powers of two that hold a slice, and as many groups as it keeps elements."""
    length = max(SHORTEST, launching.power_of_2(slices.length))
    together = max(1, TILES[slices.axis] // length)
    if slices.axis == 0:
        together = min(max(together, SIDE_BY_SIDE), max(1, LONGEST // length))
    return Tile(slices.axis, together, length, min(length, max(16, launching.power_of_2(slices.kept))))


def top_k_each(matrices: Sequence[Tensor], k: int, axis: int) -> Sequence[Tensor]:
    """See the reference; ascending."""
    rows, columns = matrices[0].shape
    count, length = (rows, columns) if axis == 1 else (columns, rows)
    # slices that are too long for a program: by torch
    if not _fits(slices := Slices(0, count, length, k, axis)):
        return reference.selecting.top_k_each(matrices, k, axis)
    layout, found = SliceEntries((slices,)), []
    # all others matrix by matrix
    for matrix in matrices:
        indices = torch.empty(count, k, dtype=torch.int64, device=matrix.device)
        _select(matrix.contiguous(), layout, indices)
        found.append(indices)
    return found


def largest_first(magnitudes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See the reference; the first of equals come first."""
    rows = magnitudes.view(-1, magnitudes.shape[-1])
    (indices,) = top_k_each([rows], k, 1)
    # sort these few
    largest, order = rows.gather(1, indices).sort(dim=1, descending=True, stable=True)
    shape = *magnitudes.shape[:-1], k
    return largest.view(shape), indices.gather(1, order).view(shape)


def move_slices(x: Tensor, payload: Tensor, layout: SliceEntries) -> None:
    """See the reference; a launch for each kind of tile."""
    if not all(map(_fits, layout.slices)):
        reference.slicing.move_slices(x, payload, layout, top_k_each)
        return
    values, _long, short = layout.fields(payload[None])
    _select(x, layout, short, values)


def sum_slices(payloads: Tensor, out: Tensor, layout: SliceEntries) -> None:
    """See the reference. Writes nothing outside `out`, whatever the payloads are."""
    out.zero_()
    fields = layout.fields(payloads)
    table = scratch_on(out.device).once(("programs that add", layout), lambda: _adding(layout, out.device))
    launching.launch(
        add_slices_kernel, len(table), out, *fields, *(field.stride(0) for field in fields), layout.long,
        len(payloads), table, SIZE=ADDED,
    )  # fmt: skip


def _fits(slices: Slices) -> bool:
    """Whether a program can hold a slice, and 31 bits an element."""
    return slices.length <= LONGEST and slices.count * slices.length < 1 << 31


def _select(x: Tensor, layout: SliceEntries, indices: Tensor, values: Tensor | None = None) -> None:
    """Writes the indices of the largest elements of all slices of x; moves them to `values` where these are given."""
    tables = scratch_on(x.device).once(("programs that select", layout), lambda: _selecting(layout, x.device))
    for tile, table in tables:
        launching.launch(
            select_slices_kernel, len(table), x, x if values is None else values, indices, table, **tile.constants,
            MOVE=values is not None, num_warps=tile.warps,
        )  # fmt: skip


def _selecting(layout: SliceEntries, device: torch.device) -> list[tuple[Tile, Tensor]]:
    """The tables of programs that select, by the kind of their tile."""
    tiles, firsts = [*map(tile_of, layout.slices)], _firsts(layout)
    return [
        (tiles[same[0]], _table([_rows(layout.slices[i], firsts[i], tiles[i].SLICES) for i in same], device))
        for same in equal_keys(tiles)
    ]


def _adding(layout: SliceEntries, device: torch.device) -> Tensor:
    """The table of programs that add."""
    parts = zip(layout.slices, _firsts(layout), strict=True)
    return _table([_rows(each, first, max(1, ADDED // each.kept)) for each, first in parts], device)


def _firsts(layout: SliceEntries) -> list[int]:
    """The number of each matrix's first entry."""
    sent = np.array([each.sent for each in layout.slices])
    return (sent.cumsum() - sent).tolist()


def _rows(each: Slices, entry: int, together: int) -> np.ndarray:
    """The rows of the table for a matrix whose first entry is this one, with so many slices in a program."""
    first = np.arange(0, each.count, together)
    columns = (
        each.start + first * each.slice_stride, np.minimum(together, each.count - first), each.length,
        each.slice_stride, each.stride, each.kept, entry + first * each.kept,
    )  # fmt: skip
    return np.stack(np.broadcast_arrays(*columns), 1)


def _table(rows: Sequence[np.ndarray], device: torch.device) -> Tensor:
    table = np.concatenate([np.empty((0, COLUMNS.value), np.int64), *rows])
    return to_device(torch.from_numpy(table), device)
