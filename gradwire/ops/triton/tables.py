"""Where each block of a layout lies, for kernels."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.formats import Blocks
from gradwire.ops.host import to_device

KINDS = {"nearest": 0, "stochastic": 1, "sign": 2, "one bit": 3}
ELEMENTS = 2048
"""Of a program, about."""


@lru_cache(maxsize=256)
def table_of(layout: Blocks, device: torch.device) -> Tensor:
    """(3, count) int64: the first element of each block, how many it has, and the byte where its codes begin, counted
    from where the layout's codes do."""
    block, bits = layout.code.block, layout.code.bits
    rows: list[np.ndarray] = [np.empty((3, 0), np.int64)]
    start = byte = 0
    for length in layout.lengths:
        firsts = np.arange(0, length, block)
        rows.append(np.stack([start + firsts, np.minimum(block, length - firsts), byte + firsts * bits // 8]))
        start, byte = start + length, byte + -(-length * bits // 8)
    return to_device(torch.from_numpy(np.concatenate(rows, 1)), device)


def shape_of(layout: Blocks) -> tuple[int, int]:
    """Blocks of a program, and the power of two that their elements fit in."""
    width = 1 << (layout.code.block - 1).bit_length()
    return max(1, ELEMENTS // width), width
