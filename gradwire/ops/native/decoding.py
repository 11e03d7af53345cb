"""Payloads to vectors, and entries to payloads: see `gradwire.ops.reference.decoding` and `.entries`."""

from ctypes import byref

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Compact
from gradwire.ops.native.library import library, room
from gradwire.ops.native.structs import Layout, Rows, blocks_struct, layout_struct, span_array
from gradwire.ops.vectors import Output, outputs


def decode_blocks(rows: Tensor, out: Output, layout: Blocks) -> None:
    """See the reference."""
    these, spans = _rows(rows, layout), span_array(outputs(out, layout.numel))
    library().gw_decode_blocks(spans, byref(blocks_struct(layout)), byref(these), layout.codes_at)


def decode_entries(rows: Tensor, out: Output, layout: Entries | Compact) -> None:
    """See the reference."""
    these, spans = _rows(rows, layout), span_array(outputs(out, layout.n))
    c, struct = library(), layout_struct(layout)
    space = room(c.gw_entries_room(byref(struct), len(rows)))
    _check(c.gw_decode_entries(spans, byref(struct), byref(these), space), layout)


def release(x: Tensor, payload: Tensor, layout: Entries | Compact) -> None:
    """See the reference."""
    _check_size(len(payload), layout)
    c, struct = library(), layout_struct(layout)
    space = room(c.gw_entries_room(byref(struct), 1))
    _check(c.gw_release(x.data_ptr(), byref(struct), payload.data_ptr(), space), layout)


def pack_entries(payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    short, sent = indices.int(), values.clone()
    struct: Layout = layout_struct(layout)
    library().gw_pack_entries(byref(struct), short.data_ptr(), sent.data_ptr(), len(short), payload.data_ptr())
    return sent


def unpack_entries(payload: Tensor, layout: Entries | Compact) -> tuple[Tensor, Tensor]:
    """See the reference."""
    _check_size(len(payload), layout)
    indices, values = torch.empty(layout.k, dtype=torch.int32), torch.empty(layout.k)
    struct = layout_struct(layout)
    found = library().gw_unpack_entries(byref(struct), payload.data_ptr(), indices.data_ptr(), values.data_ptr())
    _check(found, layout)
    return indices[:found].long(), values[:found]


def _rows(rows: Tensor, layout: Blocks | Entries | Compact) -> Rows:
    ranks, width = rows.shape
    _check_size(width, layout)
    return Rows(rows.data_ptr(), rows.stride(0), ranks)


def _check_size(nbytes: int, layout: Blocks | Entries | Compact) -> None:
    if nbytes < layout.nbytes:
        raise ValueError(f"a payload of {nbytes} bytes; {layout} takes {layout.nbytes}")


def _check(code: int, layout: Entries | Compact) -> None:
    if code < 0:
        raise ValueError(f"this is no payload of {layout}: its counts or indices are out of range")
