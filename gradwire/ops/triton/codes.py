# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
"""Kernels that quantise and dequantise blocks. A program works on ROWS blocks of at most WIDTH elements.

`table` (4, count) int64 has for each block its first element, how many it has, and the bytes of the payloads where its
codes and its scales begin.
"""

import triton
import triton.language as tl

from gradwire.ops.triton.sums import note_unless_finite, summed, weight_of

NEAREST: tl.constexpr = tl.constexpr(0)
STOCHASTIC: tl.constexpr = tl.constexpr(1)
SIGN: tl.constexpr = tl.constexpr(2)
ONE_BIT: tl.constexpr = tl.constexpr(3)
BELOW_ONE: tl.constexpr = tl.constexpr(1 - 2.0**-21)
"""Keeps the largest element at its level: see `gradwire.ops.reference.levels`."""
LARGEST: tl.constexpr = tl.constexpr(3.3895313892515355e38)
"""The largest bfloat16."""
ROUNDS: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a float32 and subtracted again, leaves it without a fraction."""


@triton.jit
def to_nearest(x):
    """The nearest whole number of |x| < 2^22, halves to even."""
    return (x + ROUNDS) - ROUNDS


@triton.jit
def upper_half(x):
    """The bits of x in bfloat16, halves to even: the cast of Triton's interpreter truncates."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def unless_infinite(x):
    """0 where x is infinite."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def blocks_of_program(table, count, ROWS: tl.constexpr):
    """The numbers of a program's blocks, which of them exist, and their first element, width and first byte of
    codes."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = row < count
    start, width = tl.load(table + row, known, 0), tl.load(table + count + row, known, 0)
    return row, known, start, width, tl.load(table + 2 * count + row, known, 0)


@triton.jit
def elements_of_blocks(start, width, WIDTH: tl.constexpr):
    """The indices (ROWS, WIDTH) of the elements of a program's blocks, and which exist."""
    column = tl.arange(0, WIDTH)[None, :]
    return start[:, None] + column, column < width[:, None]


@triton.jit
def means_of_signs(x, live, width):
    """The means of the negative elements of each block, and of the others."""
    others = tl.sum(tl.where((x >= 0) & live, 1, 0), 1)
    low = tl.sum(tl.minimum(x, 0.0), 1) / tl.maximum(width - others, 1).to(tl.float32)
    return low, tl.sum(tl.maximum(x, 0.0), 1) / tl.maximum(others, 1).to(tl.float32)


@triton.jit
def scales_of(payloads, table, count, row, known):
    """Pointers to the scales of these blocks; looked up when they are needed, for they take registers."""
    return (payloads + tl.load(table + 3 * count + row, known, 0)).to(tl.pointer_type(tl.float32))


@triton.jit
def store_codes(code, codes, byte, width, ROWS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr):
    """Packs codes (ROWS, WIDTH) of BITS bits: eight of them fill BITS bytes."""
    words = tl.reshape(code.to(tl.int64), (ROWS, WIDTH // 8, 8)) << (BITS * tl.arange(0, 8)).to(tl.int64)[None, None, :]
    word = tl.sum(words, 2)
    place = BITS * tl.arange(0, WIDTH // 8)[None, :]
    used = (width[:, None] * BITS + 7) // 8
    for i in tl.static_range(BITS):
        tl.store(codes + byte[:, None] + place + i, ((word >> (8 * i)) & 255).to(tl.uint8), place + i < used)


@triton.jit(do_not_specialize=["salt"])  # else Triton compiles a variant for each multiple of 16
def quantise_kernel(
    next, old, gradient, nonfinite, decay, weight, table, count, payloads, word, salt,
    HAS_OLD: tl.constexpr, HAS_GRADIENT: tl.constexpr, SCALED: tl.constexpr, KEEP: tl.constexpr, KIND: tl.constexpr,
    BITS: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """`add_quantise` of ROWS blocks. Noise is hashed from a `word` that counts steps and a `salt`."""
    row, known, start, width, byte = blocks_of_program(table, count, ROWS)
    at, live = elements_of_blocks(start, width, WIDTH)
    x = summed(old, gradient, at, live, decay, weight_of(weight, SCALED), HAS_OLD, HAS_GRADIENT)
    note_unless_finite(x, nonfinite)
    # quantise: signs with the mean magnitude
    if KIND == SIGN:
        scale = tl.sum(tl.abs(x), 1) / tl.maximum(width, 1).to(tl.float32)
        note_unless_finite(scale, nonfinite)
        tl.store(scales_of(payloads, table, count, row, known), scale, known)
        code = tl.where((x >= 0) & live, 1, 0)
        sent = tl.where(x >= 0, scale[:, None], -scale[:, None])
    # signs with the means of negative and other elements
    elif KIND == ONE_BIT:
        low, high = means_of_signs(x, live, width)
        note_unless_finite(low, nonfinite)
        note_unless_finite(high, nonfinite)
        scales = scales_of(payloads, table, count, row, known)
        tl.store(scales, low, known)
        tl.store(scales + 1, high, known)
        code = tl.where((x >= 0) & live, 1, 0)
        sent = tl.where(x >= 0, high[:, None], low[:, None])
    # numbers with the largest magnitude
    else:
        most = tl.max(tl.abs(x), 1)
        if KIND == NEAREST:
            short = upper_half(tl.minimum(most / TOP, LARGEST))
            scales = scales_of(payloads, table, count, row, known).to(tl.pointer_type(tl.int16))
            tl.store(scales, short.to(tl.int16), known)
            step = (short << 16).to(tl.float32, bitcast=True)
            number = x * unless_infinite(1 / step)[:, None]
            number = tl.minimum(tl.maximum(number, -TOP), TOP)
        else:
            tl.store(scales_of(payloads, table, count, row, known), most, known)
            step = most / TOP
            seed = (tl.load(word) << 32) + salt
            noise = tl.rand(seed, at.to(tl.int32)) - 0.5
            number = x * unless_infinite(1 / most * (TOP * BELOW_ONE))[:, None] + noise
        number = to_nearest(number)
        sent = number * step[:, None]
        code = tl.where(live, number.to(tl.int32) & ((1 << BITS) - 1), 0)
    # keep the error, and pack
    if KEEP:
        tl.store(next + at, x - sent, live)
    store_codes(code, payloads, byte, width, ROWS, WIDTH, BITS)


@triton.jit
def dequantise_kernel(
    out, rows, stride, ranks, table, count, KIND: tl.constexpr, BITS: tl.constexpr,
    TOP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """`decode_blocks` of ROWS blocks."""
    # find the blocks
    row, known, start, width, byte = blocks_of_program(table, count, ROWS)
    column = tl.arange(0, WIDTH)
    live = column[None, :] < width[:, None]
    used = (width[:, None] * BITS + 7) // 8
    place, shift = (column * BITS // 8)[None, :], (column * BITS % 8)[None, :]
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    # rank by rank: the same rounding on every replica
    for _ in range(ranks):
        # unpack
        codes, scales = rows + byte[:, None] + place, scales_of(rows, table, count, row, known)
        code = tl.load(codes, live, 0).to(tl.int32)
        if BITS == 3:  # a code may lie across two bytes
            code += tl.load(codes + 1, live & (place + 1 < used), 0).to(tl.int32) << 8
        code = (code >> shift) & ((1 << BITS) - 1)
        # dequantise and add
        if KIND == SIGN:
            scale = tl.load(scales, known, 0.0)[:, None]
            total += tl.where(code == 1, scale, -scale)
        elif KIND == ONE_BIT:
            low = tl.load(scales, known, 0.0)[:, None]
            high = tl.load(scales + 1, known, 0.0)[:, None]
            total += tl.where(code == 1, high, low)
        else:
            if KIND == NEAREST:
                step = tl.load(scales.to(tl.pointer_type(tl.bfloat16)), known, 0.0).to(tl.float32)
            else:
                step = tl.load(scales, known, 0.0) / TOP
            number = (code ^ (1 << (BITS - 1))) - (1 << (BITS - 1))
            total += number.to(tl.float32) * step[:, None]
        rows += stride
    tl.store(out + start[:, None] + column[None, :], total, live)
