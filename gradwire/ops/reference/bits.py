"""Codes of 1, 2, 3, 4 or 8 bits, packed, the first element lowest."""

import torch
from torch import Tensor

from gradwire.ops.bits import pack_signs, unpack_signs

__all__ = ["pack_codes", "pack_signs", "unpack_codes", "unpack_signs"]


def pack_codes(numbers: Tensor, codes: Tensor, bits: int) -> None:
    """Writes numbers (n,) int8, in two's complement of 2, 3, 4 or 8 bits, to codes (ceil(n·bits/8),) uint8."""
    if bits == 8:
        codes.view(torch.int8).copy_(numbers)
        return
    n, gap = len(numbers), 8 - bits
    padded = torch.zeros(-(-n // 8) * 8, dtype=torch.int8, device=numbers.device)
    padded[:n] = numbers
    v = padded.view(torch.int64).bitwise_and_(_ones(bits, 8))
    for times in (1, 2, 4):  # neighbours move together, then pairs, then fours
        v = (v | v >> times * gap).bitwise_and_(_ones(2 * times * bits, 16 * times))
    codes.copy_(v.view(torch.uint8).view(-1, 8)[:, :bits].reshape(-1)[: len(codes)])


def unpack_codes(codes: Tensor, numbers: Tensor, bits: int) -> None:
    """What `pack_codes` wrote, to numbers (n,) int8."""
    if bits == 8:
        numbers.copy_(codes.view(torch.int8))
        return
    n, gap = len(numbers), 8 - bits
    padded = torch.zeros(-(-n // 8) * bits, dtype=torch.uint8, device=codes.device)
    padded[: len(codes)] = codes
    room = torch.zeros(-(-n // 8), 8, dtype=torch.uint8, device=codes.device)
    room[:, :bits] = padded.view(-1, bits)
    v = room.view(torch.int64)
    for times in (4, 2, 1):
        v = (v | v << times * gap).bitwise_and_(_ones(times * bits, 8 * times))
    signs = v & _ones(1, 8) << bits - 1
    v = v | signs * ((1 << 9 - bits) - 2)  # fills the bits above a set sign
    numbers.copy_(v.view(torch.int8).view(-1)[:n])


def _ones(low: int, width: int) -> int:
    """`low` ones in every `width` bits of 64."""
    return sum(((1 << low) - 1) << at for at in range(0, 64, width))
