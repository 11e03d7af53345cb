# pyright: basic, reportMissingImports=false
"""Entries with float32 values to payloads, and back: see `gradwire.ops.reference.entries`."""

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.reference.decoding import whole
from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.places import ends_kernel, pack_kernel, sum_kernel
from gradwire.ops.vectors import Output

SIZE = 1024
"""Entries, or words, of a program."""
SPAN = 1024
"""Of the upper halves of indices, those that belong to a program that adds up; so these, and about as many entries."""
WORDS = 64
"""Upper words that it looks at, one bit of each after another."""


def pack_entries(payload: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    if not layout.exact:
        return reference.pack_entries(payload, layout, indices, values)
    payload[: layout.nbytes].zero_()
    _pack(payload, layout, indices, values, take=False)
    return values


def take_entries(x: Tensor, payload: Tensor, layout: Entries, indices: Tensor) -> None:
    """Moves k elements of x (n,) with ascending indices to a payload whose places are zero."""
    _pack(payload, layout, indices, x, take=True)


def _pack(payload: Tensor, layout: Entries, indices: Tensor, chosen: Tensor, *, take: bool) -> None:
    upper_end, places_end = layout.places.upper_bytes, layout.values_at
    upper, lower = (payload[a:b].view(torch.int32) for a, b in ((0, upper_end), (upper_end, places_end)))
    values, m = payload[places_end : layout.nbytes].view(torch.float32), len(indices)
    launching.launch(
        pack_kernel, programs_for(m, SIZE), values, upper, lower, indices, chosen, m,
        TAKE=take, LOW=layout.places.low_bits, SIZE=SIZE,
    )  # fmt: skip


def decode_entries(rows: Tensor, out: Output, layout: Entries) -> None:
    """See the reference. A GPU is not asked whether these are payloads; nothing is written outside."""
    if not layout.exact:
        reference.decode_entries(rows, out, layout)
        return
    payloads, places = rows[:, : layout.nbytes].view(torch.int32), layout.places
    words, low_words = places.upper_bytes // 4, (places.nbytes - places.upper_bytes) // 4
    ends = torch.empty(len(rows), words, dtype=torch.int32, device=rows.device)
    launching.launch(ends_kernel, len(rows), ends, payloads, payloads.stride(0), words, SIZE=SIZE)
    with whole(out, layout.n) as total:
        launching.launch(
            sum_kernel, programs_for(layout.n, SPAN << places.low_bits), total, payloads, payloads.stride(0), ends,
            words, low_words, layout.k, layout.n, len(rows), LOW=places.low_bits, SPAN=SPAN, SIZE=WORDS,
        )  # fmt: skip
