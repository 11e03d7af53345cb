"""Signs and short words, packed, the first element lowest."""

import torch
from torch import Tensor

from gradwire.ops.kernels import kernels_for
from gradwire.ops.reference.bits import unpack_bits
from gradwire.ops.workspace import Workspace


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """Writes x >= 0 for each of x (n,) float32, or x > 0, into codes (ceil(n/8),) uint8."""
    kernels_for(x).pack_signs(x, codes, zero_is_plus)


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """Writes +1 or -1 for each of out's n elements from codes (ceil(n/8),)."""
    kernels_for(out).unpack_signs(codes, out)


def add_signs(rows: Tensor, out: Tensor, scratch: Workspace) -> None:
    """Writes the sum over the ranks of what `unpack_signs` would make of rows (ranks, ceil(n/8)) to out (n,), on a CPU
    no more than a tile."""
    if out.device.type != "cpu":
        plus = unpack_bits(rows).view(len(rows), -1)[:, : len(out)]
        torch.sum(plus, 0, dtype=out.dtype, out=out).mul_(2).sub_(len(rows))
        return
    other = scratch.tensor("signs", (len(out),))
    for rank, row in enumerate(rows):
        unpack_signs(row, other if rank else out)
        if rank:
            out.add_(other)


def pack_words(words: Tensor, bits: int, codes: Tensor) -> None:
    """Writes the low `bits` bits of each of words (..., k) to codes (..., k·bits/8) uint8, lowest first; k is a
    multiple of 8."""
    kernels_for(words).pack_words(words, bits, codes)


def unpack_words(codes: Tensor, bits: int, k: int) -> Tensor:
    """What `pack_words` wrote to codes (..., k·bits/8): (..., k) int64."""
    return kernels_for(codes).unpack_words(codes, bits, k)
