"""Rounding of blocks to whole numbers."""

import torch
from torch import Tensor

from gradwire.ops.formats import Code
from gradwire.ops.noise import Noise

BELOW_ONE = 1 - 2.0**-21
"""Keeps the largest element at its level: two roundings up and the most noise would make 128 of 127."""
LARGEST = float(torch.finfo(torch.bfloat16).max)
"""The largest scale of `nearest` codes."""


def levels(part: Tensor, scales: Tensor, code: Code, noise: Noise | None) -> Tensor:
    """Blocks (rows, width) rounded to whole numbers within ±top, as float32; writes their scales (rows, 1)."""
    most = part.abs().amax(1, keepdim=True)
    # nearest: scale, round
    if code.kind == "nearest":
        scales.copy_((most / code.top).clamp_(max=LARGEST))
        return (part * _unless_infinite(1 / scales.float())).clamp_(-code.top, code.top).round_()
    # stochastic: scale, add noise, round
    scales.copy_(most)
    numbers = part * _unless_infinite(1 / most * (code.top * BELOW_ONE))
    assert noise is not None
    noise.add_to(numbers)
    return numbers.round_()


def _unless_infinite(inverse: Tensor) -> Tensor:
    """Replaces infinite inverses by 0: a block whose scale is too small to invert becomes zero."""
    return inverse.masked_fill_(inverse.isinf(), 0)
