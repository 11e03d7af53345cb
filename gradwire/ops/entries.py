"""The layouts of payloads of some of n elements: their indices, with or without their values."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

GROUP = 1024
"""Elements that share a scale where values travel as levels."""


@dataclass(frozen=True)
class EliasFano:
    """The layout of up to k ascending coordinates below n, in about 2 + log2(n/k) bits each, by Elias and Fano (Elias,
    J. ACM 1974, https://doi.org/10.1145/321812.321820).

    Payload, each field filled up to 4 bytes, the first element lowest:

    upper: k + (n >> l) + 1 bits; bit (index >> l) + j is set for coordinate j; l = floor(log2(n / k)).
    lower: k·l bits, the l lower bits of each coordinate.

    Fewer than k set bits mean fewer coordinates.
    """

    n: int
    """Elements of the vector, 1 or more."""
    k: int
    """The capacity."""
    value_bits: ClassVar[int] = 0
    places_at: ClassVar[int] = 0
    """The byte where the coordinates begin."""

    @property
    def places(self) -> "EliasFano":
        """The layout of the coordinates: this one."""
        return self

    @cached_property
    def low_bits(self) -> int:
        """l: how many bits of each coordinate are stored as they are."""
        return max(0, (self.n // self.k).bit_length() - 1)

    @cached_property
    def upper_bytes(self) -> int:
        """Bytes before the lower bits."""
        return in_words(self.k + (self.n >> self.low_bits) + 1)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the payload; a multiple of 4."""
        return self.upper_bytes + in_words(self.k * self.low_bits)


@dataclass(frozen=True)
class Entries:
    """The layout of up to k of n elements with their values.

    Payload, each field filled up to 4 bytes:

    scales: with levels ceil(n / 1024) bfloat16, the largest magnitude of each 1,024 elements; 0 where none is sent.
    places: see `EliasFano`.
    values: k float32; or 4·k bits, level e in 0..7, and 8 for minus, which stand for scale·2^(-0.75·e).
    """

    n: int
    """Elements of the vector."""
    k: int
    """The capacity."""
    value_bits: Literal[32, 4] = 32
    """Of a value: 32 are float32; 4 are a sign and one of 8 levels, each 2^-0.75 of the one before."""

    @property
    def exact(self) -> bool:
        """Whether values travel in float32."""
        return self.value_bits == 32

    @cached_property
    def places(self) -> EliasFano:
        """The layout of the coordinates."""
        return EliasFano(self.n, self.k)

    @cached_property
    def places_at(self) -> int:
        """The byte where the coordinates begin."""
        return 0 if self.exact else in_words(16 * -(-self.n // GROUP))

    @cached_property
    def values_at(self) -> int:
        """The byte where the values begin."""
        return self.places_at + self.places.nbytes

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the payload; a multiple of 4."""
        return self.values_at + in_words(self.value_bits * self.k)


def in_words(bits: int) -> int:
    """The bytes of so many bits, filled up to words of 32 bits."""
    return -(-bits // 32) * 4
