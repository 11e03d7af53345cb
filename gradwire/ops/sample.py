"""A few matrices that stand for all of a step's gradients."""

from collections.abc import Mapping
from math import ceil, sqrt

from torch import Tensor

MATRICES, ELEMENTS = 3, 1 << 17


def sampled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of at most 3 of the tensors that have rows and columns, the first one and others at equal distances, each
    as a matrix; of more than 131,072 elements as many as that or fewer, in every so many rows and columns."""
    matrices = [name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.numel()]
    return {name: _thinned(tensors[name].flatten(1)) for name in matrices[:: -(-len(matrices) // MATRICES) or 1]}


def _thinned(matrix: Tensor) -> Tensor:
    every = ceil(sqrt(matrix.numel() / ELEMENTS))
    return matrix[::every, ::every].float().clone()
