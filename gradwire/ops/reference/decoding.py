"""Sums of payloads over the ranks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.reference import grid
from gradwire.ops.reference.blocks import dequantise, walk
from gradwire.ops.reference.entries import unpack_entries, unpack_entry_rows
from gradwire.ops.vectors import Output, outputs, together
from gradwire.torch_private.foreach import copy_each


def sum_blocks(payloads: Tensor, out: Output, layouts: Sequence[Blocks]) -> None:
    """Dequantises payloads (parts, ranks, ≥ nbytes) uint8, and writes their sums over the ranks to the parts of `out`,
    one after another. Ranks are added in order, so that every replica rounds the same way. The tensors of `out` may end
    anywhere."""
    sizes = [layout.numel for layout in layouts]
    with whole(out, sum(sizes)) as total:
        for part, rows, layout in zip(total.split(sizes), payloads, layouts, strict=False):
            _sum_part(rows, part, layout)


def sum_entries(payloads: Tensor, out: Output, layouts: Sequence[Entries]) -> None:
    """`sum_blocks` for entries; elements without an entry are zero. On a CPU raises ValueError for bytes that are no
    payload, and leaves `out` unspecified."""
    with whole(out, sum(layout.n for layout in layouts)) as total:
        for parts, rows, layout in together(total, payloads, layouts):
            _add_entries(rows, parts.zero_(), layout)


@contextmanager
def whole(out: Output, n: int) -> Iterator[Tensor]:
    """One vector (n,) to write to, which is then copied to the tensors of `out`, if these are several."""
    parts = outputs(out, n)
    total = parts[0].view(-1) if len(parts) == 1 else torch.empty(n, dtype=torch.float32, device=parts[0].device)
    yield total
    if len(parts) > 1:
        copy_each([part.view(-1) for part in parts], total.split([part.numel() for part in parts]))


def _sum_part(rows: Tensor, out: Tensor, layout: Blocks) -> None:
    if out.device.type != "cpu":
        grid.sum_blocks(rows, out, layout)
        return
    # tile by tile, the payloads of all ranks
    for tile in zip(*(walk(out, row, layout) for row in rows), strict=True):
        for rank, (part, scales, codes) in enumerate(tile):
            values = dequantise(scales, codes, layout.code, part.shape)
            (part.add_ if rank else part.copy_)(values)


def _add_entries(payloads: Tensor, out: Tensor, layout: Entries) -> None:
    """Adds payloads (parts, ranks, ≥ nbytes) to out (parts, n), which is zero; on a CPU of one part."""
    # a GPU: unpack all at once, add rank by rank
    if out.device.type != "cpu":
        indices, values = unpack_entry_rows(payloads.flatten(0, 1), layout)
        indices, values = (each.view(*payloads.shape[:2], -1) for each in (indices, values))
        for rank in range(payloads.shape[1]):
            out.scatter_add_(1, indices[:, rank], values[:, rank])
        return
    # a CPU: payload by payload
    for row in payloads[0]:
        out[0].index_add_(0, *unpack_entries(row[None], layout))
