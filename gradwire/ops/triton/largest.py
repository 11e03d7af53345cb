# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
"""Kernels that select the k largest magnitudes: see `gradwire.ops.triton.selecting`.

Vectors are cut in tiles. Each tile lists its elements from a bound on: their keys, which are the bits of the magnitude,
and their places in the tile. All that follows reads these lists: the three digits of the k-th largest key are found by
counting, and then all elements above it, and the first of its equals, are written in order.

A program that reads lists has TILES of them, and reads SLOTS elements of each at a time.

`state` is STATE numbers for each vector: the bound, how many elements are listed, and for 0 to 3 known digits of the
k-th largest key what they are, and how many of the keys that begin with them are chosen; then how many keys have each
first digit, second and third.
"""

import triton
import triton.language as tl

from gradwire.ops.triton.launching import programs_of
from gradwire.ops.triton.sums import note_unless_finite, summed, weight_of

TILE: tl.constexpr = tl.constexpr(2048)
"""Elements of a tile."""
BOUND: tl.constexpr = tl.constexpr(0)
LISTED: tl.constexpr = tl.constexpr(1)
KNOWN: tl.constexpr = tl.constexpr(2)
COUNTS: tl.constexpr = tl.constexpr(16)
DIGITS: tl.constexpr = tl.constexpr(2048)
"""Values of a digit, at most."""
STATE: tl.constexpr = tl.constexpr(16 + 3 * 2048)


@triton.jit
def key_of(x):
    """The bits of these magnitudes, which are ordered as they are; 0 for NaN."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(bits > 0x7F800000, 0, bits)


@triton.jit
def sample_kernel(
    old, gradient, decay, weight, n, k, step, rank, state,
    HAS_OLD: tl.constexpr, HAS_GRADIENT: tl.constexpr, SCALED: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Sets a vector's `state`. Every step-th element of the sum is a sample; the bound has the upper bits of its
    `rank`-th largest key, and is at least 1, for zeros are listed only where all else is too little."""
    row = tl.program_id(0).to(tl.int64)
    state += row * STATE
    for digit in tl.static_range(3):
        tl.store(state + COUNTS + digit * DIGITS + tl.arange(0, DIGITS), 0)
    # sample
    at = tl.arange(0, SAMPLE).to(tl.int64) * step
    x = summed(old, gradient, row * n + at, at < n, decay, weight_of(weight, SCALED), HAS_OLD, HAS_GRADIENT)
    keys = tl.where(at < n, key_of(x), -1)
    # search for the upper 20 of its 31 bits, two at a time: three counts of 20 bits in a number
    bound = 0
    for number in range(10):
        unit = 1 << (29 - 2 * number)
        counts = tl.where(keys >= bound + unit, tl.full(keys.shape, 1, tl.int64), 0)
        counts += tl.where(keys >= bound + 2 * unit, 1 << 20, 0)
        counts += tl.where(keys >= bound + 3 * unit, tl.full(keys.shape, 1 << 40, tl.int64), 0)
        found = tl.sum(counts, 0)
        for _ in tl.static_range(3):
            bound += tl.where((found & 0xFFFFF) >= rank, unit, 0)
            found >>= 20
    tl.store(state + BOUND, tl.maximum(bound, 1))
    tl.store(state + LISTED, 0)
    tl.store(state + KNOWN, 0)
    tl.store(state + KNOWN + 1, k)


@triton.jit
def list_tile(x, live, bound, keys, places):
    """Lists the elements x (TILE,) of a tile whose keys reach the bound; returns how many they are."""
    key = key_of(x)
    listed = live & (key >= bound)
    at = tl.cumsum(tl.where(listed, 1, 0), 0) - 1
    tl.store(keys + at, key, listed)
    tl.store(places + at, tl.arange(0, TILE).to(tl.int16), listed)
    return tl.sum(tl.where(listed, 1, 0), 0)


@triton.jit
def list_kernel(x, state, keys, places, counts, n):
    """Lists one tile of a vector of n elements; `counts` says how many elements each tile lists."""
    tiles = programs_of(n, TILE)
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0).to(tl.int64)
    state += row * STATE
    at = tile % tiles * TILE + tl.arange(0, TILE)
    value = tl.load(x + row * n + at, at < n, 0.0)
    count = list_tile(value, at < n, tl.load(state + BOUND), keys + tile * TILE, places + tile * TILE)
    tl.store(counts + tile, count)
    tl.atomic_add(state + LISTED, count)


@triton.jit
def add_list_kernel(
    next, old, gradient, nonfinite, decay, weight, n, state, keys, places, counts, zeros, words,
    HAS_OLD: tl.constexpr, HAS_GRADIENT: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """`add_kernel` of one tile, which it lists; it also writes zeros to the `words` <= n words of `zeros`, int32."""
    tile = tl.program_id(0).to(tl.int64)
    at = tile * TILE + tl.arange(0, TILE)
    total = summed(old, gradient, at, at < n, decay, weight_of(weight, SCALED), HAS_OLD, HAS_GRADIENT)
    tl.store(next + at, total, at < n)
    tl.store(zeros + at, 0, at < words)
    note_unless_finite(total, nonfinite)
    # list
    count = list_tile(total, at < n, tl.load(state + BOUND), keys + tile * TILE, places + tile * TILE)
    tl.store(counts + tile, count)
    tl.atomic_add(state + LISTED, count)


@triton.jit
def tiles_of(n, TILES: tl.constexpr):
    """Of a program that reads lists: the vector, and its tiles (TILES,), of which some may be behind the last; the
    first of these among those of all vectors; and which are tiles of this vector."""
    tiles = programs_of(n, TILE)
    programs = programs_of(tiles, TILES)
    row = (tl.program_id(0) // programs).to(tl.int64)
    tile = tl.program_id(0) % programs * TILES + tl.arange(0, TILES)
    return row, row * tiles + tile, tile, tile < tiles


@triton.jit
def read_lists(keys, tile, count, start, SLOTS: tl.constexpr):
    """Where the elements number `start` to `start` + SLOTS of these tiles' lists are, and their keys; -1 behind the
    end of a list."""
    slot = start + tl.arange(0, SLOTS)[None, :]
    at = tile[:, None] * TILE + slot
    return at, tl.load(keys + at, slot < count[:, None], -1)


@triton.jit
def next_known(state, NUMBER: tl.constexpr):
    """The first NUMBER digits of the k-th largest key, and how many of the keys that begin with them are chosen, by
    how many keys have each digit number NUMBER - 1."""
    BITS: tl.constexpr = 11 if NUMBER == 1 else 10
    before, left = tl.load(state + KNOWN + 2 * NUMBER - 2), tl.load(state + KNOWN + 2 * NUMBER - 1)
    # from the largest digit on, count until there are enough
    digits = (1 << BITS) - 1 - tl.arange(0, 1 << BITS)
    counts = tl.load(state + COUNTS + (NUMBER - 1) * DIGITS + digits)
    larger = tl.cumsum(counts, 0) < left
    known = (before << BITS) | ((1 << BITS) - 1 - tl.sum(tl.where(larger, 1, 0), 0))
    left -= tl.sum(tl.where(larger, counts, 0), 0)
    # for the kernels that follow
    tl.store(state + KNOWN + 2 * NUMBER, known)
    tl.store(state + KNOWN + 2 * NUMBER + 1, left)
    return known, left


@triton.jit
def digits_kernel(
    x, state, keys, places, counts, n, k, NUMBER: tl.constexpr, TILES: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Counts the values of digit number NUMBER among the keys that begin with the digits known of the k-th largest.
    The first, if fewer than k are listed, lists all elements before."""
    BITS: tl.constexpr = 11 if NUMBER == 0 else 10
    SHIFT: tl.constexpr = 20 - 10 * NUMBER
    row, tile, _own, live = tiles_of(n, TILES)
    state += row * STATE
    known = 0
    if NUMBER > 0:
        known, _left = next_known(state, NUMBER)
    elif tl.load(state + LISTED) < k:
        first, tiles = tl.program_id(0) % programs_of(programs_of(n, TILE), TILES) * TILES, programs_of(n, TILE)
        for number in range(first, tl.minimum(first + TILES, tiles)):
            begin = (row * tiles + number) * TILE
            element = begin - row * tiles * TILE + tl.arange(0, TILE)
            value = tl.load(x + row * n + element, element < n, 0.0)
            listed = list_tile(value, element < n, 0, keys + begin, places + begin)
            tl.store(counts + row * tiles + number, listed)
        tl.debug_barrier()  # wait for what other threads of this program have written
    # count
    count = tl.load(counts + tile, live, 0)
    numbers = tl.zeros((1 << BITS,), tl.int32)
    for start in range(0, tl.max(count, 0), SLOTS):
        _at, key = read_lists(keys, tile, count, start, SLOTS)
        counted = (key >> (SHIFT + BITS)) == known
        digit = (key >> SHIFT) & ((1 << BITS) - 1)
        numbers += tl.histogram(
            tl.reshape(digit, (TILES * SLOTS,)), 1 << BITS, tl.reshape(counted, (TILES * SLOTS,))
        )  # fmt: skip
    tl.atomic_add(state + COUNTS + NUMBER * DIGITS + tl.arange(0, 1 << BITS), numbers, numbers > 0)


@triton.jit
def chosen_kernel(state, keys, counts, sizes, n, TILES: tl.constexpr, SLOTS: tl.constexpr):
    """Counts the elements of each tile above the k-th largest key, and in the upper 32 bits those equal to it."""
    row, tile, _own, live = tiles_of(n, TILES)
    kth, _left = next_known(state + row * STATE, 3)
    count = tl.load(counts + tile, live, 0)
    # count, list by list
    above, equal = tl.zeros((TILES,), tl.int32), tl.zeros((TILES,), tl.int32)
    for start in range(0, tl.max(count, 0), SLOTS):
        _at, key = read_lists(keys, tile, count, start, SLOTS)
        above += tl.sum(tl.where(key > kth, 1, 0), 1)
        equal += tl.sum(tl.where(key == kth, 1, 0), 1)
    tl.store(sizes + tile, above.to(tl.int64) | (equal.to(tl.int64) << 32), live)


@triton.jit
def write_kernel(state, keys, places, counts, ends, indices, n, k, TILES: tl.constexpr, SLOTS: tl.constexpr):
    """Writes the indices (k,) of the chosen elements, those above the k-th largest key and the first of its equals;
    `ends` are the sums of `sizes` up to the end of each tile."""
    row, tile, own, live = tiles_of(n, TILES)
    state, indices = state + row * STATE, indices + row * k
    kth, left = tl.load(state + KNOWN + 6), tl.load(state + KNOWN + 7)
    # what tiles before these have
    before = tl.load(ends + tile - 1, live & (own > 0), 0)
    above, equal = (before & 0xFFFFFFFF).to(tl.int32)[:, None], (before >> 32).to(tl.int32)[:, None]
    # number the elements, tile by tile
    count = tl.load(counts + tile, live, 0)
    for start in range(0, tl.max(count, 0), SLOTS):
        at, key = read_lists(keys, tile, count, start, SLOTS)
        is_above, is_equal = tl.where(key > kth, 1, 0), tl.where(key == kth, 1, 0)
        above_here, equal_here = above + tl.cumsum(is_above, 1) - is_above, equal + tl.cumsum(is_equal, 1) - is_equal
        chosen = (key > kth) | ((key == kth) & (equal_here < left))
        index = own[:, None].to(tl.int64) * TILE + tl.load(places + at, chosen, 0)
        tl.store(indices + above_here + tl.minimum(equal_here, left), index, chosen)
        above += tl.sum(is_above, 1)[:, None]
        equal += tl.sum(is_equal, 1)[:, None]
