"""Signs and short words, packed, the first element lowest."""

import torch
from torch import Tensor

from gradwire.ops.kernels import kernels_for


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """Writes x >= 0 for each of x (n,) float32, or x > 0, into codes (ceil(n/8),) uint8."""
    kernels_for(x).pack_signs(x, codes, zero_is_plus)


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """Writes +1 or -1 for each of out's n elements from codes (ceil(n/8),)."""
    kernels_for(out).unpack_signs(codes, out)


def pack_words(words: Tensor, bits: int, codes: Tensor) -> None:
    """Writes the low `bits` bits of each of words (rows, k) to codes (rows, k·bits/8) uint8, lowest first; k is a
    multiple of 8."""
    spread = words.to(torch.int32).unsqueeze(2) >> torch.arange(bits, dtype=torch.int32, device=words.device) & 1
    weights = 1 << torch.arange(8, dtype=torch.int32, device=words.device)
    codes.copy_((spread.view(len(words), -1, 8) * weights).sum(2))


def unpack_words(codes: Tensor, bits: int, k: int) -> Tensor:
    """What `pack_words` wrote to codes (rows, k·bits/8): (rows, k) int64."""
    spread = codes.unsqueeze(2) >> torch.arange(8, device=codes.device, dtype=torch.uint8) & 1
    weights = 1 << torch.arange(bits, dtype=torch.int32, device=codes.device)
    return (spread.view(len(codes), k, bits) * weights).sum(2)
