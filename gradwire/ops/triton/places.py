# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
"""Entries with float32 values to payloads, and back, on a GPU: see `gradwire.ops.entries`."""

import triton
import triton.language as tl


@triton.jit
def pack_kernel(
    values, upper, lower, stride, indices, chosen, apart, m,
    TAKE: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes SIZE of m entries of one payload; upper and lower, int32, were zero. Their values are those of `chosen`
    (m,) or, to TAKE them, of the elements of a vector `chosen` that indices name, which become 0. Payloads are `stride`
    words apart, and what is chosen for them `apart` elements. LOW: how many bits the lower ones are."""
    program, row = tl.program_id(0) % tl.cdiv(m, SIZE), (tl.program_id(0) // tl.cdiv(m, SIZE)).to(tl.int64)
    values, upper, lower = values + row * stride, upper + row * stride, lower + row * stride
    indices, chosen = indices + row * m, chosen + row * apart
    at = program.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < m
    index = tl.load(indices + at, live, 0)
    source = chosen + (index if TAKE else at)
    tl.store(values + at, tl.load(source, live, 0.0), live)
    if TAKE:
        tl.store(source, 0.0, live)
    place = (index >> LOW) + at
    one = tl.full((SIZE,), 1, tl.int64)
    tl.atomic_or(upper + (place >> 5), (one << (place & 31)).to(tl.int32), live)
    if LOW > 0:
        first = at * LOW
        field = (index & ((1 << LOW) - 1)) << (first & 31)
        tl.atomic_or(lower + (first >> 5), field.to(tl.int32), live)
        tl.atomic_or(lower + (first >> 5) + 1, (field >> 32).to(tl.int32), live & (field >> 32 != 0))


@triton.jit
def set_bits(word):
    """How many bits are set in each of these words, 0 to 2^32 - 1 in int64."""
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101 >> 24) & 0xFF).to(tl.int32)


@triton.jit
def ends_kernel(ends, rows, stride, words, SIZE: tl.constexpr):
    """How many entries there are up to the end of each of a row's `words` upper words: ends (rows, words) int32."""
    row = tl.program_id(0).to(tl.int64)
    before = 0
    for start in range(0, words, SIZE):
        at = start + tl.arange(0, SIZE)
        counts = set_bits(tl.load(rows + row * stride + at, at < words, 0).to(tl.int64) & 0xFFFFFFFF)
        tl.store(ends + row * words + at, before + tl.cumsum(counts, 0), at < words)
        before += tl.sum(counts, 0)


@triton.jit
def entries_before(ends, word, words):
    """How many entries there are before a word; 0 behind the last, for Triton's `&` asks for both of its sides."""
    return tl.load(ends + word - 1, (word > 0) & (word < words), 0)


@triton.jit
def first_word(ends, words, zeros):
    """The first word with so many zeros before its end; `words` where there is none."""
    low, high = 0, words
    while low < high:
        middle = (low + high) // 2
        if 32 * (middle + 1) - tl.load(ends + middle) >= zeros:
            high = middle
        else:
            low = middle + 1
    return low


@triton.jit
def scatter_words(
    out, values, upper, lower, ends, first, words, low_words, k, n, zeros, LOW: tl.constexpr, SPAN: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """out[index] += value for those entries of SIZE upper words from the `first` on that have `zeros` to `zeros` + SPAN
    zeros before them. What is more than k, and what lies behind n, counts for nothing."""
    at = first + tl.arange(0, SIZE)
    word = tl.load(upper + at, at < words, 0).to(tl.int64) & 0xFFFFFFFF
    entry = tl.load(ends + at - 1, (at > 0) & (at < words), 0).to(tl.int64)
    for bit in range(32):
        is_set = ((word >> bit) & 1) == 1
        high = at.to(tl.int64) * 32 + bit - entry
        index = high << LOW
        live = is_set & (entry < k) & (high >= zeros) & (high < zeros + SPAN)
        if LOW > 0:
            place = entry * LOW
            here = place >> 5
            field = tl.load(lower + here, live, 0).to(tl.int64) & 0xFFFFFFFF
            field |= (tl.load(lower + here + 1, live & (here + 1 < low_words), 0).to(tl.int64) & 0xFFFFFFFF) << 32
            index += (field >> (place & 31)) & ((1 << LOW) - 1)
        live = live & (index < n)
        value = tl.load(values + entry, live, 0.0)
        tl.store(out + index, tl.load(out + index, live, 0.0) + value, live)
        entry += tl.where(is_set, 1, 0)


@triton.jit
def sum_kernel(
    out, rows, stride, ends, words, low_words, k, n, ranks, LOW: tl.constexpr, SPAN: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Writes to SPAN·2^LOW elements of out (n,) what the entries of all payloads there add up to, rank by rank; rows
    (ranks, stride) int32. In one payload all indices differ, so only ranks have to wait for each other. More programs
    than that write to the next vector of n elements, from the next row on."""
    programs = tl.cdiv(n, SPAN << LOW)
    first_row = (tl.program_id(0) // programs).to(tl.int64)
    out, rows, ends = out + first_row * n, rows + first_row * stride, ends + first_row * words
    zeros = tl.program_id(0) % programs * SPAN
    for part in range(1 << LOW):
        at = (zeros.to(tl.int64) << LOW) + part * SPAN + tl.arange(0, SPAN)
        tl.store(out + at, 0.0, at < n)
    for _ in range(ranks):
        tl.debug_barrier()  # what others of this program have written is there
        lower = rows + words
        values = (lower + low_words).to(tl.pointer_type(tl.float32))
        first = first_word(ends, words, zeros)
        while (first < words) & (32 * first - entries_before(ends, first, words) < zeros + SPAN):
            scatter_words(out, values, rows, lower, ends, first, words, low_words, k, n, zeros, LOW, SPAN, SIZE)
            first += SIZE
        rows += stride
        ends += words
