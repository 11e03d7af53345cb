# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
"""Casts: see `gradwire.ops.reference.casting`."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import upper_half
from gradwire.ops.triton.launching import programs_for, programs_of

SIZE = 1024
"""Elements of a program."""


@triton.jit
def cast_kernel(x, rows, n, length, stride, limit, KEEP: tl.constexpr, SIZE: tl.constexpr):
    """Casts SIZE of n elements to rows of `length`, `stride` elements from each other, clipped to ±limit; to KEEP the
    error, leaves it in x."""
    # the row and columns of this program
    programs = programs_of(length, SIZE)
    row = (tl.program_id(0) // programs).to(tl.int64)
    place = tl.program_id(0) % programs * SIZE + tl.arange(0, SIZE)
    live = (place < length) & (row * length + place < n)
    kind: tl.constexpr = rows.dtype.element_ty
    x, rows = x + row * length + place, rows + row * stride + place
    value = tl.load(x, live, 0.0)
    # clip
    held = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))
    # cast
    if kind == tl.bfloat16:
        short = upper_half(held)
        tl.store(rows.to(tl.pointer_type(tl.int16)), short.to(tl.int16), live)
        sent = (short << 16).to(tl.float32, bitcast=True)
    else:
        cast = held.to(kind)
        tl.store(rows, cast, live)
        sent = cast.to(tl.float32)
    # keep the error
    if KEEP:
        tl.store(x, value - sent, live)


def cast_parts(x: Tensor, rows: Tensor, bounds: Sequence[int], limit: float, *, keep: bool) -> None:
    """See the reference."""
    n, length = len(x), max(1, bounds[1])
    launching.launch(
        cast_kernel, programs_for(n, length) * programs_for(length, SIZE), x, rows, n, length, rows.stride(0), limit,
        KEEP=keep, SIZE=SIZE,
    )  # fmt: skip
