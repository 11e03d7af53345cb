"""Vectors in 8 bits an element: block floating point, rounded stochastically, with blocks that end with their slot."""

from collections.abc import Iterable

from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.formats import Blocks, shared_exponent
from gradwire.ops.noise import Seed

CODE = shared_exponent()
"""Quantising a dequantised vector gives the same numbers, so that saving, loading and merging state changes none."""


def blocks_of(lengths: Iterable[int]) -> Blocks:
    """The layout of the payload of slots of so many elements."""
    return Blocks(tuple(lengths), CODE)


def quantise(x: Tensor, payload: Tensor, layout: Blocks, seed: Seed) -> None:
    """Rounds x (n,) float32, finite, into a payload (≥ nbytes,) uint8 whose numbers are x on average over noise."""
    backend_for(x).add_quantise(x, x, None, 1.0, 1.0, [layout], payload[None], keep=False, seeds=[seed])


def dequantise(payload: Tensor, layout: Blocks, out: Tensor) -> Tensor:
    """Writes the numbers of a payload (≥ nbytes,) to out (n,) float32, and returns out."""
    backend_for(out).sum_blocks(payload[None, None], out, [layout])
    return out
