"""Tables of the blocks of a layout, for kernels."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.formats import Blocks
from gradwire.ops.host import to_device
from gradwire.ops.workspace import scratch_on

KINDS = {"nearest": 0, "stochastic": 1, "sign": 2, "one bit": 3}
ELEMENTS = 2048
"""About those of a program."""


def table_of(layouts: tuple[Blocks, ...], stride: int, device: torch.device) -> Tensor:
    """The table (4, count) int64 for vectors one after another and payloads `stride` bytes apart: the first element of
    each block, how many it has, and the bytes where its codes and its scales begin."""
    return scratch_on(device).once(("blocks", layouts, stride), lambda: _table(layouts, stride, device))


def _table(layouts: tuple[Blocks, ...], stride: int, device: torch.device) -> Tensor:
    first, blocks = 0, [np.empty((4, 0), np.int64)]
    for row, layout in enumerate(layouts):
        blocks += [part + np.array([[first], [0], [row * stride], [row * stride]]) for part in _blocks_of(layout)]
        first += layout.numel
    return to_device(torch.from_numpy(np.concatenate(blocks, 1)), device)


def _blocks_of(layout: Blocks) -> Iterator[np.ndarray]:
    """The table of one layout by itself, part by part."""
    code, start, byte, scale = layout.code, 0, layout.codes_at, 0
    # part by part; every part's codes begin with a byte of their own
    for length in layout.lengths:
        firsts = np.arange(0, length, code.block)
        scales = scale + code.scale_bytes * np.arange(len(firsts))
        yield np.stack(
            [start + firsts, np.minimum(code.block, length - firsts), byte + firsts * code.bits // 8, scales]
        )
        start, byte, scale = start + length, byte + -(-length * code.bits // 8), scale + code.scale_bytes * len(firsts)


def shape_of(layout: Blocks) -> tuple[int, int]:
    """The number of blocks of a program, and the power of two that holds the elements of one."""
    width = 1 << (layout.code.block - 1).bit_length()
    return max(1, ELEMENTS // width), width
