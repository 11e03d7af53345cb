"""Signs and short words, packed, the first element lowest."""

from torch import Tensor

from gradwire.ops.kernels import kernels_for


def pack_signs(x: Tensor, codes: Tensor, zero_is_plus: bool = True) -> None:
    """Writes x >= 0 for each of x (n,) float32, or x > 0, into codes (ceil(n/8),) uint8."""
    kernels_for(x).pack_signs(x, codes, zero_is_plus)


def unpack_signs(codes: Tensor, out: Tensor) -> None:
    """Writes +1 or -1 for each of out's n elements from codes (ceil(n/8),)."""
    kernels_for(out).unpack_signs(codes, out)


def pack_words(words: Tensor, bits: int, codes: Tensor) -> None:
    """Writes the low `bits` bits of each of words (..., k) to codes (..., k·bits/8) uint8, lowest first; k is a
    multiple of 8."""
    kernels_for(words).pack_words(words, bits, codes)


def unpack_words(codes: Tensor, bits: int, k: int) -> Tensor:
    """What `pack_words` wrote to codes (..., k·bits/8): (..., k) int64."""
    return kernels_for(codes).unpack_words(codes, bits, k)
