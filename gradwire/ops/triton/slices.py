# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
"""Kernels that select the largest elements of slices, and sum payloads of them: see `gradwire.ops.slices`.

A program works on a few neighbouring slices of one matrix, which its row of the table names: their first element, how
many they are, the length of each, `slice_stride` and `stride`, how many elements each keeps, and the number of the
first entry. A tile (slices, length), where AXIS is 1, or (length, slices) of them is held as keys, the bits of the
magnitude, which are ordered as it is.
"""

import triton
import triton.language as tl

COLUMNS: tl.constexpr = tl.constexpr(7)
"""Of the table."""
INFINITE: tl.constexpr = tl.constexpr(0x7F800000)
"""The key of infinity, and of NaN."""


@triton.jit
def row_of(table):
    """This program's row of the table."""
    row = table + tl.program_id(0).to(tl.int64) * COLUMNS
    slices, length = tl.load(row + 1).to(tl.int32), tl.load(row + 2).to(tl.int32)
    slice_stride, stride = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
    return tl.load(row), slices, length, slice_stride, stride, tl.load(row + 5).to(tl.int32), tl.load(row + 6)


@triton.jit
def read_tile(
    x, first, slices, length, slice_stride, stride, AXIS: tl.constexpr, SLICES: tl.constexpr, LENGTH: tl.constexpr
):  # fmt: skip
    """A tile of LENGTH elements of each slice, from number `first` on: where they lie, their values, and their keys,
    -1 where there is no element."""
    number, place = tl.expand_dims(tl.arange(0, SLICES), AXIS), first + tl.expand_dims(tl.arange(0, LENGTH), 1 - AXIS)
    live = (number < slices) & (place < length)
    at = number * slice_stride + place if AXIS == 1 else number + place * stride
    value = tl.load(x + at, live, 0.0)
    key = tl.minimum(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, INFINITE)
    return at, value, tl.where(live, key, -1)


@triton.jit
def first_bounds(key, AXIS: tl.constexpr, SLICES: tl.constexpr, LENGTH: tl.constexpr, GROUPS: tl.constexpr):
    """Of each slice, a key that as many elements reach as there are groups, and one that none does."""
    if AXIS == 1:
        groups = tl.reshape(key, (SLICES, LENGTH // GROUPS, GROUPS))
    else:
        groups = tl.reshape(key, (LENGTH // GROUPS, GROUPS, SLICES))
    largest = tl.max(groups, AXIS)
    return tl.maximum(tl.min(largest, AXIS), 0), tl.max(largest, AXIS) + 1


@triton.jit
def bisected(
    key, k, AXIS: tl.constexpr, SLICES: tl.constexpr, LENGTH: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """Bounds of the k-th largest key of each slice (SLICES,): k keys or more reach `low`, fewer reach `high`. The keys
    from `low` to `high` are equal, or as many as k lacks. And how many keys reach `high`."""
    low, high = first_bounds(key, AXIS, SLICES, LENGTH, GROUPS)
    above, reached = tl.zeros((SLICES,), tl.int32), tl.zeros((SLICES,), tl.int32)
    going = 1
    while going > 0:
        # count the keys that reach the middle
        middle = low + ((high - low) >> 1)
        count = tl.sum(tl.where(key >= tl.expand_dims(middle, AXIS), 1, 0), AXIS)
        enough = count >= k
        # keep the half in which the k-th largest lies
        low, reached = tl.where(enough, middle, low), tl.where(enough, count, reached)
        high, above = tl.where(enough, high, middle), tl.where(enough, above, count)
        # until one key is left, or k of them are found
        going = tl.max(tl.where((high - low > 1) & (reached != k), 1, 0), 0)
    return low, high, above


@triton.jit
def select_slices_kernel(
    x, values, indices, table, AXIS: tl.constexpr, SLICES: tl.constexpr, LENGTH: tl.constexpr, GROUPS: tl.constexpr,
    PART: tl.constexpr, MOVE: tl.constexpr,
):  # fmt: skip
    """Writes the indices of the k largest elements of each slice, ascending, PART elements of each slice at a time; to
    MOVE them also their `values`, and zeros to x. LENGTH is at most 32,768, and k at most GROUPS."""
    start, slices, length, slice_stride, stride, k, entry = row_of(table)
    x = x + start
    values = values + entry
    indices = indices + entry
    # find the k-th largest key
    _at, _value, keys = read_tile(x, 0, slices, length, slice_stride, stride, AXIS, SLICES, LENGTH)
    low, high, above = bisected(keys, k, AXIS, SLICES, LENGTH, GROUPS)
    low = tl.expand_dims(low, AXIS)
    high = tl.expand_dims(high, AXIS)
    left = tl.expand_dims(k - above, AXIS)
    # choose all above it, and the first of its equals: count both, in 16 bits each
    entries, counted = tl.expand_dims(tl.arange(0, SLICES) * k, AXIS), tl.zeros((SLICES,), tl.int32)
    for first in range(0, length, PART):
        at, value, key = read_tile(x, first, slices, length, slice_stride, stride, AXIS, SLICES, PART)
        one = tl.where(key >= high, 1, tl.where(key >= low, 1 << 16, 0))
        before = tl.expand_dims(counted, AXIS) + tl.cumsum(one, AXIS) - one
        counted += tl.sum(one, AXIS)
        equals_before = (before >> 16) & 0xFFFF
        chosen = (key >= high) | ((key >= low) & (equals_before < left))
        # write
        to = entries + (before & 0xFFFF) + tl.minimum(equals_before, left)
        place = first + tl.expand_dims(tl.arange(0, PART), 1 - AXIS) + tl.zeros_like(to)
        tl.store(indices + to, place.to(indices.dtype.element_ty), chosen)
        if MOVE:
            tl.store(values + to, value, chosen)
            tl.debug_barrier()  # other threads may still read what this one zeroes
            tl.store(x + at, 0.0, chosen)


@triton.jit
def add_slices_kernel(
    out, values, long, short, values_stride, long_stride, short_stride, longs, ranks, table, SIZE: tl.constexpr
):  # fmt: skip
    """out += value for the entries of these slices, payload by payload, of which the first `longs` have long indices.
    Indices that are too large are ignored."""
    start, slices, length, slice_stride, stride, k, entry = row_of(table)
    out += start
    for _rank in range(ranks):
        for first in range(0, slices * k, SIZE):
            own = first + tl.arange(0, SIZE)
            live, at = own < slices * k, entry + own
            index = tl.load(short + at - longs, live & (at >= longs), 0).to(tl.int32) & 0xFFFF
            index += tl.load(long + at, live & (at < longs), 0)
            live = live & (index >= 0) & (index < length)
            target = out + (own // k).to(tl.int64) * slice_stride + index.to(tl.int64) * stride
            tl.store(target, tl.load(target, live, 0.0) + tl.load(values + at, live, 0.0), live)
        # the next payload may add to what other threads have written
        tl.debug_barrier()
        values = values + values_stride
        long = long + long_stride
        short = short + short_stride
