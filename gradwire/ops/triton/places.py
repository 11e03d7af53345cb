# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
"""Entries with float32 values to payloads, and back, on a GPU: see `gradwire.ops.entries`."""

import triton
import triton.language as tl


@triton.jit
def pack_kernel(values, upper, lower, indices, chosen, m, LOW: tl.constexpr, SIZE: tl.constexpr):
    """Writes SIZE of m entries; upper and lower, int32, were zero. LOW: how many bits the lower ones are."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < m
    index = tl.load(indices + at, live, 0)
    tl.store(values + at, tl.load(chosen + at, live, 0.0), live)
    place = (index >> LOW) + at
    one = tl.full((SIZE,), 1, tl.int64)
    tl.atomic_or(upper + (place >> 5), (one << (place & 31)).to(tl.int32), live)
    if LOW > 0:
        first = at * LOW
        field = (index & ((1 << LOW) - 1)) << (first & 31)
        tl.atomic_or(lower + (first >> 5), field.to(tl.int32), live)
        tl.atomic_or(lower + (first >> 5) + 1, (field >> 32).to(tl.int32), live & (field >> 32 != 0))


@triton.jit
def count_kernel(counts, rows, stride, words, SIZE: tl.constexpr):
    """How many bits are set in each of `words` words of a row: counts (rows, words) int32."""
    row = tl.program_id(0) // tl.cdiv(words, SIZE)
    at = tl.program_id(0) % tl.cdiv(words, SIZE) * SIZE + tl.arange(0, SIZE)
    word = tl.load(rows + row.to(tl.int64) * stride + at, at < words, 0).to(tl.int64) & 0xFFFFFFFF
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = (word * 0x01010101 >> 24) & 0xFF
    tl.store(counts + row.to(tl.int64) * words + at, word.to(tl.int32), at < words)


@triton.jit
def scatter_kernel(
    out, values, upper, lower, ends, words, low_words, k, n, LOW: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """out[index] += value for the entries of one payload that SIZE of its `words` upper words hold, whose indices are
    all different; ends (words,) says how many there are up to each word's end. What is more than k, and what lies
    behind n, counts for nothing."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    word = tl.load(upper + at, at < words, 0).to(tl.int64) & 0xFFFFFFFF
    entry = tl.load(ends + at - 1, (at > 0) & (at < words), 0).to(tl.int64)
    for bit in range(32):
        is_set = ((word >> bit) & 1) == 1
        index = (at.to(tl.int64) * 32 + bit - entry) << LOW
        live = is_set & (entry < k)
        if LOW > 0:
            first = entry * LOW
            here = first >> 5
            field = tl.load(lower + here, live, 0).to(tl.int64) & 0xFFFFFFFF
            field |= (tl.load(lower + here + 1, live & (here + 1 < low_words), 0).to(tl.int64) & 0xFFFFFFFF) << 32
            index += (field >> (first & 31)) & ((1 << LOW) - 1)
        live = live & (index < n)
        value = tl.load(values + entry, live, 0.0)
        tl.store(out + index, tl.load(out + index, live, 0.0) + value, live)
        entry += tl.where(is_set, 1, 0)
