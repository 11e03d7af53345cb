"""Quantisation in blocks on a GPU: all blocks are rows of one matrix, so that the number of launches does not depend on
the parts."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import torch
from torch import Tensor

from gradwire.ops.formats import Blocks
from gradwire.ops.host import to_device
from gradwire.ops.noise import Noise, Seed
from gradwire.ops.reference.bits import pack_bits, pack_codes, unpack_bits, unpack_codes
from gradwire.ops.reference.blocks import scales_in, value_of_one
from gradwire.ops.reference.finite import Finite, finite_in
from gradwire.ops.reference.levels import levels
from gradwire.ops.workspace import scratch_on
from gradwire.torch_private.foreach import copy_each


class Grid:
    """The blocks of a layout as rows of a matrix (count, block); zeros fill up the last row of each part."""

    def __init__(self, layout: Blocks, device: torch.device) -> None:
        code, self.layout = layout.code, layout
        # whether all blocks are whole, so that vector and matrix are the same memory
        self.shape = layout.count, code.block
        self.fits = all(length % code.block == 0 for length in layout.lengths)
        # elements and bytes that each part takes, and that its last row leaves free
        blocks = [ceil(length / code.block) for length in layout.lengths]
        self._elements = _with_gaps(list(layout.lengths), [count * code.block for count in blocks])
        sizes = [ceil(length * code.bits / 8) for length in layout.lengths]
        self.bytes = _with_gaps(sizes, [count * code.block * code.bits // 8 for count in blocks])
        self.widths = scratch_on(device).once(("widths", layout), lambda: _widths(layout, blocks, device))
        """(count,) int64: the elements of each row."""

    def spread(self, x: Tensor) -> Tensor:
        """x (n,) as rows; a view where all blocks are whole."""
        if self.fits:
            return x.view(self.shape)
        rows = torch.zeros(self.shape, dtype=torch.float32, device=x.device)
        copy_each(self._used(rows.view(-1), self._elements), x.split(self._elements[::2]))
        return rows

    def gather(self, rows: Tensor, x: Tensor) -> None:
        """Copies rows to x (n,): the inverse of `spread`."""
        if not self.fits:
            copy_each(x.split(self._elements[::2]), self._used(rows.view(-1), self._elements))

    def codes(self, payloads: Tensor) -> Tensor:
        """The codes of all rows of payloads (ranks, ≥ nbytes), in one vector of ranks · count · (bytes of a block)."""
        held = payloads[:, self.layout.codes_at : self.layout.end]
        if self.fits:
            return held.reshape(-1)
        spread = held.new_zeros(len(held), sum(self.bytes))
        copy_each(self._used(spread, self.bytes), held.split(self.bytes[::2], 1))
        return spread.view(-1)

    def put_codes(self, codes: Tensor, payload: Tensor) -> None:
        """Writes the codes of all rows to a payload."""
        held = payload[self.layout.codes_at : self.layout.end]
        copy_each(held.split(self.bytes[::2]), self._used(codes, self.bytes))

    def _used(self, flat: Tensor, sizes: list[int]) -> list[Tensor]:
        """The parts of a vector (..., sum(sizes)), without what fills up their last rows."""
        return list(flat.split(sizes, -1)[::2])


def _with_gaps(used: list[int], whole: list[int]) -> list[int]:
    """The size that each part uses, and the size that it leaves free, in turn."""
    return [size for pair in zip(used, map(int.__sub__, whole, used), strict=True) for size in pair]


def _widths(layout: Blocks, blocks: Sequence[int], device: torch.device) -> Tensor:
    """The elements of each row, (count,) int64, where parts have so many `blocks`."""
    widths = [layout.code.block] * layout.count
    for last, length in zip(accumulate(blocks), layout.lengths, strict=True):
        if length % layout.code.block:
            widths[last - 1] = length % layout.code.block
    return to_device(torch.tensor(widths, dtype=torch.int64, device="cpu"), device)


def grid_of(layout: Blocks, device: torch.device) -> Grid:
    """The grid of a layout, made once."""
    return scratch_on(device).once(("grid", layout), lambda: Grid(layout, device))


def quantise(x: Tensor, layout: Blocks, payload: Tensor, *, keep: bool, seed: Seed) -> Finite:
    """`blocks.quantise` on a GPU."""
    grid = grid_of(layout, x.device)
    for gap in layout.gaps:
        payload[gap].zero_()
    # quantise and pack all blocks
    rows, scales = grid.spread(x), scales_in(payload, grid.layout)
    codes = torch.empty(sum(grid.bytes), dtype=torch.uint8, device=x.device)
    if layout.code.bits == 1:
        finite, sent = _write_signs(rows, scales, codes, grid)
    else:
        finite, sent = True, _write_numbers(rows, scales, codes, grid, seed)
    grid.put_codes(codes, payload)
    # keep the error
    if keep:
        grid.gather(rows.sub_(sent), x)
    return finite


def sum_blocks(payloads: Tensor, out: Tensor, layout: Blocks) -> None:
    """Writes the sum of payloads (ranks, ≥ nbytes) to out (n,): `decoding.sum_blocks` of one part, on a GPU."""
    grid = grid_of(layout, out.device)
    total = out.view(grid.shape) if grid.fits else torch.empty(grid.shape, dtype=torch.float32, device=out.device)
    codes, scales = grid.codes(payloads), scales_in(payloads, layout)
    # dequantise all ranks' codes
    if layout.code.bits == 1:
        each = zip(unpack_bits(codes).view(len(payloads), *grid.shape), *_plus_and_minus(scales), strict=True)
        addends = (torch.where(plus, high, low) for plus, high, low in each)
    else:
        numbers = torch.empty(len(payloads), *grid.shape, dtype=torch.int8, device=out.device)
        unpack_codes(codes, numbers.view(-1), layout.code.bits)
        addends = map(torch.mul, numbers, value_of_one(scales, layout.code))
    # sum rank by rank: the same rounding on every replica
    for rank, addend in enumerate(addends):
        (total.add_ if rank else total.copy_)(addend)
    grid.gather(total, out)


def _write_numbers(rows: Tensor, scales: Tensor, codes: Tensor, grid: Grid, seed: Seed) -> Tensor:
    """Writes scales and codes of numbers; returns the values that they stand for, (count, block)."""
    code = grid.layout.code
    noise = Noise(seed, rows.device) if code.has_noise else None
    numbers = levels(rows, scales, code, noise)
    pack_codes(numbers.to(torch.int8).view(-1), codes, code.bits)
    return numbers.mul_(value_of_one(scales, code))


def _write_signs(rows: Tensor, scales: Tensor, codes: Tensor, grid: Grid) -> tuple[Finite, Tensor]:
    """Writes scales and codes of signs; returns whether the scales are finite, and the values that they stand for."""
    # signs; zeros that fill up a row have none
    plus = rows.ge(0)
    if not grid.fits:
        plus.logical_and_(torch.arange(grid.shape[1], dtype=torch.int64, device=rows.device) < grid.widths[:, None])
    pack_bits(plus.view(-1), codes)
    # scales: the mean magnitude, or those of negative and other elements
    if grid.layout.code.kind == "sign":
        torch.div(rows.abs().sum(1), grid.widths, out=scales[:, 0])
    else:
        others = plus.sum(1)
        torch.div(rows.clamp(max=0).sum(1), (grid.widths - others).clamp_(min=1), out=scales[:, 0])
        torch.div(rows.clamp(min=0).sum(1), others.clamp_(min=1), out=scales[:, 1])
    return finite_in(scales), torch.where(plus, *_plus_and_minus(scales))


def _plus_and_minus(scales: Tensor) -> tuple[Tensor, Tensor]:
    """The value of a set bit, and that of another, (..., count, 1) each."""
    return (scales, -scales) if scales.shape[-1] == 1 else (scales[..., 1:], scales[..., :1])
