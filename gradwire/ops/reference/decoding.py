"""The sum of all ranks' payloads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.reference.blocks import decode, walk
from gradwire.ops.reference.entries import unpack_entries, unpack_entry_rows
from gradwire.ops.reference.grid import sum_blocks
from gradwire.ops.vectors import Output, outputs
from gradwire.torch_private.foreach import copy_each


def decode_blocks(rows: Tensor, out: Output, layout: Blocks) -> None:
    """Writes the sum of what rows (ranks, ≥ nbytes) uint8 stand for to `out`, rank by rank: the same on every
    replica."""
    with whole(out, layout.numel) as total:
        _sum_blocks(rows, total, layout)


def decode_entries(rows: Tensor, out: Output, layout: Entries) -> None:
    """As `decode_blocks`. Raises ValueError for what is no payload; what is in `out` then is unspecified."""
    with whole(out, layout.n) as total:
        _sum_entries(rows, total, layout)


@contextmanager
def whole(out: Output, n: int) -> Iterator[Tensor]:
    """One vector (n,) to write to, which then goes to the parts of `out`."""
    parts = outputs(out, n)
    total = parts[0].view(-1) if len(parts) == 1 else torch.empty(n, dtype=torch.float32, device=parts[0].device)
    yield total
    if len(parts) > 1:
        copy_each([part.view(-1) for part in parts], total.split([part.numel() for part in parts]))


def _sum_blocks(rows: Tensor, out: Tensor, layout: Blocks) -> None:
    if out.device.type != "cpu":
        sum_blocks(rows, out, layout)
        return
    for tile in zip(*(walk(out, row, layout) for row in rows), strict=True):
        for rank, (part, scales, codes) in enumerate(tile):
            values = decode(scales, codes, layout.code, part.shape)
            (part.add_ if rank else part.copy_)(values)


def _sum_entries(rows: Tensor, out: Tensor, layout: Entries) -> None:
    out.zero_()
    if out.device.type != "cpu":
        unpacked = zip(*unpack_entry_rows(rows, layout), strict=True)
    else:
        unpacked = (unpack_entries(row, layout) for row in rows)
    for indices, values in unpacked:
        out.index_add_(0, indices, values)
