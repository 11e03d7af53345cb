# pyright: basic, reportMissingImports=false
"""Entries with float32 values to payloads, and back: see `gradwire.ops.reference.entries`."""

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.reference.decoding import whole
from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.places import count_kernel, pack_kernel, scatter_kernel
from gradwire.ops.vectors import Output

SIZE = 1024
"""Entries, or words, of a program."""
WORDS = 128
"""Words whose bits a program looks at, one after another."""


def pack_entries(payload: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    if not layout.exact:
        return reference.pack_entries(payload, layout, indices, values)
    payload[: layout.nbytes].zero_()
    upper, lower, room = _parts(payload, layout)
    m = len(indices)
    launching.launch(
        pack_kernel, programs_for(m, SIZE), room, upper, lower, indices, values, m,
        LOW=layout.places.low_bits, SIZE=SIZE,
    )  # fmt: skip
    return values


def decode_entries(rows: Tensor, out: Output, layout: Entries) -> None:
    """See the reference. A GPU is not asked whether these are payloads; nothing is written outside."""
    if not layout.exact:
        reference.decode_entries(rows, out, layout)
        return
    ends = _ends(rows, layout)
    with whole(out, layout.n) as total:
        total.zero_()
        for row, own in zip(rows, ends, strict=True):  # rank by rank: the same rounding on every replica
            upper, lower, values = _parts(row, layout)
            launching.launch(
                scatter_kernel, programs_for(len(upper), WORDS), total, values, upper, lower, own, len(upper),
                len(lower), layout.k, layout.n, LOW=layout.places.low_bits, SIZE=WORDS,
            )  # fmt: skip


def _ends(rows: Tensor, layout: Entries) -> Tensor:
    """How many entries there are up to the end of each upper word, (rows, words)."""
    upper = rows[:, : layout.places.upper_bytes].view(torch.int32)
    counts = torch.empty(upper.shape, dtype=torch.int32, device=rows.device)
    words = upper.shape[1]
    launching.launch(
        count_kernel, len(rows) * programs_for(words, SIZE), counts, upper, upper.stride(0), words, SIZE=SIZE
    )
    return counts.cumsum(1, dtype=torch.int32)


def _parts(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor, Tensor]:
    """Upper and lower words, and values."""
    """Upper and lower words, and values."""
    upper_end, places_end = layout.places.upper_bytes, layout.values_at
    upper, lower, values = payload[:upper_end], payload[upper_end:places_end], payload[places_end : layout.nbytes]
    return upper.view(torch.int32), lower.view(torch.int32), values.view(torch.float32)
