"""One bit per sign and two per ternary value: packing and, by table, unpacking."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

_EIGHT_BITS = 0x0102_0408_1020_4080


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """Writes x >= 0 for each of x (n,) float32, or x > 0, into codes (ceil(n/8),) uint8, first element lowest."""
    if x.device.type == "cpu":
        plus = (np.greater_equal if zero_is_plus else np.greater)(x.numpy(), 0)
        codes.copy_(torch.from_numpy(np.packbits(plus, bitorder="little")))
        return
    bits = torch.zeros(8 * len(codes), dtype=torch.bool, device=x.device)
    (torch.ge if zero_is_plus else torch.gt)(x, 0, out=bits[: len(x)])
    # one multiplication moves bit 0 of each of eight bytes to its place in the top byte
    gathered = bits.view(torch.int64).mul(_EIGHT_BITS).bitwise_right_shift(56)
    codes.copy_(gathered.bitwise_and(0xFF))


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """Writes +1 or -1 for each of out's n elements from codes (ceil(n/8),)."""
    _lookup(_sign_table(codes.device), codes, out)


def pack_ternary(q: Tensor, codes: Tensor) -> None:
    """Writes q (n,) int8 in {-1, 0, 1} into codes (ceil(n/4),) uint8, first element lowest."""
    fields = torch.zeros(4 * len(codes), dtype=torch.uint8, device=q.device)
    fields[: len(q)].copy_(q)
    fields.bitwise_and_(3)  # -1 becomes 3
    words = fields.view(torch.int32)
    words = words | words >> 6 | words >> 12 | words >> 18
    codes.copy_(words.bitwise_and_(0xFF))


def unpack_ternary(codes: Tensor, out: Tensor) -> None:
    """Writes -1, 0 or 1 for each of out's n elements from codes (ceil(n/4),)."""
    _lookup(_ternary_table(codes.device), codes, out)


def _lookup(table: Tensor, codes: Tensor, out: Tensor) -> None:
    width = table.shape[1]
    if out.numel() % width:
        out.copy_(table[codes.int()].view(-1)[: out.numel()].view_as(out))
    elif out.device.type == "cpu":  # mode="clip" spares numpy a buffer, and is twice as fast as torch
        np.take(table.numpy(), codes.numpy(), axis=0, out=out.numpy().reshape(-1, width), mode="clip")
    else:
        torch.index_select(table, 0, codes.int(), out=out.view(-1, width))


@cache
def _sign_table(device: torch.device) -> Tensor:
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return bits.float().mul_(2).sub_(1).to(device)


@cache
def _ternary_table(device: torch.device) -> Tensor:
    fields = torch.arange(256)[:, None] >> 2 * torch.arange(4) & 3
    return torch.tensor([0.0, 1.0, 0.0, -1.0])[fields].to(device)


def pack_words(words: Tensor, bits: int, codes: Tensor) -> None:
    """Writes the low `bits` bits of each of words (rows, k) to codes (rows, k·bits/8) uint8, lowest first; k is a
    multiple of 8."""
    spread = words.unsqueeze(2) >> torch.arange(bits, device=words.device) & 1  # (rows, k, bits)
    weights = 1 << torch.arange(8, device=words.device)
    codes.copy_((spread.view(len(words), -1, 8) * weights).sum(2))


def unpack_words(codes: Tensor, bits: int, k: int) -> Tensor:
    """What `pack_words` wrote to codes (rows, k·bits/8): (rows, k) int64."""
    spread = codes.unsqueeze(2) >> torch.arange(8, device=codes.device, dtype=torch.uint8) & 1
    weights = 1 << torch.arange(bits, device=codes.device)
    return (spread.view(len(codes), k, bits) * weights).sum(2)
