"""Compression errors of a layer, for several compressors."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.compressors import FixedSizeCompressor
from gradwire.slots import Slot


def square_errors(x: Tensor, slot: Slot, choices: Sequence[FixedSizeCompressor]) -> list[float]:
    """|x - C(x)|² of each choice C for a layer's x (n,)."""
    # choices of one class in one call
    errors: dict[FixedSizeCompressor, float] = {}
    for kind in dict.fromkeys(map(type, choices)):
        own = [choice for choice in choices if type(choice) is kind]
        errors |= zip(own, kind.square_errors(x, slot, own), strict=True)
    return [errors[choice] for choice in choices]
