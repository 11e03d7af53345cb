# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
"""Kernels for the sum next = decay·old + weight·gradient."""

import triton
import triton.language as tl

HUGE: tl.constexpr = tl.constexpr(2.0**96)
"""From here on numbers count as infinite: see `gradwire.ops.reference.finite`."""


@triton.jit
def weight_of(weight, SCALED: tl.constexpr):
    """The weight: a number, or where SCALED a pointer to one."""
    if SCALED:  # noqa: SIM108 - in two branches, for only one is compiled
        number = tl.load(weight)
    else:
        number = weight
    return number


@triton.jit
def summed(old, gradient, at, live, decay, weight, HAS_OLD: tl.constexpr, HAS_GRADIENT: tl.constexpr):
    """decay·old + weight·gradient at these indices, without a gradient whose weight is 0; zeros where they are not
    `live`."""
    # weight·gradient, and then the residual
    total = tl.zeros(at.shape, tl.float32)
    if HAS_GRADIENT:
        # not read where its weight is 0: 0·NaN is NaN
        total = tl.load(gradient + at, live & (total + weight != 0), 0.0).to(tl.float32) * weight
    if HAS_OLD:
        total += tl.load(old + at, live, 0.0).to(tl.float32) * decay
    return total


@triton.jit
def note_unless_finite(x, nonfinite):
    """Sets nonfinite (1,) to NaN if an element of x is not finite, or beyond HUGE."""
    wrong = tl.where(tl.abs(x) < HUGE, 0, 1)  # 1 for NaN
    if tl.max(wrong) != 0:
        tl.store(nonfinite, float("nan"))


@triton.jit
def add_kernel(
    next, old, gradient, nonfinite, decay, weight, n,
    HAS_OLD: tl.constexpr, HAS_GRADIENT: tl.constexpr, SCALED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """`add_in` of SIZE elements."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    total = summed(old, gradient, at, at < n, decay, weight_of(weight, SCALED), HAS_OLD, HAS_GRADIENT)
    tl.store(next + at, total, at < n)
    note_unless_finite(total, nonfinite)


@triton.jit
def mask_kernel(x, other, n, SIZE: tl.constexpr):
    """`mask_zeros` of SIZE elements."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    tl.store(x + at, 0.0, (at < n) & (tl.load(other + at, at < n, 1.0) == 0))
