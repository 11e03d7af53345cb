"""Payloads to vectors, and entries to payloads: see `gradwire.ops.reference.decoding` and `.entries`."""

from ctypes import byref

import torch
from torch import Tensor

from gradwire.ops.entries import Entries, Places
from gradwire.ops.formats import Blocks
from gradwire.ops.native.library import library, room
from gradwire.ops.native.structs import Rows, blocks_struct, layout_struct, span_array
from gradwire.ops.reference.places import in_room, no_payload
from gradwire.ops.vectors import Output, outputs


def decode_blocks(rows: Tensor, out: Output, layout: Blocks) -> None:
    """See the reference."""
    these, spans = _rows(rows, layout), span_array(outputs(out, layout.numel))
    c = library()
    space = room(c.gw_blocks_room(layout.code.block))
    c.gw_decode_blocks(spans, byref(blocks_struct(layout)), byref(these), layout.codes_at, space)


def decode_entries(rows: Tensor, out: Output, layout: Entries) -> None:
    """See the reference."""
    these, spans = _rows(rows, layout), span_array(outputs(out, layout.n))
    c, struct = library(), layout_struct(layout)
    space = room(c.gw_entries_room(len(rows)))
    _check(c.gw_decode_entries(spans, byref(struct), byref(these), space), layout)


def pack_entries(payload: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    sent = values.clone()
    _pack(payload, layout, indices, sent)
    return sent


def pack_places(payload: Tensor, layout: Places, indices: Tensor) -> None:
    """See the reference."""
    _pack(payload, layout, indices, None)


def unpack_entries(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """See the reference."""
    values = torch.empty(layout.k)
    indices = _unpack(payload, layout, values)
    return indices, values[: len(indices)]


def unpack_places(payload: Tensor, layout: Places) -> tuple[Tensor, Tensor]:
    """See the reference."""
    return in_room(_unpack(payload, layout, None), layout.k)


def _pack(payload: Tensor, layout: Entries | Places, indices: Tensor, values: Tensor | None) -> None:
    short, given = indices.int(), 0 if values is None else values.data_ptr()
    library().gw_pack_entries(byref(layout_struct(layout)), short.data_ptr(), given, len(short), payload.data_ptr())


def _unpack(payload: Tensor, layout: Entries | Places, values: Tensor | None) -> Tensor:
    _check_size(len(payload), layout)
    indices, room = torch.empty(layout.k, dtype=torch.int32), 0 if values is None else values.data_ptr()
    found = library().gw_unpack_entries(byref(layout_struct(layout)), payload.data_ptr(), indices.data_ptr(), room)
    _check(found, layout)
    return indices[:found].long()


def _rows(rows: Tensor, layout: Blocks | Entries) -> Rows:
    ranks, width = rows.shape
    _check_size(width, layout)
    return Rows(rows.data_ptr(), rows.stride(0), ranks)


def _check_size(nbytes: int, layout: Blocks | Entries | Places) -> None:
    if nbytes < layout.nbytes:
        raise ValueError(f"a payload of {nbytes} bytes; {layout} takes {layout.nbytes}")


def _check(code: int, layout: Entries | Places) -> None:
    if code < 0:
        raise no_payload(layout)
