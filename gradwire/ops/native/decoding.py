"""Sums of payloads, and packing of entries: see `gradwire.ops.reference.decoding` and `.entries`."""

from collections.abc import Sequence
from ctypes import byref

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.entries import EliasFano, Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.native.addresses import address, output_addresses, payload_address, payload_rows
from gradwire.ops.native.library import library, scratch
from gradwire.ops.native.structs import blocks_struct, entries_struct, output_array
from gradwire.ops.reference.elias_fano import no_payload, padded_rows
from gradwire.ops.reference.entries import joined
from gradwire.ops.vectors import Output, split_output


def sum_blocks(payloads: Tensor, out: Output, layouts: Sequence[Blocks]) -> None:
    """See the reference."""
    outs = split_output(out, [layout.numel for layout in layouts])
    for rows, to, layout in zip(payloads, outs, layouts, strict=False):
        # addresses that were checked, and scratch memory
        c, struct = library(), blocks_struct(layout)
        source, target = payload_rows(rows, layout.nbytes), output_array(output_addresses(to, layout.numel))
        workspace = scratch(c.gw_blocks_room(layout.code.block))
        c.gw_decode_blocks(target, byref(struct), byref(source), layout.codes_at, workspace)


def sum_entries(payloads: Tensor, out: Output, layouts: Sequence[Entries]) -> None:
    """See the reference."""
    outs = split_output(out, [layout.n for layout in layouts])
    for rows, to, layout in zip(payloads, outs, layouts, strict=False):
        # addresses that were checked, and scratch memory
        c, struct = library(), entries_struct(layout)
        source, target = payload_rows(rows, layout.nbytes), output_array(output_addresses(to, layout.n))
        workspace = scratch(c.gw_entries_room(len(rows)))
        _check(c.gw_decode_entries(target, byref(struct), byref(source), workspace), layout)


def pack_entries(payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    # the library replaces values by what is sent of them
    sent = values.clone()
    for payload, places, own in zip(payloads, indices, sent, strict=True):
        _pack(payload, layout, places, own)
    return sent


def pack_indices(payloads: Tensor, layout: EliasFano, indices: Tensor) -> None:
    """See the reference."""
    for payload, places in zip(payloads, indices, strict=True):
        _pack(payload, layout, places, None)


def unpack_entries(payloads: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """See the reference."""
    return joined(_unpack_one(payload, layout) for payload in payloads)


def _unpack_one(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    values = torch.empty(layout.k, dtype=torch.float32, device="cpu")
    indices = _unpack(payload, layout, values)
    return indices, values[: len(indices)]


def unpack_indices(payloads: Tensor, layout: EliasFano) -> tuple[Tensor, Tensor]:
    """See the reference."""
    return padded_rows([_unpack(payload, layout, None) for payload in payloads], layout.k)


def _pack(payload: Tensor, layout: Entries | EliasFano, indices: Tensor, values: Tensor | None) -> None:
    struct, m = entries_struct(layout), len(indices)
    short = _short(indices, layout)
    given = 0 if values is None else address("values", values, m)
    to = payload_address("payload", payload, layout.nbytes)
    library().gw_pack_entries(byref(struct), short.ctypes.data, given, m, to)


def _short(indices: Tensor, layout: Entries | EliasFano) -> np.ndarray:
    """Indices (≤ k,) below n as uint32. Raises ValueError for others."""
    address("indices", indices, len(indices), torch.int64)
    if len(indices) > layout.k or (len(indices) and int(indices.numpy().view(np.uint64).max()) >= layout.n):
        raise ValueError(f"indices are {len(indices)} up to {int(indices.max())}; {layout} takes k of them, below n")
    return indices.numpy().astype(np.uint32)


def _unpack(payload: Tensor, layout: Entries | EliasFano, values: Tensor | None) -> Tensor:
    """The indices (≤ k,) int64 of a payload, whose values go to `values` (k,)."""
    struct, start = entries_struct(layout), payload_address("payload", payload, layout.nbytes)
    # the library writes 32 bits an index
    indices = torch.empty(layout.k, dtype=torch.int32, device="cpu")
    into = 0 if values is None else address("values", values, layout.k)
    found = library().gw_unpack_entries(byref(struct), start, indices.data_ptr(), into)
    _check(found, layout)
    return indices[:found].long()


def _check(code: int, layout: Entries | EliasFano) -> None:
    if code < 0:
        raise no_payload(layout)
