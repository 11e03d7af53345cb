"""The layout of payloads of blocks: scales, and a code per element."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["nearest", "stochastic", "sign", "one bit", "shared exponent"]
KINDS: dict[Kind, int] = {"nearest": 0, "stochastic": 1, "sign": 2, "one bit": 3, "shared exponent": 4}
"""As C and Triton number them."""

LONGEST_BLOCK = 1 << 24
"""Elements that may share a scale; kernels have scratch memory for as many."""


@dataclass(frozen=True)
class Code:
    """A quantiser of blocks: one or two scales per block, and a code per element.

    nearest: code = round(x / scale) within ±top, scale = max|x| / top in bfloat16.
    stochastic: code = round(x · top / scale + noise), scale = max|x| in float32.
    sign: code = (x ≥ 0), scale = mean|x| in float32; stands for ±scale.
    one bit: code = (x ≥ 0), scales = the mean of the negative elements, then that of the others.
    shared exponent: code = round(x / scale + noise), scale = the least power of two by which none is beyond ±top, in
      bfloat16.

    Codes are two's complement, the first element lowest. Use the functions below to make one.
    """

    kind: Kind
    bits: int
    """Of a code."""
    top: int
    """The largest code."""
    block: int
    """Elements of a block, a multiple of 8."""

    def __post_init__(self) -> None:
        if not 8 <= self.block <= LONGEST_BLOCK or self.block % 8:
            raise ValueError(
                f"block={self.block} elements are no multiple of 8 up to {LONGEST_BLOCK}, which fill bytes and fit in "
                "memory; use e.g. block=64"
            )

    @property
    def scale_bytes(self) -> int:
        """Bytes of one block's scales."""
        return {"nearest": 2, "stochastic": 4, "sign": 4, "one bit": 8, "shared exponent": 2}[self.kind]

    @property
    def has_noise(self) -> bool:
        """Whether elements are rounded up or down at random."""
        return self.kind in ("stochastic", "shared exponent")


def nearest(bits: int, block: int = 64) -> Code:
    """2, 3, 4 or 8 bits, rounded to the nearest level; wants a memory."""
    if bits not in (2, 3, 4, 8):
        raise ValueError(f"bits={bits} is not a size that codes are packed in; use 2, 3, 4 or 8")
    return Code("nearest", bits, 2 ** (bits - 1) - 1, block)


def qsgd(levels: int = 127, block: int = 1024) -> Code:
    """8 bits, rounded up or down at random (Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132)."""
    if not 1 <= levels <= 127:
        raise ValueError(f"levels={levels} do not fit 8 bits with a sign; use 1 to 127")
    return Code("stochastic", 8, levels, block)


def ternary(block: int = 1024) -> Code:
    """-1, 0 or 1 at random (Wen et al., NeurIPS 2017, https://arxiv.org/abs/1705.07878)."""
    return Code("stochastic", 2, 1, block)


def sign(block: int = 256) -> Code:
    """Signs times the mean magnitude (Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847)."""
    return Code("sign", 1, 1, block)


def one_bit(block: int = 4096) -> Code:
    """The mean of a block's negatives, or of its others (Seide et al., Interspeech 2014,
    https://www.isca-archive.org/interspeech_2014/seide14_interspeech.html)."""
    return Code("one bit", 1, 1, block)


def shared_exponent(block: int = 128) -> Code:
    """8 bits, rounded up or down at random, with a power of two as the scale (block floating point). Encoding a decoded
    vector gives the same numbers, whatever the noise."""
    return Code("shared exponent", 8, 127, block)


@dataclass(frozen=True)
class Blocks:
    """The layout of a vector's payload: its parts are divided into blocks, of which the last may be shorter. So no
    scale spans two parts, such as slots.

    Payload: the scales of all blocks, then from `codes_at` the codes of all blocks. A part's codes begin with a byte of
    their own. Behind scales of 2 bytes, codes begin at a multiple of 16 bytes.
    """

    lengths: tuple[int, ...]
    """Elements of each part."""
    code: Code

    @cached_property
    def numel(self) -> int:
        """Elements of all parts."""
        return sum(self.lengths)

    @cached_property
    def count(self) -> int:
        """The number of blocks."""
        return sum(-(-length // self.code.block) for length in self.lengths)

    @cached_property
    def codes_at(self) -> int:
        """The byte where the codes begin."""
        align = 16 if self.code.scale_bytes == 2 else 4
        return -(-self.count * self.code.scale_bytes // align) * align

    @cached_property
    def end(self) -> int:
        """The byte where the codes end."""
        return self.codes_at + sum(-(-length * self.code.bits // 8) for length in self.lengths)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the payload; a multiple of 4."""
        return -(-self.end // 4) * 4

    @cached_property
    def gaps(self) -> list[slice]:
        """The bytes that are zero: between scales and codes, and behind these."""
        gaps = slice(self.count * self.code.scale_bytes, self.codes_at), slice(self.end, self.nbytes)
        return [gap for gap in gaps if gap.start < gap.stop]
