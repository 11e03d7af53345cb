# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""The kernel that packs entries whose values travel as levels: see `gradwire.ops.entries.Entries`."""

import triton
import triton.language as tl

from gradwire.ops.triton.codes import LARGEST, upper_half
from gradwire.ops.triton.launching import programs_of
from gradwire.ops.triton.places import GROUP, store_place


@triton.jit
def pack_levels_kernel(
    payloads, stride, upper_at, low_at, values_at, indices, chosen, sent, filled, starts, levels, source_stride, m, n,
    TAKE: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Packs those of m entries of one payload, which was zero, that share a scale, SIZE at a time. `starts` (groups +
    1,) are the numbers of the groups' first entries. `filled` (m,) numbers the entries that are not zero: others are
    not sent. To TAKE elements, `chosen` is a vector, which keeps the error; else it has values, and these as they are
    sent go to `sent`. `levels` (15,) are the 8 levels, and the 7 edges between them. All else is as in
    `pack_kernel`."""
    groups = programs_of(n, GROUP)
    group, row = tl.program_id(0) % groups, (tl.program_id(0) // groups).to(tl.int64)
    payloads = payloads + row * stride
    indices = indices + row * m
    filled = filled + row * m
    chosen, sent = chosen + row * source_stride, sent + row * source_stride
    first, last = tl.load(starts + row * (groups + 1) + group), tl.load(starts + row * (groups + 1) + group + 1)
    # scale: the largest magnitude
    largest = 0.0
    for start in range(first, last, SIZE):
        at = start + tl.arange(0, SIZE)
        source = tl.load(indices + at, at < last, 0) if TAKE else at
        largest = tl.maximum(largest, tl.max(tl.abs(tl.load(chosen + source, at < last, 0.0)), 0))
    short = upper_half(tl.minimum(largest, LARGEST))
    tl.store(payloads.to(tl.pointer_type(tl.int16)) + group, short.to(tl.int16))
    scale = (short << 16).to(tl.float32, bitcast=True)
    for start in range(first, last, SIZE):
        at = start + tl.arange(0, SIZE)
        index = tl.load(indices + at, at < last, 0)
        source = index if TAKE else at
        value = tl.load(chosen + source, at < last, 0.0)
        # the nearest level
        level = tl.zeros((SIZE,), tl.int32)
        for edge in tl.static_range(7):
            level += tl.where(tl.abs(value) < scale * tl.load(levels + 8 + edge), 1, 0)
        magnitude = scale * tl.load(levels + level)
        signed = tl.where(value == 0, 0.0, tl.where(value < 0, -magnitude, magnitude))
        # keep the error, or write what is sent
        tl.store(sent + source, value - signed if TAKE else signed, at < last)
        # pack codes and indices of all but zeros
        live = (at < last) & (value != 0)
        place = tl.load(filled + at, live, 1).to(tl.int64) - 1
        code = (level + tl.where(value < 0, 8, 0)).to(tl.int64) << (4 * (place & 7))
        tl.atomic_or(payloads + values_at + (place >> 3), code.to(tl.int32), live)
        store_place(payloads + upper_at, payloads + low_at, index, place, live, LOW)
