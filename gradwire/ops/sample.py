"""Samples: a few of a step's matrices, and the distance between the elements of a vector's sample."""

from collections.abc import Mapping
from itertools import count
from math import ceil, gcd, sqrt

from torch import Tensor

MATRICES, ELEMENTS = 3, 1 << 17
"""The most matrices of a sample, and the most elements of each."""


def sampled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of at most 3 of the tensors with two or more axes, the first one and others at equal distances, each as a
    matrix float32; of one with more than 131,072 elements, every so many rows and columns."""
    matrices = [name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.numel()]
    return {name: _thinned(tensors[name].flatten(1)) for name in matrices[:: -(-len(matrices) // MATRICES) or 1]}


def stride_of(n: int, most: int) -> int:
    """The distance between elements of a sample of a vector (n,) that has `most` elements or fewer.

    2, 3, 5 and 7 do not divide it: so a sample meets all columns of a matrix of 2^i, and all places of the 3x3, 5x5
    and 7x7 kernels of a convolution, whose gradients differ in size.
    """
    return _coprime(-(-n // most), 2 * 3 * 5 * 7)


def _coprime(least: int, other: int) -> int:
    """The first number from `least` on that has no divisor in common with the other."""
    return next(number for number in count(least) if gcd(number, other) == 1)


def _thinned(matrix: Tensor) -> Tensor:
    # of rows and columns equal shares are left out; of a narrow matrix, which has few of one, more of the other
    (rows, columns), every = matrix.shape, ceil(sqrt(matrix.numel() / ELEMENTS))
    across = _coprime(max(every, ceil(columns / ELEMENTS)), 3 * 5 * 7)  # all places of a convolution's kernels
    down = max(every, ceil(rows / (ELEMENTS // ceil(columns / across))))
    return matrix[::down, ::across].float().clone()
