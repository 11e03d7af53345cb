"""The reference implementation in torch, which defines each function of `gradwire.ops.backend`."""

from gradwire.ops.reference import (
    adding,
    bits,
    casting,
    decoding,
    elias_fano,
    entries,
    factors,
    masking,
    orthogonal,
    products,
    rounding,
    selecting,
    slicing,
)

__all__ = [
    "adding",
    "bits",
    "casting",
    "decoding",
    "elias_fano",
    "entries",
    "factors",
    "masking",
    "orthogonal",
    "products",
    "rounding",
    "selecting",
    "slicing",
]  # fmt: skip
