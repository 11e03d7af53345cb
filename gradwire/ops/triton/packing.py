# pyright: basic, reportMissingImports=false
"""Entries to payloads: see `gradwire.ops.reference.entries`."""

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Compact
from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.places import pack_kernel, scatter_kernel

SIZE = 1024
"""Entries of a program."""


def pack_entries(payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    if isinstance(layout, Compact):
        return reference.pack_entries(payload, layout, indices, values)
    payload[: layout.nbytes].zero_()
    m = len(indices)
    launching.launch(pack_kernel, programs_for(m, SIZE), *_parts(payload, layout), indices, values, m, SIZE=SIZE)
    return values


def scatter(out: Tensor, payload: Tensor, layout: Entries, sign: float) -> None:
    """Adds a payload's values, times `sign`, to out (n,)."""
    k, blocks = layout.k, layout.places.blocks
    arguments = out, *_parts(payload, layout), k, blocks, layout.n, sign
    launching.launch(scatter_kernel, programs_for(k, SIZE), *arguments, SIZE=SIZE)


def _parts(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor, Tensor]:
    """Values, counts and low halves."""
    places, head = payload[4 * layout.k :], 4 * layout.places.blocks
    counts, low = places[:head].view(torch.int32), places[head : head + 2 * layout.k].view(torch.int16)
    return layout.values(payload), counts, low
