# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Kernels that quantise and dequantise blocks.

`table` (programs, 5) int64 has for each program its first element, how many it has, all of one part, the bytes of the
payloads where their codes and the scales of their first block begin, and how many elements of that block lie before.
PER codes that fill BYTES bytes, at most 4, are packed and unpacked together, as a *word*.
"""

import triton
import triton.language as tl

from gradwire.ops.reference import levels
from gradwire.ops.triton.hashing import hashed
from gradwire.ops.triton.sums import summed, weight_of

NEAREST: tl.constexpr = tl.constexpr(0)
STOCHASTIC: tl.constexpr = tl.constexpr(1)
SIGN: tl.constexpr = tl.constexpr(2)
ONE_BIT: tl.constexpr = tl.constexpr(3)
SHARED_EXPONENT: tl.constexpr = tl.constexpr(4)
BELOW_ONE: tl.constexpr = tl.constexpr(levels.BELOW_ONE)
"""Keeps the largest element at its level: see `gradwire.ops.reference.levels`."""
LARGEST: tl.constexpr = tl.constexpr(levels.LARGEST)
"""The largest scale in bfloat16."""
ROUNDS: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a float32, leaves it without a fraction: its lowest bits are then the whole number, in two's complement."""
BIAS: tl.constexpr = tl.constexpr(0x4B000000)
"""The bits of 2^23 in float32, whose lowest bits are those of a whole number that is added."""
HUGE_BITS: tl.constexpr = tl.constexpr(0x6F800000)
"""Those of `sums.HUGE`; those of NaN are more."""


@triton.jit
def of_program(table):
    """A program's row of the table: see above."""
    table += 5 * tl.program_id(0)
    byte = tl.load(table + 2)
    scale_byte = tl.load(table + 3)
    before = tl.load(table + 4).to(tl.int32)
    return tl.load(table), tl.load(table + 1).to(tl.int32), byte, scale_byte, before


@triton.jit
def upper_half(x):
    """The bits of x in bfloat16, halves to even: the cast of Triton's interpreter truncates. NaN is NaN whatever its
    bits, all of which a GPU sets."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def unless_infinite(x):
    """0 where x is infinite."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def means_of_signs(x, live, width):
    """The means of the negative elements of each block, and of the others."""
    others = tl.sum(tl.where((x >= 0) & live, 1, 0), 1)
    low = tl.sum(tl.minimum(x, 0.0), 1) / tl.maximum(width - others, 1).to(tl.float32)
    return low, tl.sum(tl.maximum(x, 0.0), 1) / tl.maximum(others, 1).to(tl.float32)


@triton.jit
def store_codes(
    code, payloads, first, used, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
    PER: tl.constexpr,
):  # fmt: skip
    """Packs codes (ROWS, WIDTH) of BITS bits, and writes the `used` bytes that they fill, from the `first` on."""
    parts = tl.reshape(code, (ROWS, WIDTH // PER, PER)) << (BITS * tl.arange(0, PER))[None, None, :]
    word = tl.sum(parts, 2)
    # where each word's bytes lie; a block of fewer than WIDTH elements has fewer words
    bytes_each: tl.constexpr = PER * BITS // 8
    column = tl.arange(0, WIDTH // PER)[None, :]
    byte = (tl.arange(0, ROWS)[:, None] * (BLOCK // PER) + column) * bytes_each
    left = tl.where(column < BLOCK // PER, used - byte, 0)
    # words whole, where they lie at multiples of 4 bytes; the others byte by byte
    codes = payloads + first
    if bytes_each == 4:
        whole = left >= tl.where(first % 4 == 0, 4, 1 << 30)
        tl.store((codes + byte).to(tl.pointer_type(tl.int32)), word, whole)
        left = tl.where(whole, 0, left)
    for i in tl.static_range(bytes_each):
        tl.store(codes + byte + i, ((word >> (8 * i)) & 255).to(tl.uint8), i < left)


@triton.jit
def in_steps(x, at, most, scales, row, known, word, salt, KIND: tl.constexpr, TOP: tl.constexpr):
    """Blocks x (ROWS, WIDTH) in steps, of which `most` is TOP, clipped or with noise; and the steps (ROWS,). Writes the
    scales."""
    if KIND == NEAREST:
        # the nearest code, with a scale of 16 bits
        short = upper_half(tl.minimum(tl.div_rn(most, TOP * 1.0), LARGEST))
        tl.store(scales.to(tl.pointer_type(tl.int16)) + row, short.to(tl.int16), known)
        step = (short << 16).to(tl.float32, bitcast=True)
        number = x * unless_infinite(1 / step)[:, None]
        number = tl.minimum(tl.maximum(number, -TOP), TOP)
    elif KIND == SHARED_EXPONENT:
        # a power of two, and noise that takes no whole number to another one: see `gradwire.ops.reference.levels`
        bits = ((most.to(tl.int32, bitcast=True) + 0x1FFFF) & 0x7F800000) - 0x3000000
        bits = tl.maximum(bits, 0x800000)
        tl.store(scales.to(tl.pointer_type(tl.int16)) + row, (bits >> 16).to(tl.int16), known)
        step = bits.to(tl.float32, bitcast=True)
        noise = (hashed(at, word, salt) >> 16).to(tl.float32) * 2.0**-16 + 2.0**-17
        number = x * (0x7F000000 - bits).to(tl.float32, bitcast=True)[:, None] + noise
    else:
        # a number with noise of up to one step
        tl.store(scales + row, most, known)
        step = tl.div_rn(most, TOP * 1.0)  # as it is decoded
        noise = (hashed(at, word, salt) | 1).to(tl.float32) * 2.0**-32  # odd: as many above zero as below
        number = x * unless_infinite(1 / most * (TOP * BELOW_ONE))[:, None] + noise
    return number, step


@triton.jit(do_not_specialize=["salt"])  # else Triton compiles a variant for each multiple of 16
def quantise_kernel(
    next, old, gradient, nonfinite, decay, weight, table, payloads, word, salt,
    HAS_OLD: tl.constexpr, HAS_GRADIENT: tl.constexpr, SCALED: tl.constexpr, KEEP: tl.constexpr, KIND: tl.constexpr,
    BITS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """`add_quantise` of ROWS blocks, in rows of WIDTH >= BLOCK. Noise is hashed from a `word` that counts steps and a
    `salt`."""
    first, count, byte, scale_byte, _before = of_program(table)
    row = tl.arange(0, ROWS)
    before = row * BLOCK
    known, width = before < count, tl.minimum(count - before, BLOCK)
    at = before[:, None] + tl.arange(0, WIDTH)[None, :]
    live = at < (before + width)[:, None]
    at = first + at
    x = summed(old, gradient, at, live, decay, weight_of(weight, SCALED), HAS_OLD, HAS_GRADIENT)
    # the largest magnitudes, by their bits, as which NaN is the largest
    most = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    tl.store(nonfinite + 0 * row, float("nan"), most >= HUGE_BITS)
    most = most.to(tl.float32, bitcast=True)
    scales = (payloads + scale_byte).to(tl.pointer_type(tl.float32))
    # quantise: signs with the mean magnitude
    if KIND == SIGN:
        scale = tl.sum(tl.abs(x), 1) / tl.maximum(width, 1).to(tl.float32)
        tl.store(scales + row, scale, known)
        code = tl.where((x >= 0) & live, 1, 0)
        sent = tl.where(x >= 0, scale[:, None], -scale[:, None])
    # signs with the means of negative and other elements
    elif KIND == ONE_BIT:
        low, high = means_of_signs(x, live, width)
        tl.store(scales + 2 * row, low, known)
        tl.store(scales + 2 * row + 1, high, known)
        code = tl.where((x >= 0) & live, 1, 0)
        sent = tl.where(x >= 0, high[:, None], low[:, None])
    # numbers with the largest magnitude
    else:
        number, step = in_steps(x, at, most, scales, row, known, word, salt, KIND, TOP)
        # to the nearest whole number, halves to even
        number += ROUNDS
        code = tl.where(live, number.to(tl.int32, bitcast=True) & ((1 << BITS) - 1), 0)
        sent = (number - ROUNDS) * step[:, None]
    # keep the error, and pack
    if KEEP:
        tl.store(next + at, x - sent, live)
    store_codes(code, payloads, byte, (count * BITS + 7) // 8, ROWS, WIDTH, BLOCK, BITS, PER)


@triton.jit
def spread(word, PER: tl.constexpr, BITS: tl.constexpr):
    """Each word PER times, moved so that each of its codes of BITS bits is lowest once; of 0 bits, just repeated."""
    for i in tl.static_range(5):
        if PER >> i > 1:
            word = tl.interleave(word, word >> (PER * BITS >> (i + 1)))
    return word


@triton.jit
def words_at(row, place, live, used, BYTES: tl.constexpr):
    """The words of BYTES bytes at these places of a row of which `used` bytes may be read; a row begins at a multiple
    of 4 bytes."""
    # two neighbours in memory, of which the second is read only where a word reaches into it
    here, shift = row.to(tl.pointer_type(tl.int32)) + (place >> 2), (place & 3) * 8
    low = tl.load(here, live, 0).to(tl.int64) & 0xFFFFFFFF
    reaches = live & (shift + 8 * BYTES > 32) & ((place | 3) + 1 < used)
    return (((tl.load(here + 1, reaches, 0).to(tl.int64) << 32) | low) >> shift).to(tl.uint32)


@triton.jit
def values_of(word, scales, live, KIND: tl.constexpr, BITS: tl.constexpr, TOP: tl.constexpr, PER: tl.constexpr):
    """The numbers that the codes in these words stand for, with pointers to the scales of each."""
    if KIND == NEAREST or KIND == SHARED_EXPONENT:  # noqa: PLR1714, SIM109 - Triton compiles no tuple
        step = tl.load(scales.to(tl.pointer_type(tl.int16)), live, 0).to(tl.int32) << 16
    else:
        step = tl.load(scales.to(tl.pointer_type(tl.int32)), live, 0)
    if KIND == STOCHASTIC:
        step = tl.div_rn(step.to(tl.float32, bitcast=True), TOP * 1.0).to(tl.int32, bitcast=True)
    step = spread(step, PER, 0)
    # the scale, negative where the bit is not set
    if KIND == SIGN:
        value = (step ^ ((spread(word, PER, 1) ^ 1) << 31)).to(tl.float32, bitcast=True)
    elif KIND == ONE_BIT:
        high = spread(tl.load(scales.to(tl.pointer_type(tl.int32)) + 1, live, 0), PER, 0)
        value = tl.where((spread(word, PER, 1) & 1) == 1, high, step).to(tl.float32, bitcast=True)
    # whole numbers: two's complement plus `half` is a number >= 0, which becomes a float32 in its lowest bits
    else:
        half: tl.constexpr = 1 << (BITS - 1)
        halves: tl.constexpr = half * ((1 << PER * BITS) - 1) // ((1 << BITS) - 1)
        code = spread(word ^ halves, PER, BITS) & ((1 << BITS) - 1)
        value = (code | BIAS).to(tl.float32, bitcast=True) - (2.0**23 + half)
        value *= step.to(tl.float32, bitcast=True)
    return value


@triton.jit
def dequantise_kernel(
    out, rows, stride, ranks, table, KIND: tl.constexpr, BITS: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
    SCALE_BYTES: tl.constexpr, PER: tl.constexpr, SIZE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`sum_blocks` of SIZE elements, reading AHEAD payloads at a time, a divisor of their number."""
    first, count, byte, scale_byte, before = of_program(table)
    # where this program's words and their scales lie
    bytes_each: tl.constexpr = PER * BITS // 8
    word = tl.arange(0, SIZE // PER)
    live, skew = word * PER < count, (byte % 4).to(tl.int32)
    place, used = skew + word * bytes_each, skew + (count * BITS + 7) // 8
    scale = (before + word * PER) // BLOCK * SCALE_BYTES
    # rank by rank: the same rounding on every replica
    total = tl.zeros((SIZE,), tl.float32)
    for _ in range(0, ranks, AHEAD):
        for _rank in tl.static_range(AHEAD):
            codes = words_at(rows + (byte - skew), place, live, used, bytes_each)
            total += values_of(codes, rows + scale_byte + scale, live, KIND, BITS, TOP, PER)
            rows += stride
    at = tl.arange(0, SIZE)
    tl.store(out + first + at, total, at < count)
