# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""Kernels that pack, unpack and sum entries: see `gradwire.ops.entries`."""

import triton
import triton.language as tl

from gradwire.ops import entries
from gradwire.ops.triton.launching import programs_of

GROUP: tl.constexpr = tl.constexpr(entries.GROUP)
"""Elements that share a scale."""


@triton.jit
def store_place(upper, lower, index, at, live, LOW: tl.constexpr):
    """Sets the bits of entries number `at`, which have these indices."""
    # upper bits: one bit per entry
    place = (index >> LOW) + at
    one = tl.full(at.shape, 1, tl.int64)
    tl.atomic_or(upper + (place >> 5), (one << (place & 31)).to(tl.int32), live)
    # lower bits, in one word or across two
    if LOW > 0:
        first = at * LOW
        field = (index & ((1 << LOW) - 1)) << (first & 31)
        tl.atomic_or(lower + (first >> 5), field.to(tl.int32), live)
        tl.atomic_or(lower + (first >> 5) + 1, (field >> 32).to(tl.int32), live & (field >> 32 != 0))


@triton.jit
def pack_kernel(
    payloads, stride, low_at, values_at, indices, chosen, source_stride, m, n,
    TAKE: tl.constexpr, VALUES: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Packs SIZE of m entries of one payload, int32, which was zero; indices of n or more are no entries. With VALUES
    these are `chosen` (m,) or, to TAKE them, the elements of a vector `chosen` at the indices, which become 0. Payloads
    are `stride` words apart, and vectors `source_stride` elements; a payload's lower bits and values begin at words
    `low_at` and `values_at`. LOW: how many lower bits an index has."""
    program, row = tl.program_id(0) % programs_of(m, SIZE), (tl.program_id(0) // programs_of(m, SIZE)).to(tl.int64)
    payloads, indices = payloads + row * stride, indices + row * m
    at = program.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    index = tl.load(indices + at, at < m, n)
    live = index < n
    # values
    if VALUES:
        values = (payloads + values_at).to(tl.pointer_type(tl.float32))
        source = chosen + row * source_stride + (index if TAKE else at)
        tl.store(values + at, tl.load(source, live, 0.0), live)
        if TAKE:
            tl.debug_barrier()  # other threads may still read what this one zeroes
            tl.store(source, 0.0, live)
    # indices
    store_place(payloads, payloads + low_at, index, at, live, LOW)


@triton.jit
def set_bits(word):
    """The number of set bits in each of these words, int32."""
    word = word.to(tl.uint32, bitcast=True)
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return (word * 0x01010101 >> 24).to(tl.int32)


@triton.jit
def words_kernel(counts, starts, rows, stride, words, spans, SIZE: tl.constexpr):
    """Counts the entries in SIZE of a row's `words` upper words: counts (rows, programs of a row). Sets the row's
    `starts` (rows, spans + 1), as far as they are not to be known, behind the last word."""
    programs = programs_of(words, SIZE)
    row, program = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(0) % programs
    at = program * SIZE + tl.arange(0, SIZE)
    word = tl.load(rows + row * stride + at, at < words, 0)
    tl.store(counts + tl.program_id(0), tl.sum(set_bits(word), 0))
    tl.store(starts + row * (spans + 1) + at, words, at <= spans)


@triton.jit
def ends_kernel(
    ends, starts, counts, rows, stride, words, spans, SPAN: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Counts the entries up to the end of each of SIZE upper words: ends (rows, words) int32. Where number i·SPAN of a
    row's zeros is in one of them, counted from 1, that is start number i."""
    programs = programs_of(words, SIZE)
    row, program = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(0) % programs
    # what programs before this one have counted
    before = 0
    for first in range(0, program, SIZE):
        other = first + tl.arange(0, SIZE)
        before += tl.sum(tl.load(counts + row * programs + other, other < program, 0), 0)
    # a running sum over the words
    at = program * SIZE + tl.arange(0, SIZE)
    count = set_bits(tl.load(rows + row * stride + at, at < words, 0))
    end = before + tl.cumsum(count, 0)
    tl.store(ends + row * words + at, end, at < words)
    # starts
    zeros = 32 * (at + 1) - end
    span = zeros // SPAN
    has_start = (span * SPAN > zeros - 32 + count) & (span <= spans) & (at < words)
    tl.store(starts + row * (spans + 1) + span, at, has_start)


@triton.jit
def lower_bits(lower, low_words, entry, live, LOW: tl.constexpr):
    """The lower bits of these entries' indices."""
    place = entry * LOW
    here = place >> 5
    field = tl.load(lower + here, live, 0).to(tl.int64) & 0xFFFFFFFF
    field |= (tl.load(lower + here + 1, live & (here + 1 < low_words), 0).to(tl.int64) & 0xFFFFFFFF) << 32
    return (field >> (place & 31)) & ((1 << LOW) - 1)


@triton.jit
def value_of(payload, values, levels, index, entry, live, BITS: tl.constexpr):
    """The values of these entries of a payload; `values` points to the first, `levels` to the levels of 4 bits."""
    if BITS == 32:
        value = tl.load(values.to(tl.pointer_type(tl.float32)) + entry, live, 0.0)
    else:
        # sign and level, two to a byte, times the group's scale
        code = (tl.load(values + (entry >> 3), live, 0) >> (4 * (entry & 7)).to(tl.int32)) & 15
        scale = tl.load(payload.to(tl.pointer_type(tl.bfloat16)) + index // GROUP, live, 0.0).to(tl.float32)
        level = tl.load(levels + (code & 7), live, 0.0)
        value = tl.where(code > 7, -level, level) * scale
    return value


@triton.jit
def scatter_words(
    out, payload, levels, upper, lower, ends, first, words, low_words, k, n, zeros, BITS: tl.constexpr,
    LOW: tl.constexpr, SPAN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """out[index] += value for the entries of SIZE upper words from the `first` on that have `zeros` to `zeros` + SPAN
    zeros before them: their number is the upper bits of the index. Entries beyond k or n are ignored."""
    # a thread for each bit: the number of its entry, and of the zeros before it
    at, bit = first + tl.arange(0, SIZE)[:, None], tl.arange(0, 32)[None, :]
    word = tl.load(upper + at, at < words, 0)
    entry = tl.load(ends + at - 1, (at > 0) & (at < words), 0) + set_bits(word & ((1 << bit) - 1))
    high = at * 32 + bit - entry
    live = (((word >> bit) & 1) == 1) & (entry < k) & (high >= zeros) & (high < zeros + SPAN)
    # the rest of its index, and its value
    index, entry = high.to(tl.int64) << LOW, entry.to(tl.int64)
    if LOW > 0:
        index += lower_bits(lower, low_words, entry, live, LOW)
    live = live & (index < n)
    value = value_of(payload, lower + low_words, levels, index, entry, live, BITS)
    # zeros fill up payloads, at an index that another entry may have
    live = live & (value != 0)
    tl.store(out + index, tl.load(out + index, live, 0.0) + value, live)


@triton.jit
def sum_kernel(
    out, rows, levels, stride, ends, starts, upper_at, words, low_words, k, n, ranks, spans,
    BITS: tl.constexpr, LOW: tl.constexpr, SPAN: tl.constexpr, SIZE: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """Writes the sums of all payloads' entries to SPAN·2^LOW elements of out (n,), one of `spans`, rank by rank; rows
    (ranks, stride) int32. Within one payload the indices of values other than 0 differ, so only ranks have to wait for
    each other. Further programs write to the next vector of n elements, from the next row on."""
    first_row, span = (tl.program_id(0) // spans).to(tl.int64), tl.program_id(0) % spans
    out = out + first_row * n
    rows = rows + first_row * stride
    ends = ends + first_row * words
    starts += first_row * (spans + 1) + span
    # zero the elements
    for start in range(0, SPAN << LOW, ZEROS):
        at = (span.to(tl.int64) * SPAN << LOW) + start + tl.arange(0, ZEROS)
        tl.store(out + at, 0.0, at < n)
    # add rank by rank: the same rounding on every replica
    for rank in range(ranks):
        tl.debug_barrier()  # wait for what other threads of this program have written
        own = starts + rank * (spans + 1)  # no pointer that moves: Triton 3.6 would leave it where it began
        upper, last = rows + upper_at, tl.minimum(tl.load(own + 1) + 1, words)
        for first in range(tl.load(own, span > 0, 0), last, SIZE):
            scatter_words(
                out, rows, levels, upper, upper + words, ends, first, words, low_words, k, n, span * SPAN, BITS, LOW,
                SPAN, SIZE,
            )  # fmt: skip
        rows += stride
        ends += words


@triton.jit
def nth_set_bit(word, n):
    """The place of set bit number n, from 0, in each of these words of 32 bits in int64."""
    # bisect: into the lower or the upper half, by how many bits are set in the lower
    place = tl.zeros(word.shape, tl.int64)
    for step in tl.static_range(5):
        low = set_bits((word & ((1 << (16 >> step)) - 1)).to(tl.int32))
        beyond = n >= low
        place += tl.where(beyond, 16 >> step, 0)
        word = tl.where(beyond, word >> (16 >> step), word)
        n = tl.where(beyond, n - low, n)
    return place


@triton.jit
def unpack_kernel(
    indices, found, rows, levels, stride, ends, upper_at, words, low_words, k, n, steps,
    BITS: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Unpacks SIZE of the k entries of one payload: indices (k,) below n, and to found (k,) their values or, in a
    payload without values, 1; 0 for entries that are not filled. `steps` are enough to bisect `words`."""
    program, row = tl.program_id(0) % programs_of(k, SIZE), (tl.program_id(0) // programs_of(k, SIZE)).to(tl.int64)
    rows = rows + row * stride
    ends = ends + row * words
    indices = indices + row * k
    found = found + row * k
    entry = program.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    filled = (entry < k) & (entry < tl.load(ends + words - 1))
    low, high = tl.zeros((SIZE,), tl.int64), tl.zeros((SIZE,), tl.int64) + words
    # bisect for the word of each entry, the first that ends behind it
    for _ in range(steps):
        middle = (low + high) // 2
        before = tl.load(ends + middle, filled & (middle < words), 0) <= entry
        low, high = tl.where(before & (low < high), middle + 1, low), tl.where(before, high, middle)
    # its bit, and so the upper bits of the index; then the lower bits
    upper = rows + upper_at
    word = tl.load(upper + low, filled, 0).to(tl.int64) & 0xFFFFFFFF
    bit = nth_set_bit(word, entry.to(tl.int32) - tl.load(ends + low - 1, filled & (low > 0), 0))
    index = (32 * low + bit - entry) << LOW
    if LOW > 0:
        index += lower_bits(upper + words, low_words, entry, filled, LOW)
    index = tl.where(filled, tl.minimum(index, n - 1), n - 1)
    tl.store(indices + entry, index, entry < k)
    # the value
    if BITS == 0:
        tl.store(found + entry, tl.where(filled, 1, 0).to(tl.int8), entry < k)
    else:
        value = value_of(rows, upper + words + low_words, levels, index, entry, filled, BITS)
        tl.store(found + entry, value, entry < k)
