# pyright: basic, reportMissingImports=false
"""Which elements of a layout each program of a kernel works on, and where their codes and scales lie."""

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.formats import KINDS, Blocks, Code
from gradwire.ops.host import to_device
from gradwire.ops.workspace import scratch_on

EACH = 512
"""Elements of a warp that quantises."""


def table_of(layouts: Sequence[Blocks], stride: int, each: int, device: torch.device) -> Tensor:
    """The table (programs, 5) int64 for vectors one after another and payloads `stride` bytes apart, with at most
    `each` elements of a part in a program, a multiple of 8; see `gradwire.ops.triton.codes`."""
    key = "blocks", tuple(layouts), stride, each
    return scratch_on(device).once(key, lambda: _table(layouts, stride, each, device))


def _table(layouts: Sequence[Blocks], stride: int, each: int, device: torch.device) -> Tensor:
    first, programs = 0, [np.empty((0, 5), np.int64)]
    for row, layout in enumerate(layouts):
        programs += [part + np.array([first, 0, row * stride, row * stride, 0]) for part in _parts(layout, each)]
        first += layout.numel
    return to_device(torch.from_numpy(np.concatenate(programs)), device)


def _parts(layout: Blocks, each: int) -> Iterator[np.ndarray]:
    """The table of one layout by itself, part by part."""
    code = layout.code
    start = 0
    byte = layout.codes_at
    scale = 0
    # part by part; every part's codes begin with a byte of their own
    for length in layout.lengths:
        at = np.arange(0, length, each)
        blocks, before = np.divmod(at, code.block)
        columns = (
            start + at,
            np.minimum(each, length - at),
            byte + at * code.bits // 8,
            scale + blocks * code.scale_bytes,
        )
        yield np.stack([*columns, before], 1)
        start, byte = start + length, byte + -(-length * code.bits // 8)
        scale += -(-length // code.block) * code.scale_bytes


def codes_of_word(code: Code) -> int:
    """How many codes are packed together: a power of two that divides a block, and fills whole bytes, at most 4."""
    return gcd(8 if code.bits == 3 else 32 // code.bits, code.block)


def constants_of(code: Code) -> dict[str, int]:
    """A code as constants of kernels."""
    return {
        "KIND": KINDS[code.kind], "BITS": code.bits, "TOP": code.top, "BLOCK": code.block, "PER": codes_of_word(code),
    }  # fmt: skip


def shape_of(code: Code) -> tuple[int, int, int]:
    """How many blocks a program quantises, the power of two that holds one, and the program's warps: one warp, within
    which sums and maxima are fast, unless blocks are long."""
    width = 1 << (code.block - 1).bit_length()
    warps = min(8, max(1, width // EACH))
    return max(1, EACH * warps // width), width, warps
