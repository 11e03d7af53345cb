# pyright: basic, reportMissingImports=false
"""Entries to payloads, and back, on a GPU: see `gradwire.ops.entries.Entries`."""

import triton
import triton.language as tl


@triton.jit
def pack_kernel(values, counts, low, indices, chosen, m, SIZE: tl.constexpr):
    """Writes SIZE of m entries; counts (blocks,) int32 were zero."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    live = at < m
    index = tl.load(indices + at, live, 0)
    tl.store(values + at, tl.load(chosen + at, live, 0.0), live)
    tl.store(low + at, (index & 0xFFFF).to(tl.int16), live)
    tl.atomic_add(counts + (index >> 16), 1, live)


@triton.jit
def scatter_kernel(out, values, counts, low, k, blocks, n, sign, SIZE: tl.constexpr):
    """out[index] += sign·value for SIZE entries of one payload, whose indices are all different; what is left of its
    room, and what lies behind n, counts for nothing."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    end = 0
    block = tl.zeros((SIZE,), tl.int64)
    for i in range(blocks):
        end += tl.load(counts + i)
        block += tl.where(at >= end, 1, 0)
    index = (block << 16) + (tl.load(low + at, at < k, 0).to(tl.int64) & 0xFFFF)
    live = (at < k) & (at < end) & (index < n)
    value = tl.load(values + at, live, 0.0)
    tl.store(out + index, tl.load(out + index, live, 0.0) + sign * value, live)
