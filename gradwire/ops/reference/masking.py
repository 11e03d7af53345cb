"""Masking of coordinates that were sent."""

from torch import Tensor

from gradwire.ops.tiles import tile_bounds


def mask_zeros(x: Tensor, other: Tensor) -> None:
    """Zeroes x (n,) where the other (n,) is zero."""
    for start, end in tile_bounds(x):
        x[start:end].mul_(other[start:end].ne(0))
