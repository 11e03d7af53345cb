"""Packing and unpacking of signs, codes of 2, 3, 4 or 8 bits, and short words, the first element lowest."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.workspace import Workspace, scratch_on

_EIGHT_BITS = 0x0102_0408_1020_4080
"""As a factor, moves bit 0 of each of eight bytes to its place in the top byte."""


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """Writes x >= 0 for each of x (n,) float32, or x > 0, into codes (ceil(n/8),) uint8, first element lowest."""
    if x.device.type == "cpu":
        plus = (np.greater_equal if zero_is_plus else np.greater)(x.numpy(), 0)
        codes.copy_(torch.from_numpy(np.packbits(plus, bitorder="little")))
        return
    # a GPU: compare, then pack eight bits at a time
    bits = torch.zeros(8 * len(codes), dtype=torch.bool, device=x.device)
    (torch.ge if zero_is_plus else torch.gt)(x, 0, out=bits[: len(x)])
    pack_bits(bits, codes)


def pack_bits(bits: Tensor, codes: Tensor) -> None:
    """Writes bits (..., 8·m) bool to codes (..., m) uint8."""
    gathered = bits.view(torch.int64).mul(_EIGHT_BITS)
    codes.copy_(gathered.view(torch.uint8)[..., 7::8])


def unpack_bits(codes: Tensor) -> Tensor:
    """The inverse of `pack_bits`: all bits of codes (..., m), in one vector bool."""
    return torch.index_select(_bit_table(codes.device), 0, codes.int().reshape(-1)).view(-1)


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """Writes +1 or -1 for each of out's n elements from codes (ceil(n/8),)."""
    _lookup(_sign_table(codes.device), codes, out)


def add_signs(
    rows: Tensor, out: Tensor, scratch: Workspace, unpack: Callable[[Tensor, Tensor], None] = unpack_signs
) -> None:
    """Writes the sums over the ranks of the signs +1 and -1 in rows (ranks, ceil(n/8)) to out (n,), on a CPU no more
    than a tile."""
    # a GPU: count the set bits
    if out.device.type != "cpu":
        plus = unpack_bits(rows).view(len(rows), -1)[:, : len(out)]
        torch.sum(plus, 0, dtype=out.dtype, out=out).mul_(2).sub_(len(rows))
        return
    # a CPU: rank by rank
    other = scratch.tensor("signs", (len(out),))
    for rank, row in enumerate(rows):
        unpack(row, other if rank else out)
        if rank:
            out.add_(other)


def pack_codes(numbers: Tensor, codes: Tensor, bits: int) -> None:
    """Writes numbers (n,) int8, in two's complement of 2, 3, 4 or 8 bits, to codes (ceil(n·bits/8),) uint8."""
    if bits == 8:
        codes.view(torch.int8).copy_(numbers)
        return
    n, gap = len(numbers), 8 - bits
    # eight numbers in a word of 64 bits
    padded = torch.zeros(-(-n // 8) * 8, dtype=torch.int8, device=numbers.device)
    padded[:n] = numbers
    v = padded.view(torch.int64).bitwise_and_(_ones(bits, 8))
    # close the gaps between them
    for times in (1, 2, 4):  # neighbours move together, then pairs, then fours
        v = (v | v >> times * gap).bitwise_and_(_ones(2 * times * bits, 16 * times))
    codes.copy_(v.view(torch.uint8).view(-1, 8)[:, :bits].reshape(-1)[: len(codes)])


def unpack_codes(codes: Tensor, numbers: Tensor, bits: int) -> None:
    """Writes the numbers that `pack_codes` packed to numbers (n,) int8."""
    if bits == 8:
        numbers.copy_(codes.view(torch.int8))
        return
    n, gap = len(numbers), 8 - bits
    padded = torch.zeros(-(-n // 8) * bits, dtype=torch.uint8, device=codes.device)
    padded[: len(codes)] = codes
    spread = torch.zeros(-(-n // 8), 8, dtype=torch.uint8, device=codes.device)
    spread[:, :bits] = padded.view(-1, bits)
    v = spread.view(torch.int64)
    # open gaps between eight codes of a word of 64 bits: fours move, then pairs, then neighbours
    for times in (4, 2, 1):
        v = (v | v << times * gap).bitwise_and_(_ones(times * bits, 8 * times))
    # two's complement: a set sign fills the bits above it
    signs = v & _ones(1, 8) << bits - 1
    v = v | signs * ((1 << 9 - bits) - 2)
    numbers.copy_(v.view(torch.int8).view(-1)[:n])


def pack_words(words: Tensor, bits: int, codes: Tensor) -> None:
    """Writes the low `bits` bits of each of words (..., k) to codes (..., k·bits/8) uint8, lowest first; k is a
    multiple of 8."""
    # one bit per element, then eight to a byte
    spread = words.to(torch.int32).unsqueeze(-1) >> torch.arange(bits, dtype=torch.int32, device=words.device) & 1
    weights = 1 << torch.arange(8, dtype=torch.int32, device=words.device)
    codes.copy_((spread.flatten(-2).unflatten(-1, (-1, 8)) * weights).sum(-1))


def unpack_words(codes: Tensor, bits: int, k: int) -> Tensor:
    """The words (..., k) int64 that `pack_words` packed to codes (..., k·bits/8)."""
    # one bit per element, then `bits` to a word
    spread = codes.unsqueeze(-1) >> torch.arange(8, device=codes.device, dtype=torch.uint8) & 1
    weights = 1 << torch.arange(bits, dtype=torch.int32, device=codes.device)
    return (spread.flatten(-2).unflatten(-1, (k, bits)) * weights).sum(-1)


def _ones(low: int, width: int) -> int:
    """`low` ones in every `width` bits of 64."""
    return sum(((1 << low) - 1) << at for at in range(0, 64, width))


def _lookup(table: Tensor, codes: Tensor, out: Tensor) -> None:
    width = table.shape[1]
    # the last code has fewer elements
    if out.numel() % width:
        out.copy_(table[codes.int()].view(-1)[: out.numel()].view_as(out))
    elif out.device.type == "cpu":  # mode="clip" spares numpy a buffer, and is twice as fast as torch
        np.take(table.numpy(), codes.numpy(), axis=0, out=out.numpy().reshape(-1, width), mode="clip")
    else:
        torch.index_select(table, 0, codes.int(), out=out.view(-1, width))


def _sign_table(device: torch.device) -> Tensor:
    return scratch_on(device).once("signs", lambda: _bit_table(device).float().mul_(2).sub_(1))


def _bit_table(device: torch.device) -> Tensor:
    def bits() -> Tensor:
        byte = torch.arange(256, dtype=torch.int64, device="cpu")
        return to_device((byte[:, None] >> byte[:8] & 1).bool(), device)

    return scratch_on(device).once("bits", bits)
