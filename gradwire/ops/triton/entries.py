# pyright: basic, reportMissingImports=false
"""Packing, unpacking and sums of entries: see `gradwire.ops.reference.entries`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.entries import GROUP, EliasFano, Entries
from gradwire.ops.reference.decoding import whole
from gradwire.ops.reference.entries import levels_and_edges
from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import ROUNDED, programs_for
from gradwire.ops.triton.levels import pack_levels_kernel
from gradwire.ops.triton.places import ends_kernel, pack_kernel, sum_kernel, unpack_kernel, words_kernel
from gradwire.ops.vectors import Output, equal_layouts
from gradwire.ops.workspace import scratch_on

SIZE = 1024
"""Entries, or words, of a program."""
TOGETHER = 128
"""Entries with levels that a program packs at a time."""
SUMMED = 1 << 13
"""Elements that a program sums, about."""


def pack_entries(payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """See the reference."""
    payloads[:, : layout.nbytes].zero_()
    sent = values if layout.exact else torch.zeros_like(values)
    _pack(payloads, layout, indices, values, sent)
    return sent


def move_entries(x: Tensor, payloads: Tensor, layout: Entries, indices: Tensor) -> None:
    """See the reference."""
    payloads[:, : layout.nbytes].zero_()
    move_to_zeros(x, payloads, layout, indices)


def move_to_zeros(x: Tensor, payloads: Tensor, layout: Entries, indices: Tensor) -> None:
    """`move_entries` to payloads whose bytes before exact values are zero."""
    _pack(payloads, layout, indices, x)


def pack_indices(payloads: Tensor, layout: EliasFano, indices: Tensor) -> None:
    """See the reference."""
    payloads[:, : layout.nbytes].zero_()
    _pack_places(payloads, layout, indices, indices, values=False, take=False)


def _pack(
    payloads: Tensor, layout: Entries, indices: Tensor, chosen: Tensor, sent: Tensor | None = None
) -> None:  # fmt: skip
    """Packs entries at indices (payloads, m) in payloads (payloads, ≥ nbytes): the values `chosen` (payloads, m), which
    are written to `sent` as they are sent; or without it the elements of vectors `chosen` (payloads, n), which keep the
    error."""
    take = sent is None
    if layout.exact:
        _pack_places(payloads, layout, indices, chosen, values=True, take=take)
        return
    # levels: number the entries that are not zero, and find those of each group
    values, (count, m), places = chosen.gather(1, indices) if take else chosen, indices.shape, layout.places
    words, edges = payloads[:, : layout.nbytes].view(torch.int32), _edges(payloads.device, layout.n, count)
    launching.launch(
        pack_levels_kernel, count * (edges.shape[1] - 1), words, words.stride(0), layout.places_at // 4,
        (layout.places_at + places.upper_bytes) // 4, layout.values_at // 4, indices, chosen, chosen if take else sent,
        values.ne(0).cumsum(1, dtype=torch.int32), torch.searchsorted(indices, edges, out_int32=True),
        levels_and_edges(words.device), chosen.stride(0), m, layout.n, TAKE=take, LOW=places.low_bits, SIZE=TOGETHER,
    )  # fmt: skip


def _edges(device: torch.device, n: int, rows: int) -> Tensor:
    """The first element of each group, and the end of the last, for each of so many rows."""

    def make() -> Tensor:
        edges = torch.arange(0, n + GROUP, GROUP, dtype=torch.int64, device=device)
        return edges.clamp_(max=n).repeat(rows, 1)

    return scratch_on(device).once(("edges", n, rows), make)


def _pack_places(
    payloads: Tensor, layout: Entries | EliasFano, indices: Tensor, chosen: Tensor, *, values: bool, take: bool
) -> None:  # fmt: skip
    """`_pack` of indices with exact values, or without."""
    places, words, (count, m) = layout.places, payloads[:, : layout.nbytes].view(torch.int32), indices.shape
    launching.launch(
        pack_kernel, count * programs_for(m, SIZE), words, words.stride(0), places.upper_bytes // 4, places.nbytes // 4,
        indices, chosen, chosen.stride(0), m, places.n, TAKE=take, VALUES=values, LOW=places.low_bits, SIZE=SIZE,
    )  # fmt: skip


def sum_entries(payloads: Tensor, out: Output, layouts: Sequence[Entries]) -> None:
    """See the reference; parts of the same layout in as many launches as one. There is one part, or one rank. Whether
    these are payloads is not checked; nothing is written outside `out`."""
    with whole(out, sum(layout.n for layout in layouts)) as total:
        for parts, rows, layout in equal_layouts(total, payloads, layouts):
            _sum(rows.flatten(0, 1), parts, layout, rows.shape[1])


def _sum(rows: Tensor, out: Tensor, layout: Entries, ranks: int) -> None:
    """Writes the sum of `ranks` payloads, from row i on, to row i of out (m, n)."""
    # programs of equal ranges of upper bits
    upper_at, words, low_words = _words_of(layout)
    payloads, low = rows[:, : layout.nbytes].view(torch.int32), layout.places.low_bits
    sizes = spans_of(low)
    spans = programs_for(layout.n, sizes["SPAN"] << low)
    launching.launch(
        sum_kernel, len(out) * spans, out, payloads, levels_and_edges(out.device), payloads.stride(0),
        *_ends(payloads[:, upper_at:], words, spans, sizes["SPAN"]), upper_at, words, low_words, layout.k, layout.n,
        ranks, spans, BITS=layout.value_bits, LOW=low, **sizes, **ROUNDED,
    )  # fmt: skip


def spans_of(low: int) -> dict[str, int]:
    """How many values of the upper bits a program sums, where the other bits are `low`, how many upper words it reads
    at a time, of which it has about as many, and how many zeros it writes at a time."""
    span = min(1024, max(32, SUMMED >> low))
    return {"SPAN": span, "SIZE": span // 16, "ZEROS": min(1024, span << low)}


def unpack_entries(payloads: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """See the reference."""
    indices, values = _unpack(payloads, layout, torch.float32)
    return indices.view(-1), values.view(-1)


def unpack_indices(payloads: Tensor, layout: EliasFano) -> tuple[Tensor, Tensor]:
    """See the reference."""
    indices, filled = _unpack(payloads, layout, torch.int8)
    return indices, filled.view(torch.bool)


def _unpack(payloads: Tensor, layout: Entries | EliasFano, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Indices (payloads, k), and their values, or as int8 whether they are filled."""
    # programs of equally many entries
    upper_at, words, low_words = _words_of(layout)
    rows = payloads[:, : layout.nbytes].view(torch.int32)
    indices = torch.empty(len(rows), layout.k, dtype=torch.int64, device=rows.device)
    found = torch.empty(indices.shape, dtype=dtype, device=rows.device)
    launching.launch(
        unpack_kernel, len(rows) * programs_for(layout.k, SIZE), indices, found, rows, levels_and_edges(rows.device),
        rows.stride(0), _ends(rows[:, upper_at:], words)[0], upper_at, words, low_words, layout.k, layout.n,
        words.bit_length(), BITS=layout.value_bits, LOW=layout.places.low_bits, SIZE=SIZE,
    )  # fmt: skip
    return indices, found


def _words_of(layout: Entries | EliasFano) -> tuple[int, int, int]:
    """The word of 32 bits where a payload's indices begin, and the numbers of words of upper and of lower bits."""
    places = layout.places
    return layout.places_at // 4, places.upper_bytes // 4, (places.nbytes - places.upper_bytes) // 4


def _ends(upper: Tensor, words: int, spans: int = 0, span: int = 32) -> tuple[Tensor, Tensor]:
    """The number of entries up to the end of each upper word, (rows, words) int32; and the words where so many spans of
    values of the upper bits begin, and where the last ends, (rows, spans + 1)."""
    rows, programs = len(upper), programs_for(words, SIZE)
    ends, starts, counts = (
        torch.empty(rows, length, dtype=torch.int32, device=upper.device) for length in (words, spans + 1, programs)
    )
    # count the entries of each program's words
    launching.launch(
        words_kernel, rows * programs, counts, starts, upper, upper.stride(0), words, spans, SIZE=SIZE
    )  # fmt: skip
    # add up the counts before each word
    launching.launch(
        ends_kernel, rows * programs, ends, starts, counts, upper, upper.stride(0), words, spans, SPAN=span, SIZE=SIZE
    )  # fmt: skip
    return ends, starts
