"""Rounding of blocks to whole numbers."""

import torch
from torch import Tensor

from gradwire.ops.formats import Code
from gradwire.ops.noise import Noise
from gradwire.ops.workspace import scratch_on

BELOW_ONE = 1 - 2.0**-21
"""Keeps the largest element at its level: two roundings up and the most noise would make 128 of 127."""
LARGEST = float(torch.finfo(torch.bfloat16).max)
"""The largest scale in bfloat16."""


def levels(part: Tensor, scales: Tensor, code: Code, noise: Noise | None) -> Tensor:
    """Blocks (rows, width) rounded to whole numbers within ±top, as float32; writes their scales (rows, 1)."""
    most = part.abs().amax(1, keepdim=True)
    # nearest: scale, round
    if code.kind == "nearest":
        scales.copy_(steps_of(most, code).clamp_(max=LARGEST))
        return (part * _unless_infinite(1 / scales.float())).clamp_(-code.top, code.top).round_()
    assert noise is not None
    # shared exponent: scale, add noise that takes no whole number to another one, round
    if code.kind == "shared exponent":
        step, inverse = _powers_of_two(most)
        scales.copy_(step)
        numbers = part * inverse
        noise.add_sixteen_bits_to(numbers)
        return numbers.round_()
    # stochastic: scale, add noise, round
    scales.copy_(most)
    numbers = part * _unless_infinite(1 / most * (code.top * BELOW_ONE))
    noise.add_to(numbers)
    return numbers.round_()


def steps_of(most: Tensor, code: Code) -> Tensor:
    """most / top, the same bits everywhere."""
    # by a number of the host's, torch on a GPU would multiply by the reciprocal
    top = scratch_on(most.device).once(("top", code.top), lambda: most.new_full((), code.top))
    return most / top


def _powers_of_two(most: Tensor) -> tuple[Tensor, Tensor]:
    """The least normal powers of two of which `most` are at most 127, and their inverses."""
    # 127 is (2 - 2^-6)·2^6: the exponent less 6, or one more, by a carry, where the mantissa is beyond 2 - 2^-6
    bits = (most.view(torch.int32) + 0x1FFFF).bitwise_and_(0xFF << 23).sub_(6 << 23).clamp_(min=1 << 23)
    return bits.view(torch.float32), ((254 << 23) - bits).view(torch.float32)


def _unless_infinite(inverse: Tensor) -> Tensor:
    """Replaces infinite inverses by 0: a block whose scale is too small to invert becomes zero."""
    return inverse.masked_fill_(inverse.isinf(), 0)
