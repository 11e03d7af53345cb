"""The reference implementation in torch, which defines each function of `gradwire.ops.backend`."""

from gradwire.ops.reference import (
    adding,
    bits,
    casting,
    decoding,
    entries,
    factors,
    low_rank,
    masking,
    orthogonal,
    places,
    rounding,
    selecting,
    slicing,
)

__all__ = [
    "adding", "bits", "casting", "decoding", "entries", "factors", "low_rank", "masking", "orthogonal",
    "places", "rounding", "selecting", "slicing",
]  # fmt: skip
