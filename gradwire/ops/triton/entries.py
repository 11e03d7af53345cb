# pyright: basic, reportMissingImports=false
"""Entries with float32 values to payloads, and back: see `gradwire.ops.reference.entries`."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.reference.decoding import whole
from gradwire.ops.reference.selecting import scratch_for
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
    _pack(payload[None], layout, indices[None], values[None], take=False)
    return values


def take_entries(x: Tensor, payload: Tensor, layout: Entries, indices: Tensor) -> None:
    """Moves k elements of x (n,) with ascending indices to a payload whose places are zero."""
    _pack(payload[None], layout, indices[None], x[None], take=True)


def select_parts(x: Tensor, rows: Tensor, layouts: Sequence[Entries]) -> None:
    """See `gradwire.ops.kernels`: layouts that are alike in as many launches as one."""
    rows.zero_()
    magnitude = torch.abs(x, out=scratch_for(x).tensor("magnitude", (len(x),)))
    for layout, payloads, start, end in _alike(rows, layouts):
        parts, sizes = (vector[start:end].view(len(payloads), layout.n) for vector in (x, magnitude))
        _pack(payloads, layout, sizes.topk(layout.k, 1, sorted=False).indices.sort(1).values, parts, take=True)


def _alike(rows: Tensor, layouts: Sequence[Entries]) -> Iterator[tuple[Entries, Tensor, int, int]]:
    """Each layout, neighbours that are alike together, with their rows, and where their parts of a vector begin and
    end."""
    row = start = 0
    for layout, alike in groupby(layouts):
        count = len(list(alike))
        yield layout, rows[row : row + count], start, start + count * layout.n
        row, start = row + count, start + count * layout.n


def _pack(payloads: Tensor, layout: Entries, indices: Tensor, chosen: Tensor, *, take: bool) -> None:
    """Entries (payloads, m) to payloads (·, ≥ nbytes)."""
    upper_end, places_end = layout.places.upper_bytes, layout.values_at
    upper, lower = (payloads[:, a:b].view(torch.int32) for a, b in ((0, upper_end), (upper_end, places_end)))
    values, (count, m) = payloads[:, places_end : layout.nbytes].view(torch.float32), indices.shape
    launching.launch(
        pack_kernel, count * programs_for(m, SIZE), values, upper, lower, values.stride(0), indices, chosen,
        chosen.stride(0), m, TAKE=take, LOW=layout.places.low_bits, SIZE=SIZE,
    )  # fmt: skip


def decode_entries(rows: Tensor, out: Output, layout: Entries) -> None:
    """See the reference. A GPU is not asked whether these are payloads; nothing is written outside."""
    if not layout.exact:
        reference.decode_entries(rows, out, layout)
        return
    with whole(out, layout.n) as total:
        _sum(rows, total[None], layout, len(rows))


def unpack_parts(rows: Tensor, out: Tensor, layouts: Sequence[Entries]) -> None:
    """See `gradwire.ops.kernels`: layouts that are alike in as many launches as one."""
    for layout, payloads, start, end in _alike(rows, layouts):
        _sum(payloads, out[start:end].view(len(payloads), layout.n), layout, 1)


def _sum(rows: Tensor, out: Tensor, layout: Entries, ranks: int) -> None:
    """Writes to each row of out (·, n) the sum of so many rows, from the row of this number on."""
    payloads, places = rows[:, : layout.nbytes].view(torch.int32), layout.places
    words, low_words = places.upper_bytes // 4, (places.nbytes - places.upper_bytes) // 4
    ends = torch.empty(len(rows), words, dtype=torch.int32, device=rows.device)
    launching.launch(ends_kernel, len(rows), ends, payloads, payloads.stride(0), words, SIZE=SIZE)
    launching.launch(
        sum_kernel, len(out) * programs_for(layout.n, SPAN << places.low_bits), out, payloads, payloads.stride(0), ends,
        words, low_words, layout.k, layout.n, ranks, LOW=places.low_bits, SPAN=SPAN, SIZE=WORDS,
    )  # fmt: skip
